"""The PEFT object of a `lora` section: every type, every optional key, and what is refused."""

import pytest

from harness.pytest_plugin import Parity

TYPES = ["lora", "vlm_lora", "canonical_lora", "dora"]


@pytest.mark.regression("K16")
@pytest.mark.parametrize("peft", [*TYPES, "no_such_type"])
def test_peft_object(parity: Parity, peft: str) -> None:
    parity("peft_object", peft=peft)


@pytest.mark.regression("K16")
@pytest.mark.parametrize("peft", TYPES)
def test_every_optional_key(parity: Parity, peft: str) -> None:
    parity("peft_fields", peft=peft)


@pytest.mark.parametrize("peft", TYPES)
def test_section_of_the_shipped_trainer_config(parity: Parity, peft: str) -> None:
    parity("peft_object", peft=peft, shipped=True)


@pytest.mark.parametrize(
    ("peft", "fields"), [("dora", "dropout_position=post"), ("canonical_lora", "target_modules=null")]
)
def test_what_one_type_refuses(parity: Parity, peft: str, fields: str) -> None:
    parity("peft_object", peft=peft, fields=fields)


@pytest.mark.parametrize("fields", ["rank=0", "rank=-1", "rank=absent", "rank=0;dim=8", "rank=null"])
def test_no_rank_no_peft(parity: Parity, fields: str) -> None:
    parity("peft_object", peft="lora", fields=fields)
