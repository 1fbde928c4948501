"""Adapters that a model starts with: `adapter_path` in every form, and what each loader makes of what was written."""

import pytest

from harness.pytest_plugin import Parity

DEEP, MOE = "qwen3_deep", "qwen3_moe"
FEWER = 'target_modules=["linear_qkv"]'


@pytest.mark.regression("K15")
@pytest.mark.parametrize(
    "given",
    ["dict", "dictconfig", "dataclass", "base_config", "object", "none", "absent", "none_path", "empty", "missing"],
)
def test_adapter_path(parity: Parity, given: str) -> None:
    parity("adapter_path", given=given)


@pytest.mark.regression("K15")
@pytest.mark.parametrize("given", ["dict", "object"])
def test_adapter_path_across_tensor_parallel_ranks(parity: Parity, given: str) -> None:
    parity("adapter_path", given=given, layout="tp2")


@pytest.mark.parametrize("peft", ["dora", "canonical_lora"])
def test_other_types(parity: Parity, peft: str) -> None:
    parity("adapter_path", peft=peft, given="dictconfig")


@pytest.mark.regression("K17")
@pytest.mark.parametrize(("hf_config", "layout"), [(DEEP, "vpp2"), (MOE, "ep2")])
def test_chunks_and_experts(parity: Parity, hf_config: str, layout: str) -> None:
    parity("adapter_path", hf_config=hf_config, given="dictconfig", layout=layout)


@pytest.mark.regression("K17")
@pytest.mark.parametrize("written_by", ["old", "new"])
def test_what_the_other_side_wrote(parity: Parity, written_by: str) -> None:
    parity("adapter_path", given="dictconfig", written_by=written_by)


@pytest.mark.parametrize(("layout", "written_layout"), [("single", "tp2"), ("tp2", "single")])
def test_what_another_layout_wrote(parity: Parity, layout: str, written_layout: str) -> None:
    parity("adapter_path", given="dictconfig", layout=layout, written_layout=written_layout)


def test_the_hugging_face_export_is_no_adapter_path(parity: Parity) -> None:
    parity("adapter_path", given="dictconfig", folder="huggingface/adapter", written_by="new")


@pytest.mark.parametrize("given", [{"fields": FEWER}, {"written_fields": FEWER}, {"fields": "rank=4"}])
def test_another_adapter_than_was_written(parity: Parity, given: dict[str, str]) -> None:
    parity("adapter_path", given="dictconfig", **given)


@pytest.mark.parametrize("given", [{}, {"fields": FEWER}, {"written_fields": FEWER}])
def test_missing_and_surplus_keys(parity: Parity, given: dict[str, str]) -> None:
    parity("adapter_load", **given)


@pytest.mark.parametrize("given", [{}, {"fields": FEWER}])
def test_strictness(parity: Parity, given: dict[str, str]) -> None:
    parity("adapter_load", strict="true", **given)
