"""Triage: what a verdict that fails says of the pins that moved, told from both sides and one more run of each.

A verdict says how two sides stand to each other; triage says whether the new one is to blame. It adds no comparison of
its own: `drift` is the host, two sides that raise alike were so before, and what differs between two runs of one side
says nothing of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from harness.compare.ledger import Ledger
from harness.compare.trees import Difference
from harness.compare.verdicts import Judged, Side, Verdict, broken_of, describe, judge
from harness.observe.globs import matches


class Triage(StrEnum):
    """Where a failing case stands; a pull request fails for the first two."""

    NEW = "new"
    UNKNOWN = "unknown"
    PRE_EXISTING = "pre-existing"
    FIXED = "fixed"
    FLAKY = "flaky"
    HOST = "host"

    @property
    def blocks(self) -> bool:
        """Whether it fails a pull request that moves pins."""
        return self in (Triage.NEW, Triage.UNKNOWN)


def triage(case: str, judged: Judged, sides: Mapping[str, Side], again: Mapping[str, Side]) -> Triage | None:
    """The label of a case of two sides, None where nothing failed.

    Args:
        sides: `old` and `new`; `new` alone where a golden stood in for the other.
        again: one more run of each of them.

    Raises:
        ObservationError: a side's tensors cannot be read.
    """
    if judged.verdict is Verdict.DRIFT:
        return Triage.HOST
    if not judged.verdict.fails:
        return None
    if _is_flaky(case, judged, sides, again):
        return Triage.FLAKY
    if judged.verdict is Verdict.STALE:
        return Triage.FIXED
    if judged.verdict is Verdict.BROKEN:
        return _of_broken(sides)
    if judged.verdict is Verdict.BOTH_RAISE:
        return Triage.PRE_EXISTING if all(found.old == found.new for found in judged.undeclared) else Triage.NEW
    ended = all(found.path in ("exception", "unavailable") and found.kind == "removed" for found in judged.undeclared)
    return Triage.FIXED if ended else Triage.NEW


def triage_check(
    case: str, who: str, judged: Judged, side: Side, again: Side | None, old: Judged | None
) -> Triage | None:
    """The label of a check of one stack, None where nothing failed.

    Args:
        who: `old`, `new`, or the name of a stack.
        old: what the same check came to on the old side's stack, if it was asked.
    """
    if not judged.verdict.fails:
        return None
    if again is not None and _is_flaky(case, judged, {who: side}, {who: again}):
        return Triage.FLAKY
    if judged.verdict is Verdict.STALE:
        return Triage.FIXED
    return Triage.PRE_EXISTING if who == "old" or (old is not None and _same_failure(judged, old)) else Triage.NEW


def _same_failure(new: Judged, old: Judged) -> bool:
    if Verdict.BROKEN in (new.verdict, old.verdict):
        return new.verdict is old.verdict and _reason(new.why) == _reason(old.why)
    return set(new.undeclared) <= set(old.differences)


def _of_broken(sides: Mapping[str, Side]) -> Triage:
    old, new = (broken_of(sides[name]) if name in sides else None for name in ("old", "new"))
    if old is None and new is not None:
        return Triage.NEW
    # Nothing is known of the new pins where the old ones gave nothing to compare them with.
    alike = old is not None and new is not None and _reason(old) == _reason(new)
    return Triage.PRE_EXISTING if alike else Triage.UNKNOWN


def _reason(told: str) -> str:
    """Why a side gave nothing, without the side."""
    return told.partition(": ")[2]


def _is_flaky(case: str, judged: Judged, sides: Mapping[str, Side], again: Mapping[str, Side]) -> bool:
    """Whether everything that the verdict fails for differs between two runs of one side too."""
    pairs = [(sides[name], run) for name, run in again.items()]
    if any(_ended_otherwise(first, second) for first, second in pairs):
        return True
    if judged.verdict is Verdict.BROKEN:
        return False
    if judged.verdict is Verdict.BOTH_RAISE:
        differ = any(found.old != found.new for found in judged.undeclared)
        return differ and any(describe(first.exception) != describe(second.exception) for first, second in pairs)
    moved = {path for first, second in pairs for path in _moved(case, first, second)}
    if judged.verdict is Verdict.STALE:
        return any(matches(change.path, path) for change in judged.stale for path in moved)
    tensors = {tensor.name for rank in judged.tensors for tensor in rank}
    if tensors and len(again) == len(sides) == 2:
        moved = moved - tensors | (tensors - _different_beyond_repeats(case, sides, again))
    return _names(judged.undeclared) <= moved


def _ended_otherwise(first: Side, second: Side) -> bool:
    """Whether one run of a side gave an answer, or raised, and the other did not."""
    answered = [(broken_of(side) is None, side.unavailable is None, side.exception is None) for side in (first, second)]
    return answered[0] != answered[1]


def _moved(case: str, first: Side, second: Side) -> set[str]:
    """What differs between two runs of one side, bit for bit."""
    if first.exception or broken_of(first) or first.unavailable:
        return set()
    return _names(judge(case, first, second, Ledger()).undeclared)


def _different_beyond_repeats(case: str, sides: Mapping[str, Side], again: Mapping[str, Side]) -> set[str]:
    """What differs between the sides even if the spread of either side's own runs counts as noise."""
    widened = {
        name: replace(side, repeats=[*side.repeats, again[name].ranks]) if again[name].ranks else side
        for name, side in sides.items()
    }
    there = judge(case, widened["old"], sides["new"], Ledger()).undeclared
    back = judge(case, replace(widened["new"], name="old"), replace(sides["old"], name="new"), Ledger()).undeclared
    return _names(there) & _names(back)


def _names(differences: Iterable[Difference]) -> set[str]:
    """Paths without the rank, which depends on how many ranks show them."""
    return {found.path.rpartition(": ")[2] for found in differences}
