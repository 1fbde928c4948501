"""`adapter_path` in every form a config can take: is the adapter really loaded?"""

import pytest

from harness.pytest_plugin import Parity


@pytest.mark.parametrize(
    "given",
    ["dict", "dictconfig", "dataclass", "base_config", "object", "none", "absent", "none_path", "empty", "missing"],
)
def test_adapter_path(parity: Parity, given: str) -> None:
    parity("adapter_path", given=given)


@pytest.mark.parametrize("given", ["dict", "object"])
def test_adapter_path_across_tensor_parallel_ranks(parity: Parity, given: str) -> None:
    parity("adapter_path", given=given, layout="tp2")
