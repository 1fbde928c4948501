"""What the pre-wrap hooks make of a model: their order, the adapters, what is trained, initial weights."""

import pytest

from harness.pytest_plugin import Parity

PEFT = ["lora", "dora", "canonical_lora"]


@pytest.mark.parametrize("peft", PEFT)
@pytest.mark.parametrize("layout", ["single", "tp2"])
def test_peft_hook(parity: Parity, peft: str, layout: str) -> None:
    parity("peft_hook", peft=peft, layout=layout)


@pytest.mark.parametrize("peft", PEFT)
def test_virtual_pipeline_chunks(parity: Parity, peft: str) -> None:
    parity("peft_hook", hf_config="qwen3_deep", peft=peft, layout="vpp2")


@pytest.mark.parametrize("peft", PEFT)
def test_adapters_of_experts(parity: Parity, peft: str) -> None:
    parity("peft_hook", hf_config="qwen3_moe", peft=peft)


def test_adapters_of_experts_across_ranks(parity: Parity) -> None:
    parity("peft_hook", hf_config="qwen3_moe", layout="ep2")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param("dtype=null", marks=pytest.mark.regression("K16")),
        "dtype=fp32",
        'target_modules=["*.0.mlp.linear_fc1"]',
        'target_modules=[];exclude_modules=["*.linear_fc2"]',
        "lora_A_init_method=kaiming",
        "lora_B_init_method=xavier",
    ],
)
def test_fields_arrive_in_the_model(parity: Parity, fields: str) -> None:
    parity("peft_hook", fields=fields)


@pytest.mark.parametrize("freeze_router", [False, True])
def test_value_head_and_router_freeze_come_after(parity: Parity, freeze_router: bool) -> None:
    parity("peft_hook", hf_config="qwen3_moe", value_model=True, freeze_router=freeze_router)


def test_router_freeze(parity: Parity) -> None:
    parity("peft_hook", hf_config="qwen3_moe", freeze_router=True)
