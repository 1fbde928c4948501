"""From an explanation to the commit: the guilty pins are bisected where there are clones, else the command is told."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.bisect.bisection import EndsError
from harness.bisect.focus import NoDifferenceError
from harness.bisect.prior import Leads
from harness.cli.options import progress
from harness.cli.searches import Held, Hunt, Origin, commit_route
from harness.explain.explanation import Explanation
from harness.report.bisected import culprit_line
from harness.stacks import Pin, StackUsageError
from harness.stacks.pins import GitPin, PathPin, ReleasePin

_BRIDGE, _CORE = "megatron-bridge", "megatron-core"


@dataclass(frozen=True)
class _Axis:
    """One distribution to bisect.

    Attributes:
        held: the stack, with the other guilty pins as on the new side.
        together: Megatron-Core moves along with Megatron-Bridge.
    """

    name: str
    ends: tuple[str, str] | None
    held: Held
    together: bool


@dataclass(frozen=True)
class Handover:
    """What is left to do after an explanation.

    Attributes:
        held: the old side's stack.
        old: distribution → pin of the old side; `new` likewise.
        bisects: search where there are clones; otherwise the command is told.
    """

    origin: Origin
    held: Held
    explanation: Explanation
    old: Mapping[str, Pin]
    new: Mapping[str, Pin]
    bisects: bool = True
    workers: int | None = None

    def lines(self) -> list[str]:
        """One line per guilty pin: the commit, or the command that finds it and why it was not run."""
        return [f"commit: {self._line(axis)}" for axis in self._axes()]

    def _axes(self) -> list[_Axis]:
        """Bridge and Core are one axis where both are guilty: one records the other."""
        guilty = self.explanation.guilty.pins
        together = {_BRIDGE, _CORE} <= guilty
        names = sorted(guilty - {_CORE} if together else guilty)
        axes = []
        for name in names:
            moving = {name, _CORE} if together and name == _BRIDGE else {name}
            others = tuple(self.new[other] for other in sorted(guilty - moving))
            held = Held(self.held.stack, (*self.held.pins, *others))
            axes.append(_Axis(name, self._ends(name), held, moving != {name}))
        return axes

    def _ends(self, name: str) -> tuple[str, str] | None:
        """Both pins as revisions; None where one is no release or commit."""
        found = [_revision(side[name]) for side in (self.old, self.new) if name in side]
        ends = [end for end in found if end is not None]
        return (ends[0], ends[1]) if len(ends) == len(("old", "new")) else None

    def _line(self, axis: _Axis) -> str:
        if axis.ends is None:
            return f"none to look for, {' → '.join(self.explanation.changed[axis.name])} names no two revisions"
        clones = self._clones(axis)
        if None in clones.values():
            return (
                f"{self._command(axis)} {' '.join(f'--clone {name}=PATH' for name, at in clones.items() if at is None)}"
            )
        if not self.bisects:
            return self._command(axis)
        try:
            return f"{self._found(axis)}; found by {self._command(axis)}"
        except (EndsError, NoDifferenceError, StackUsageError) as error:
            return f"not found, {error}; tried {self._command(axis)}"

    def _found(self, axis: _Axis) -> str:
        assert axis.ends is not None
        clones = self._clones(axis)
        moving, core = clones[axis.name], clones.get(_CORE) if axis.together else None
        assert moving is not None
        route = commit_route(axis.name, *axis.ends, moving, core)
        hunt = Hunt(self._wanted, self._leads, self.workers)
        progress(f"{axis.name}: {route.told(hunt.at_a_time)}")
        walk = self.origin.walk(route, axis.held, hunt)
        return culprit_line(walk, self.origin.files(walk))

    def _clones(self, axis: _Axis) -> dict[str, Path | None]:
        names = [axis.name, _CORE] if axis.together else [axis.name]
        return {name: self.origin.settings.clones.get(name) for name in names}

    def _command(self, axis: _Axis) -> str:
        """What finds it, as one types it."""
        assert axis.ends is not None
        words = ["parity", "bisect", *shlex.split(self.origin.case.arguments), "--axis", axis.name]
        words += ["--good", axis.ends[0], "--bad", axis.ends[1], "--stack", axis.held.stack, *axis.held.words]
        words += ["--path", self._wanted]
        words += [word for name in self._leads.fields for word in ("--field", name)]
        words += [word for name in self._leads.files for word in ("--file", name)]
        words += shlex.split(self.origin.answers.lane.options)
        words += ["--alone"] if axis.name == _BRIDGE and not axis.together else []
        return shlex.join(words)

    @property
    def _wanted(self) -> str:
        return self.explanation.focus.difference.path

    @property
    def _leads(self) -> Leads:
        """The fields that cause it, or the files that changed where it arises."""
        cause = self.explanation.cause
        fields = sorted(name.rpartition(".")[2] for name in cause.fields) if cause else []
        sources = self.explanation.sources
        return Leads(tuple(fields), sources.changed if sources else ())


def _revision(pin: Pin) -> str | None:
    match pin:
        case ReleasePin():
            return pin.version
        case GitPin():
            return pin.revision
        case PathPin():
            return None
