"""The value head that replaces the output layer of a critic: forward and backward."""

import pytest

from harness.pytest_plugin import Parity


@pytest.mark.parametrize("kind", ["make_megatron_module", "make_value_model", "linear_for_last_layer"])
@pytest.mark.parametrize("layout", ["single", "tp2", "tp2_sp"])
def test_value_head(parity: Parity, kind: str, layout: str) -> None:
    parity("value_head", kind=kind, layout=layout)


@pytest.mark.parametrize("hf_config", ["llama", "qwen3_moe"])
def test_value_head_of_other_models(parity: Parity, hf_config: str) -> None:
    parity("value_head", hf_config=hf_config)


def test_value_head_in_float32(parity: Parity) -> None:
    parity("value_head", dtype="float32")
