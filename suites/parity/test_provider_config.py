"""The full config that verl's engine resolves, on the Bridge branch and on the vanilla mbridge branch."""

import pytest

from harness.compare import Expectation
from harness.pytest_plugin import Parity


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_provider_config(parity: Parity, hf_config: str, branch: str, dtype: str) -> None:
    parity("provider_config", hf_config=hf_config, branch=branch, dtype=dtype)


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
def test_the_branch_that_verl_takes_by_default(parity: Parity, hf_config: str) -> None:
    parity("provider_config", hf_config=hf_config, branch="default")


@pytest.mark.parametrize("hf_config", ["llama", "qwen2", "deepseek_v3"])
def test_other_architectures(parity: Parity, hf_config: str) -> None:
    parity("provider_config", hf_config=hf_config)


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
def test_user_overrides(parity: Parity, hf_config: str, branch: str) -> None:
    parity("provider_config", hf_config=hf_config, branch=branch, overrides="user")


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("overrides", ["unknown_key", "routing_replay"])
def test_overrides_that_no_field_takes(parity: Parity, hf_config: str, overrides: str) -> None:
    parity("provider_config", hf_config=hf_config, overrides=overrides)


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize(
    ("overrides", "name"), [("unknown_key", "no_such_field"), ("routing_replay", "enable_routing_replay")]
)
def test_overrides_that_mbridge_refuses(parity: Parity, hf_config: str, overrides: str, name: str) -> None:
    refused = Expectation(
        type="builtins:TypeError",
        message=f"TransformerConfig.__init__() got an unexpected keyword argument '{name}'",
        origin="mbridge.core.llm_bridge:LLMBridge._build_base_config",
    )
    parity("provider_config", hf_config=hf_config, branch="vanilla", overrides=overrides, expects=refused)


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
def test_a_token_dispatcher_that_core_refuses(parity: Parity, hf_config: str, branch: str) -> None:
    refused = Expectation(
        type="builtins:ValueError",
        message="Token dispatcher type: allgather does not support variable sequence length, *",
        origin="megatron.core.transformer.transformer_config:TransformerConfig.__post_init__",
    )
    parity("provider_config", hf_config=hf_config, branch=branch, overrides="allgather", expects=refused)


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
def test_through_the_real_initialize(parity: Parity, hf_config: str) -> None:
    parity("provider_config", hf_config=hf_config, construction="initialize")


@pytest.mark.parametrize("layout", ["tp2", "tp2_sp", "ep2"])
def test_parallel_sizes_arrive(parity: Parity, layout: str) -> None:
    parity("provider_config", hf_config="qwen3_moe", layout=layout)
