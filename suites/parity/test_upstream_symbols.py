"""What verl reaches for in the packages below it: names that exist, calls that are taken."""

import pytest

from harness.pytest_plugin import Consistency, Parity

PACKAGES = ["megatron.core", "megatron.bridge", "megatron.training", "mbridge", "vllm"]
BELOW = [("mbridge", "megatron.core"), ("megatron.bridge", "megatron.core")]


@pytest.mark.regression("K10", "K12", "K13")
@pytest.mark.parametrize("package", PACKAGES)
def test_names_that_verl_takes(parity: Parity, package: str) -> None:
    parity("upstream_symbols", package=package)


@pytest.mark.regression("K09", "K12")
@pytest.mark.parametrize(("user", "package"), BELOW)
def test_names_that_bridges_take(parity: Parity, user: str, package: str) -> None:
    parity("upstream_symbols", package=package, user=user)


@pytest.mark.self_consistency
@pytest.mark.regression("K10", "K12", "K13")
@pytest.mark.parametrize("package", PACKAGES)
def test_what_verl_takes_is_there(consistency: Consistency, package: str) -> None:
    consistency("symbols_fit", package=package)


@pytest.mark.self_consistency
@pytest.mark.regression("K09", "K12")
@pytest.mark.parametrize(("user", "package"), BELOW)
def test_what_bridges_take_is_there(consistency: Consistency, user: str, package: str) -> None:
    consistency("symbols_fit", package=package, user=user)
