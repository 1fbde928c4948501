"""From an axis and two ends to a culprit: one bisection, or several where Megatron-Bridge moves with Megatron-Core.

Bridge records the Megatron-Core commit it was built with. Such pairs are walked along the bumps of that record first,
then inside the guilty bump; if the bump itself is guilty, one repository is held and the other walked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.bisect.bisection import Bisected, EndsError
from harness.bisect.candidates import Candidate, Pair, bumps, commits, held, pair_candidate
from harness.bisect.focus import NoDifferenceError
from harness.bisect.search import rounds_needed

Bisect = Callable[[Sequence[Candidate]], Bisected]
"""Runs one bisection along candidates, the first good and the last bad."""


@dataclass(frozen=True)
class Step:
    """One bisection of a walk."""

    what: str
    result: Bisected


@dataclass
class Walk:
    """What was walked, in order; the last step has the culprit.

    Attributes:
        note: why the walk ends where it does, if that is not a single commit.
    """

    steps: list[Step] = field(default_factory=list)
    note: str = ""

    @property
    def result(self) -> Bisected:
        """The last bisection."""
        return self.steps[-1].result

    def add(self, what: str, result: Bisected) -> Bisected:
        """Keep one more step and return its result."""
        self.steps.append(Step(what, result))
        return result


class Route(Protocol):
    """What lies between two ends."""

    def walk(self, bisect: Bisect) -> Walk:
        """Search it, in one bisection or several.

        Raises:
            EndsError: an end is not what it was said to be.
            NoDifferenceError: the ends do not differ.
        """

    def told(self, workers: int) -> str:
        """How long a search it is, in one line."""


@dataclass(frozen=True)
class Line:
    """One distribution moves, along releases or commits."""

    axis: str
    candidates: Sequence[Candidate]

    def walk(self, bisect: Bisect) -> Walk:
        """One bisection; see `Route`."""
        walk = Walk()
        walk.add(f"{len(self.candidates) - 1} candidates of {self.axis}", bisect(self.candidates))
        return walk

    def told(self, workers: int) -> str:
        """See `Route`."""
        return f"{len(self.candidates) - 1} candidates, {_rounds(len(self.candidates), workers)}"


@dataclass(frozen=True)
class PairLine:
    """Megatron-Bridge moves together with the Megatron-Core commits that it records."""

    pairs: Sequence[Pair]
    bridge: Path
    core: Path

    def walk(self, bisect: Bisect) -> Walk:
        """The bumps of Megatron-Core, then the commits up to the guilty one, then the bump split; see `Route`."""
        walk = Walk()
        heads = bumps(self.pairs)
        found = walk.add(f"{len(heads) - 1} bumps of Megatron-Core", bisect(self._together(heads))).found
        inside = self.pairs[self.pairs.index(heads[found.first - 1]) : self.pairs.index(heads[found.last]) + 1]
        if len(inside) > 2:
            step = walk.add(f"{len(inside) - 1} commits of Megatron-Bridge", bisect(self._together(inside)))
            inside = inside[step.found.first - 1 : step.found.last + 1]
        before, after = inside[0], inside[-1]
        return walk if before.core == after.core else _split(walk, before, after, self.bridge, self.core, bisect)

    def told(self, workers: int) -> str:
        """See `Route`."""
        steps = len(bumps(self.pairs))
        return (
            f"{len(self.pairs) - 1} candidates, pairs with the Megatron-Core commits they record; "
            f"{steps - 1} bumps first, {_rounds(steps, workers)}, then inside one"
        )

    def _together(self, found: Sequence[Pair]) -> list[Candidate]:
        return [pair_candidate(pair, self.bridge, self.core) for pair in found]


def _split(walk: Walk, before: Pair, after: Pair, bridge: Path, core: Path, bisect: Bisect) -> Walk:
    """Which half of a guilty bump it is: Megatron-Core's commits with Bridge held, or Bridge's own change."""
    walked = commits("megatron-core", core, before.core, after.core)
    reasons = []
    for side in (before, after):
        candidates = [held(side.bridge, item.commit.hash, bridge, core) for item in walked if item.commit]
        candidates = [_about(candidate, item, side) for candidate, item in zip(candidates, walked, strict=True)]
        try:
            walk.add(
                f"{len(candidates) - 1} commits of Megatron-Core, Bridge held at {side.bridge.hash[:12]}",
                bisect(candidates),
            )
        except (EndsError, NoDifferenceError) as error:
            reasons.append(f"with Bridge held at {side.bridge.hash[:12]}: {error}")
            continue
        return walk
    walk.note = f"the bump cannot be split: {'; '.join(reasons)}"
    return walk


def _about(candidate: Candidate, core: Candidate, side: Pair) -> Candidate:
    """A candidate whose last step is a commit of Megatron-Core."""
    return Candidate(f"{core.label} (Bridge held at {side.bridge.hash[:12]})", candidate.pins, core.commit)


def _rounds(candidates: int, workers: int) -> str:
    """How many rounds a steady search of so many candidates takes."""
    return f"about {rounds_needed(candidates, workers)} rounds of {workers}"
