"""Which pin brings a difference: pins of the new side are put into the old one, alone and in minimal groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.bisect.focus import Focus
from harness.bisect.search import Answer
from harness.compare import Ledger, Side, judge
from harness.explain.minimal import Minimal, Shows

Swapped = Callable[[frozenset[str]], Side]
"""Observes the case on the old side with these distributions pinned as on the new one."""


@dataclass(frozen=True)
class Guilty:
    """The pins that bring a difference.

    Attributes:
        pins: a minimal set of distributions; put into the old side together, they bring the difference.
        restores: whether the difference is gone when they alone are put back on the new side; None if that can't run.
        tried: every combination, with what it came to and why.
    """

    pins: frozenset[str]
    restores: bool | None
    tried: Mapping[frozenset[str], tuple[Shows, str]]

    def innocent(self, changed: Sequence[str]) -> list[str]:
        """Pins that differ and play no part."""
        return [name for name in changed if name not in self.pins]


def guilty_pins(
    case: str, old: Side, focus: Focus, changed: Sequence[str], swapped: Swapped, told: Callable[[str], None]
) -> Guilty:
    """The pins that bring the difference in focus.

    Args:
        old: the case on the old side as it is.
        changed: distributions whose pins differ between the sides.
        swapped: see `Swapped`; all of `changed` are the new side.
    """
    reasons: dict[frozenset[str], str] = {}

    def shows(pins: frozenset[str]) -> Shows:
        answer, reasons[pins] = focus.answer(judge(case, old, swapped(pins), Ledger()))
        told(f"  {' + '.join(sorted(pins))}: {_OUTCOMES[answer]} {reasons[pins]}".rstrip())
        return _OUTCOMES[answer]

    search = Minimal(shows)
    pins = search.find(changed)
    rest = search.try_(frozenset(changed) - pins)
    restores = None if rest is Shows.CANNOT_RUN else rest is Shows.NO
    return Guilty(pins, restores, {tried: (came, reasons[tried]) for tried, came in search.tried.items()})


_OUTCOMES = {
    Answer.GOOD: Shows.NO,
    Answer.BAD: Shows.YES,
    # Another failure or another value says nothing about this difference.
    Answer.OTHER: Shows.CANNOT_RUN,
    Answer.SKIP: Shows.CANNOT_RUN,
}
