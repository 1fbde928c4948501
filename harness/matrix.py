"""Cases on every combination of pins: which combinations run them, and how each differs from one that runs most.

Nothing is kept here: what was observed before is read back (`harness.answers`), so an interrupted matrix goes on where
it stopped when the same command is given again.
"""

from __future__ import annotations

import itertools
import string
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.answers import Answers
from harness.cases import Case
from harness.compare import Difference, Judged, Ledger, Side, Verdict, judge, judge_stack
from harness.compare.circumstances import PROVENANCE
from harness.runner import expected_side
from harness.stacks import BuiltStack, Pin, Settings, Stack, StackError, StackUsageError, parse_override

_DECIDES = "megatron-bridge"
"""What the pins that no axis names follow: Megatron-Core and transformers have to fit Megatron-Bridge."""


class Cell(StrEnum):
    """What one case came to on one combination, next to the base; best first."""

    RUNS = "runs"
    SAME = "same"
    SOURCES = "sources"
    DECLARED = "declared"
    DIFFERS = "differs"
    RAISES = "raises"
    BROKEN = "broken"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Axis:
    """A distribution and its pins, in the order given."""

    distribution: str
    pins: tuple[Pin, ...]


@dataclass(frozen=True)
class Combination:
    """One pin of every axis, in a stack that holds the others.

    Attributes:
        letter: what a reader calls it.
        holder: the declared stack that the other pins come from.
    """

    letter: str
    pins: tuple[Pin, ...]
    stack: Stack
    holder: str

    @property
    def label(self) -> str:
        """The pins of the axes: `verl 0.8.0 + megatron-bridge 0.5.1`."""
        return " + ".join(f"{pin.distribution} {value_of(pin)}" for pin in self.pins)


@dataclass(frozen=True)
class Observed:
    """What the cases gave on one combination.

    Attributes:
        why: why it could not be built; empty if it was.
        sides: case id → what it gave.
    """

    combination: Combination
    built: BuiltStack | None
    why: str
    sides: Mapping[str, Side] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """One case on one combination; `judged` is None where there is nothing to compare it with."""

    cell: Cell
    side: Side
    judged: Judged | None

    @property
    def why(self) -> str:
        """What a reader wants to know of it, in one line."""
        raised = self.side.exception
        if self.judged is not None and self.judged.undeclared and not raised:
            first, *others = sorted(self.judged.undeclared, key=_by_source)
            return f"{first}" + (f" (+{len(others)} more)" if others else "")
        told = self.side.fault or self.side.unavailable
        return told or (f"{raised.type.rpartition(':')[2]}: {raised.message}".partition("\n")[0] if raised else "")


def parse_axis(distribution: str, values: str) -> Axis:
    """`0.8.0,git:../verl@main` for a distribution: releases, git revisions and paths.

    Raises:
        StackUsageError: a value is no pin, or there is none.
    """
    pins = tuple(parse_override(_override(distribution, value.strip())) for value in values.split(","))
    if len(set(pins)) < len(pins):
        raise StackUsageError(f"{distribution}: {values} names a pin twice.")
    return Axis(distribution, pins)


def combinations(axes: Sequence[Axis], settings: Settings, holder: str | None = None) -> list[Combination]:
    """Every combination of the axes' pins, the last axis fastest.

    The other pins come from `holder`, else from the declared stack that fits a combination best: it has the same
    Megatron-Bridge, then the most of the axes' pins, then comes first in pyproject.toml.

    Raises:
        StackUsageError: a stack is not well formed.
    """
    found = []
    for number, pins in enumerate(itertools.product(*(axis.pins for axis in axes))):
        name = holder or _fitting(pins, settings)
        found.append(Combination(_letters(number), pins, settings.stack(name, pins), name))
    return found


