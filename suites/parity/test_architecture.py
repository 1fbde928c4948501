"""The resolved provider of every Hugging Face class that Megatron-Bridge registers, and of every config.json given."""

from pathlib import Path

import pytest

from harness.pytest_plugin import Parity

ARCHITECTURES = [
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV4ForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "Ernie4_5_VLMoeForConditionalGeneration",
    "Exaone4ForCausalLM",
    "Exaone4_5_ForConditionalGeneration",
    "ExaoneMoeForCausalLM",
    "FalconH1ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "GemmaForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "Glm4vMoeForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
    "GptOssForCausalLM",
    "HYV3ForCausalLM",
    "LlamaForCausalLM",
    "MiniMaxM2ForCausalLM",
    "Mistral3ForConditionalGeneration",
    "MistralForCausalLM",
    "NemotronForCausalLM",
    "NemotronHForCausalLM",
    "OlmoeForCausalLM",
    "Qwen2AudioForConditionalGeneration",
    "Qwen2ForCausalLM",
    "Qwen2_5OmniForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
]
"""What a shipped stack registers and transformers has a config class for."""

REMOTE_CODE = [
    "BailingMoeV2ForCausalLM",
    "DeciLMForCausalLM",
    "ExaoneMoEForCausalLM",
    "KimiK25ForConditionalGeneration",
    "KimiK2ForCausalLM",
    "MiMoForCausalLM",
    "MiMoV2FlashForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration",
    "NemotronH_Nano_Omni_Reasoning_V3",
    "NemotronH_Nano_VL_V2",
    "NemotronLabsDiffusionModel",
    "Qwen3ASRForConditionalGeneration",
    "SarvamMLAForCausalLM",
    "SarvamMoEForCausalLM",
    "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration",
]
"""Registered, but transformers has no config class: only a model's own files do (`--hf-configs`)."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "config_file" in metafunc.fixturenames:
        folder = metafunc.config.option.hf_configs
        absent = pytest.param(None, marks=pytest.mark.skip("no folder of config.json files: give --hf-configs DIR"))
        found = sorted(map(str, Path(folder).resolve().rglob("config.json"))) if folder else [absent]
        metafunc.parametrize("config_file", found)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture(parity: Parity, name: str) -> None:
    parity("architecture", hf_config=name)


def test_given_config(parity: Parity, config_file: str) -> None:
    parity("architecture", hf_config=config_file)


def test_every_registered_class_is_listed(parity: Parity) -> None:
    outcome = parity("architectures")
    for side in outcome.sides.values():
        registered = side.ranks[0].tree["registered"]
        assert {name for name, config in registered.items() if config} <= {*ARCHITECTURES}, side.stack
        assert {name for name, config in registered.items() if not config} <= {*ARCHITECTURES, *REMOTE_CODE}, side.stack
