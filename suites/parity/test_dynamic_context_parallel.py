"""verl's flag for dynamic context parallelism: configs and process groups, or how the pin refuses it."""

import pytest

from harness.pytest_plugin import Consistency, Parity

pytestmark = pytest.mark.regression("K02")


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
@pytest.mark.parametrize("layout", ["dp2", "cp2"])
def test_flag(parity: Parity, enabled: bool, branch: str, layout: str) -> None:
    parity("dynamic_context_parallel", enabled=enabled, branch=branch, layout=layout)


@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
def test_one_rank(parity: Parity, branch: str) -> None:
    parity("dynamic_context_parallel", branch=branch)


@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
@pytest.mark.parametrize("layout", ["dp2", "cp2"])
def test_beside_an_engine_without_it(parity: Parity, branch: str, layout: str) -> None:
    parity("dynamic_context_parallel", branch=branch, colocated=True, layout=layout)


@pytest.mark.self_consistency
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("layout", ["dp2", "cp2"])
def test_both_branches_agree(consistency: Consistency, enabled: bool, layout: str) -> None:
    consistency("context_parallel_fields", enabled=enabled, layout=layout)
