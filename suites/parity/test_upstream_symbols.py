"""What verl and the bridges take from the packages below them: names that exist, calls that are accepted."""

import pytest

from harness.pytest_plugin import Consistency, Parity


@pytest.mark.regression("K10", "K12", "K13")
def test_names_that_verl_takes(parity: Parity) -> None:
    parity("upstream_symbols")


@pytest.mark.self_consistency
@pytest.mark.regression("K09", "K10", "K12", "K13")
@pytest.mark.parametrize("user", ["verl", "mbridge", "megatron.bridge"])
def test_what_is_taken_is_there(consistency: Consistency, user: str) -> None:
    consistency("symbols_fit", user=user)
