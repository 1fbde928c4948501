"""The adapters that the pre-wrap hooks put into a model: names, shapes, what is trained, initial weights."""

import pytest

from harness.pytest_plugin import Parity

PEFT = ["lora", "dora", "canonical_lora"]


@pytest.mark.parametrize("peft", PEFT)
@pytest.mark.parametrize("layout", ["single", "tp2"])
def test_peft_hook(parity: Parity, peft: str, layout: str) -> None:
    parity("peft_hook", peft=peft, layout=layout)


@pytest.mark.parametrize("peft", PEFT)
def test_adapters_of_experts(parity: Parity, peft: str) -> None:
    parity("peft_hook", hf_config="qwen3_moe", peft=peft)


@pytest.mark.parametrize("peft", [*PEFT, "vlm_lora", "no_such_type"])
def test_peft_object(parity: Parity, peft: str) -> None:
    parity("peft_object", peft=peft)


@pytest.mark.parametrize("dtype", ["none", "bfloat16", "float32"])
def test_peft_object_dtype(parity: Parity, dtype: str) -> None:
    parity("peft_object", dtype=dtype)


@pytest.mark.parametrize("rank", [0, -1, 16])
def test_peft_object_rank(parity: Parity, rank: int) -> None:
    parity("peft_object", rank=rank)


@pytest.mark.parametrize("alpha", ["none", 16])
def test_peft_object_alpha(parity: Parity, alpha: str | int) -> None:
    parity("peft_object", alpha=alpha)
