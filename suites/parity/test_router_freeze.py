"""What `freeze_moe_router` freezes, and what the rest learns."""

import pytest

from harness.pytest_plugin import Parity


@pytest.mark.parametrize("hf_config", ["qwen3_moe", "qwen3"])
def test_router_freeze(parity: Parity, hf_config: str) -> None:
    parity("router_freeze", hf_config=hf_config)


@pytest.mark.parametrize("shared_experts", ["plain", "gated"])
def test_shared_experts_stay_trainable(parity: Parity, shared_experts: str) -> None:
    parity("router_freeze", through="function", router_bias="present", shared_experts=shared_experts)


def test_router_freeze_across_tensor_parallel_ranks(parity: Parity) -> None:
    parity("router_freeze", layout="tp2_sp")


@pytest.mark.parametrize("given", ["list", "module"])
@pytest.mark.parametrize("router_bias", ["none", "present"])
def test_freeze_function(parity: Parity, given: str, router_bias: str) -> None:
    parity("router_freeze", through="function", given=given, router_bias=router_bias)


@pytest.mark.parametrize("first_layer", ["dense", "without_mlp"])
def test_layers_without_router(parity: Parity, first_layer: str) -> None:
    parity("router_freeze", through="function", router_bias="present", first_layer=first_layer)


def test_value_model_with_frozen_router(parity: Parity) -> None:
    parity("router_freeze", value_model=True)
