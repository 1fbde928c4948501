"""A critic: how it is known, its value head on every pipeline stage, with tied embeddings and inside vision models."""

import pytest

from harness.pytest_plugin import Parity

THROUGH = pytest.mark.parametrize(
    "how",
    [{"through": "engine"}, {"through": "make_megatron_module", "model_type": "absent"}],
    ids=["engine", "builder"],
)


@pytest.mark.parametrize("model_type", ["value_model", "absent"])
@pytest.mark.parametrize("architecture", ["Qwen3ForTokenClassification", "absent"])
def test_how_a_critic_is_known(parity: Parity, architecture: str, model_type: str) -> None:
    parity("critic", architecture=architecture, model_type=model_type)


@THROUGH
@pytest.mark.parametrize("layout", ["pp2", "vpp2"])
def test_value_head_on_the_last_stage_alone(parity: Parity, layout: str, how: dict[str, str]) -> None:
    parity("critic", layers=4, layout=layout, **how)


@THROUGH
def test_tied_embeddings(parity: Parity, how: dict[str, str]) -> None:
    parity("critic", hf_config="qwen2", **how)


@THROUGH
def test_text_config(parity: Parity, how: dict[str, str]) -> None:
    parity("critic", hf_config="qwen2_5_vl", **how)


@THROUGH
def test_critic_with_frozen_routers(parity: Parity, how: dict[str, str]) -> None:
    parity("critic", hf_config="qwen3_moe", freeze_moe_router=True, **how)
