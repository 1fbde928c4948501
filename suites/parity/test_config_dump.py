"""The `transformer_config.json` that the real `save_checkpoint` writes, also with values that used to break it."""

import pytest

from harness.pytest_plugin import Parity

pytestmark = pytest.mark.regression("K18")


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
def test_config_dump(parity: Parity, hf_config: str) -> None:
    parity("config_dump", hf_config=hf_config)


def test_two_ranks_write_one_dump(parity: Parity) -> None:
    parity("config_dump", layout="tp2")


@pytest.mark.parametrize(
    "variant",
    [
        "cycle",
        "config_cycle",
        "enum",
        "nested_dataclass",
        "nan",
        "inf",
        "set",
        "bytes",
        "tuple",
        "callable",
        "partial",
        "list_of_callables",
        "int_keys",
        "tuple_keys",
        "enum_keys",
        "tensor",
        "array",
        "numpy_scalar",
        "dtype_in_list",
    ],
)
def test_values_that_used_to_break_the_writer(parity: Parity, variant: str) -> None:
    parity("config_dump", variant=variant)


def test_every_kind_of_value_at_every_kind_of_place(parity: Parity) -> None:
    parity("config_values")
