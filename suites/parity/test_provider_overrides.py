"""What a user's overrides do to the resolved config, those that contradict verl's own values included."""

import pytest

from harness.compare import Expectation
from harness.pytest_plugin import Parity

VARIANTS = [
    "none",
    "verl_values",
    "other_dtype",
    "cleared",
    "sizes",
    "parallel_sizes",
    "pipeline",
    "no_fusions",
    "recompute",
    "mtp_layers",
    "refused_value",
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_overrides(parity: Parity, variant: str) -> None:
    parity("provider_overrides", variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_overrides_on_the_vanilla_branch(parity: Parity, variant: str) -> None:
    parity("provider_overrides", variant=variant, branch="vanilla")


@pytest.mark.parametrize("variant", ["experts", "moe_ffn_cleared", "verl_values"])
@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
def test_overrides_of_experts(parity: Parity, variant: str, branch: str) -> None:
    parity("provider_overrides", variant=variant, hf_config="qwen3_moe", branch=branch)


def test_override_of_another_dtype(parity: Parity) -> None:
    parity("provider_overrides", variant="other_dtype", dtype="float16")


@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
def test_two_dtypes_at_once(parity: Parity, branch: str) -> None:
    refused = Expectation(
        type="builtins:ValueError",
        message="Only one of self.fp16: True and self.bf16 True should be True.",
        origin="megatron.core.transformer.transformer_config:TransformerConfig.__post_init__",
    )
    parity("provider_overrides", variant="two_dtypes", branch=branch, expects=refused)


def test_a_key_that_is_a_method(parity: Parity) -> None:
    parity("provider_overrides", variant="method")


@pytest.mark.regression("K01")
@pytest.mark.parametrize("router_replay", ["R2", "R3"])
@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
def test_router_replay(parity: Parity, router_replay: str, branch: str) -> None:
    parity("provider_overrides", hf_config="qwen3_moe", router_replay=router_replay, branch=branch)


@pytest.mark.parametrize("mtp", [False, True])
@pytest.mark.parametrize("variant", ["none", "mtp_layers"])
def test_multi_token_prediction(parity: Parity, mtp: bool, variant: str) -> None:
    parity("provider_overrides", variant=variant, hf_config="deepseek_v3", mtp_layers=1, mtp=mtp)


def test_multi_token_prediction_of_a_model_without(parity: Parity) -> None:
    refused = Expectation(
        type="builtins:ValueError",
        message="enable mtp while model has no mtp layer, please use a model with mtp layer",
        origin="verl.utils.megatron_utils:check_mtp_config",
    )
    parity("provider_overrides", mtp=True, expects=refused)