def observe(
    combination: Combination,
    cases: Sequence[Case],
    answers: Mapping[str, Answers],
    build: Callable[[Stack], BuiltStack],
    told: Callable[[str], None],
) -> Observed:
    """What every case gives on a combination; its worker is ended afterwards."""
    try:
        built = build(combination.stack)
    except StackError as error:
        told(f"{combination.letter} {combination.label}: cannot be built: {error}")
        return Observed(combination, None, f"{error}")
    started = time.monotonic()
    sides: dict[str, Side] = {}
    try:
        for number, case in enumerate(cases, 1):
            sides[case.id] = answers[case.id].side(built, told=told)
            told(f"{combination.letter} {combination.label}: {number} of {len(cases)} cases, {case.id}")
    finally:
        next(iter(answers.values())).release(built)
    told(f"{combination.letter} {combination.label}: done in {time.monotonic() - started:.0f} s")
    return Observed(combination, built, "", sides)


def base_of(observed: Sequence[Observed]) -> Observed:
    """What the others are compared with: the first combination on which the most cases run."""
    return max(observed, key=lambda each: sum(_runs(side) for side in each.sides.values()))


def compared(case: Case, base: Observed, other: Observed, ledger: Ledger) -> Found:
    """A case on one combination next to the base; a check of one stack is judged by itself.

    Raises:
        ObservationError: tensors cannot be read.
    """
    side = other.sides[case.id]
    if side.fault:
        return Found(Cell.BROKEN, side, None)
    if side.unavailable:
        return Found(Cell.NOT_RUN, side, None)
    if case.probe.one_stack:
        judged = judge_stack(case.id, expected_side(side), side, ledger)
    elif side.exception:
        return Found(Cell.RAISES, side, None)
    elif other is base or case.id not in base.sides or not _runs(base.sides[case.id]):
        return Found(Cell.RUNS, side, None)
    else:
        judged = judge(case.id, base.sides[case.id], side, ledger)
    return Found(_cell(side, judged), side, judged)


def value_of(pin: Pin) -> str:
    """A pin without its distribution: `0.8.0`, `git:…@main`."""
    return pin.requested.removeprefix(pin.distribution).lstrip("=")


def held(combination: Combination) -> str:
    """The pins that no axis names, and where they come from."""
    named = {pin.distribution for pin in combination.pins}
    rest = [f"{name} {value_of(pin)}" for name, pin in combination.stack.pins.items() if name not in named]
    return f"{', '.join(rest)} (as {combination.holder})" if rest else f"nothing else (as {combination.holder})"


def _by_source(found: Difference) -> bool:
    return found.path.startswith(PROVENANCE)


def _runs(side: Side) -> bool:
    return not (side.fault or side.unavailable or side.exception)


def _cell(side: Side, judged: Judged) -> Cell:
    if side.exception:
        return Cell.RAISES
    if judged.verdict is Verdict.BROKEN:
        return Cell.BROKEN
    # Where functions come from is told apart from what they give.
    if not all(map(_by_source, judged.undeclared)):
        return Cell.DIFFERS
    if not all(map(_by_source, judged.differences)):
        return Cell.DECLARED
    return Cell.SOURCES if judged.undeclared else Cell.SAME


def _fitting(pins: Iterable[Pin], settings: Settings) -> str:
    wanted = {pin.distribution: pin for pin in pins}

    def fit(name: str) -> tuple[bool, int, bool]:
        has = settings.stack(name).pins
        alike = [key for key, pin in wanted.items() if has.get(key) == pin]
        return _DECIDES in alike, len(alike), name == settings.new

    return max(settings.stacks, key=fit)


def _override(distribution: str, value: str) -> str:
    return f"{distribution}={value}" if value.startswith(("git:", "path:")) else f"{distribution}=={value}"


def _letters(number: int) -> str:
    """`A` to `Z`, then `AA`, `AB` and so on."""
    more, last = divmod(number, len(string.ascii_uppercase))
    return (_letters(more - 1) if more else "") + string.ascii_uppercase[last]
