"""What the imports of a stack bring along."""

import pytest

from harness.pytest_plugin import Parity


@pytest.mark.regression("K11", "K13")
def test_surroundings(parity: Parity) -> None:
    parity("surroundings")
