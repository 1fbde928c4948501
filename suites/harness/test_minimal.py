"""Delta debugging over changes: the smallest set that makes the difference."""

from collections.abc import Callable
from itertools import combinations

import pytest

from harness.explain.minimal import Minimal, Shows

CHANGES = list("abcdefgh")


def needs(*sets: str, broken: str = "") -> Callable[[frozenset[str]], Shows]:
    """Shows the difference where all of one of `sets` are applied; can't run with `broken` alone."""

    def shows(changes: frozenset[str]) -> Shows:
        if changes & set(broken) and not set(broken) <= changes:
            return Shows.CANNOT_RUN
        return Shows.YES if any(set(needed) <= changes for needed in sets) else Shows.NO

    return shows


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_set_is_found_and_is_minimal(size: int) -> None:
    for needed in combinations(CHANGES, size):
        assert Minimal(needs("".join(needed))).find(CHANGES) == frozenset(needed)


def test_one_that_suffices_alone_comes_before_a_pair() -> None:
    search = Minimal(needs("ab", "g"))
    assert search.find(CHANGES) == {"g"}
    assert search.tried[frozenset("a")] is Shows.NO


def test_changes_that_run_only_together_stay_together() -> None:
    search = Minimal(needs("c", broken="cd"))
    assert search.find(CHANGES) == {"c", "d"}
    assert search.tried[frozenset("c")] is Shows.CANNOT_RUN


def test_no_set_is_tried_twice() -> None:
    seen: list[frozenset[str]] = []

    def shows(changes: frozenset[str]) -> Shows:
        seen.append(changes)
        return needs("adh")(changes)

    Minimal(shows).find(CHANGES)
    assert len(seen) == len(set(seen))


def test_nothing_to_find_is_said() -> None:
    with pytest.raises(ValueError, match="all changes together: no"):
        Minimal(needs("xyz")).find(CHANGES)
