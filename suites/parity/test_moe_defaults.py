"""How experts and attention run where the user says nothing, for every family of experts that a bridge knows."""

import pytest

from harness.pytest_plugin import Parity

BRIDGE = [
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV4ForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "Ernie4_5_VLMoeForConditionalGeneration",
    "ExaoneMoeForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "Glm4vMoeForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
    "GptOssForCausalLM",
    "HYV3ForCausalLM",
    "MiniMaxM2ForCausalLM",
    "NemotronHForCausalLM",
    "OlmoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
]
VANILLA = [
    "DeepseekV3ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4vMoeForConditionalGeneration",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
]


@pytest.mark.regression("K04")
@pytest.mark.parametrize("hf_config", BRIDGE)
def test_megatron_bridge(parity: Parity, hf_config: str) -> None:
    parity("moe_defaults", hf_config=hf_config)


@pytest.mark.regression("K04")
@pytest.mark.parametrize("hf_config", VANILLA)
def test_mbridge(parity: Parity, hf_config: str) -> None:
    parity("moe_defaults", hf_config=hf_config, branch="vanilla")


@pytest.mark.regression("K03")
@pytest.mark.parametrize("hf_config", ["qwen3", *VANILLA])
def test_the_branch_that_verl_takes_by_default(parity: Parity, hf_config: str) -> None:
    parity("moe_defaults", hf_config=hf_config, branch="default")
