"""The PEFT object of a `lora` section: every type, every optional key, and what is refused."""

import pytest

from harness.pytest_plugin import Parity

TYPES = ["lora", "vlm_lora", "canonical_lora", "dora"]
FIELDS = [
    "alpha=16",
    "alpha=none",
    "rank=16",
    "dropout=0.25",
    "dropout_position=post",
    "lora_A_init_method=kaiming",
    "lora_B_init_method=normal",
    "dtype=bfloat16",
    "dtype=fp32",
    "lora_dtype=float32",
    "a2a_experimental=true",
    'target_modules=["linear_proj"]',
    "target_modules=none",
    'exclude_modules=["linear_fc2"]',
    "normalize_moe_lora=true",
    "share_expert_adapters=false",
    "no_such_field=1",
]
FREEZE = ["freeze_vision_model=false", "freeze_vision_projection=false", "freeze_language_model=false"]


@pytest.mark.regression("K16")
@pytest.mark.parametrize("peft", [*TYPES, "no_such_type"])
def test_peft_object(parity: Parity, peft: str) -> None:
    parity("peft_object", peft=peft)


@pytest.mark.parametrize("peft", TYPES)
def test_section_of_the_shipped_trainer_config(parity: Parity, peft: str) -> None:
    parity("peft_object", peft=peft, shipped=True)


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("peft", TYPES)
def test_fields(parity: Parity, peft: str, fields: str) -> None:
    parity("peft_object", peft=peft, fields=fields)


@pytest.mark.parametrize("fields", FREEZE)
@pytest.mark.parametrize("peft", ["lora", "vlm_lora"])
def test_freeze_flags(parity: Parity, peft: str, fields: str) -> None:
    parity("peft_object", peft=peft, fields=fields)


@pytest.mark.parametrize("fields", ["rank=0", "rank=-1", "rank=absent", "rank=0;dim=8"])
def test_no_rank_no_peft(parity: Parity, fields: str) -> None:
    parity("peft_object", peft="lora", fields=fields)


@pytest.mark.regression("K16")
@pytest.mark.parametrize("peft", TYPES)
def test_dtype_null(parity: Parity, peft: str) -> None:
    parity("peft_object", peft=peft, fields="dtype=none")
