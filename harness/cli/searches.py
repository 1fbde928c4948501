"""What `parity explain` and `parity bisect` share: a case that is observed on many pins, and the walk to a culprit."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness.answers import Answers
from harness.bisect.attempts import Attempts
from harness.bisect.bisection import Bisected, Bisection
from harness.bisect.candidates import Candidate, changed_files, commits, pairs
from harness.bisect.focus import Focus
from harness.bisect.prior import Leads, Prior, leads_of, prior_of
from harness.bisect.walk import Line, PairLine, Route, Walk
from harness.cases import Case, make_case
from harness.cli.options import HowItRuns, progress, typed_parameters
from harness.observe.host import host_class
from harness.observer import Observer
from harness.probes import ProbeError
from harness.report.records import FILE, Records, RecordsError, latest_cases
from harness.runner import new_run_folder
from harness.schedule import LaneChoice
from harness.selection import settings_with
from harness.stacks import Builder, BuiltStack, Pin, Settings
from harness.workers.protocol import Limits

_WORKER_MEMORY = 3 << 30
"""Bytes that a worker with its forked ranks may take; measured at 1 to 2 GB."""


@dataclass(frozen=True)
class Held:
    """A stack that holds every pin but those that are tried."""

    stack: str
    pins: tuple[str | Pin, ...] = ()

    @property
    def words(self) -> list[str]:
        """The overrides as one types them."""
        texts = [pin if isinstance(pin, str) else pin.requested for pin in self.pins]
        return [word for text in texts for word in ("--pin", text)]


@dataclass(frozen=True)
class Hunt:
    """How a culprit is looked for; see `Bisection`."""

    wanted: str | None = None
    leads: Leads = field(default_factory=Leads)
    workers: int | None = None
    confidence: float = 0.97

    @property
    def at_a_time(self) -> int:
        """Attempts at a time."""
        return self.workers or fitting_workers()


@dataclass(frozen=True)
class Origin:
    """A case, and everything it takes to observe it on any pins."""

    case: Case
    settings: Settings
    build: Builder
    answers: Answers
    records: Records

    def attempts(self, held: Held) -> Attempts:
        """The case, on pins put into a stack."""
        return Attempts(self.answers, self.settings, self.build, held.stack, held.pins, progress)

    def walk(self, route: Route, held: Held, hunt: Hunt) -> Walk:
        """Search a route for the culprit.

        Raises:
            EndsError: an end is not what it was said to be.
            NoDifferenceError: the ends do not differ.
        """
        attempts = self.attempts(held)

        def guess(candidates: Sequence[Candidate], focus: Focus) -> Prior | None:
            named = hunt.leads if hunt.leads.fields else leads_of(focus.difference)
            return prior_of(candidates, Leads(named.fields, (*hunt.leads.files, *named.files)))

        def bisect(candidates: Sequence[Candidate]) -> Bisected:
            return Bisection(
                self.case.id,
                candidates,
                attempts,
                hunt.wanted,
                hunt.at_a_time,
                hunt.confidence,
                guess,
                progress,
            ).run()

        return route.walk(bisect)

    def files(self, walk: Walk) -> list[str]:
        """What the culprit changes; nothing where it is no single commit of a clone."""
        result = walk.result
        commit = result.culprits[0].commit if len(result.culprits) == 1 else None
        if commit is None:
            return []
        before = result.candidates[result.found.first - 1].pins
        moved = next(pin for pin in reversed(result.culprits[0].pins) if pin not in before)
        clone = self.settings.clones.get(moved.distribution)
        return changed_files(clone, commit.hash) if clone else []

    def again(self, walk: Walk, held: Held) -> str:
        """The command that shows the difference between the last good candidate and the culprit."""
        result = walk.result
        good, bad = result.candidates[result.found.first - 1], result.culprits[-1]
        words = ["parity", "compare", *shlex.split(self.case.arguments), "--old", held.stack, "--new", held.stack]
        words += held.words + shlex.split(self.answers.lane.options)
        for option, candidate in (("--old-pin", good), ("--new-pin", bad)):
            words += [word for pin in candidate.pins for word in (option, pin.requested)]
        return shlex.join(words)

    def about(self, held: Held) -> dict[str, str]:
        """The stack, its pins and the host."""
        pins = self.settings.stack(held.stack, held.pins).pins
        told = {name: pin.requested.removeprefix(name) for name, pin in pins.items()}
        return {"stack": held.stack, **told, **host_class()}


def fitting_workers() -> int:
    """As many as processors and memory allow; importing, the most of an attempt, keeps one processor busy."""
    return max(1, min(os.cpu_count() or 1, psutil.virtual_memory().available // _WORKER_MEMORY))


@contextmanager
def origin_of(case: Case, build: Builder, held: Held, lane: LaneChoice, seconds: float) -> Iterator[Origin]:
    """A case to observe; its workers end with the context."""
    settings = build.settings
    folder = new_run_folder(settings.root)
    records = Records(folder)
    observer = Observer(folder, os.getpid(), records.write, lane, Limits(seconds=seconds))

    def writer(who: str) -> BuiltStack:
        chosen = settings.stack(held.stack, held.pins) if who in ("old", "new") else settings.stack(who)
        return build(chosen)

    with stopping(observer):
        yield Origin(case, settings, build, Answers(settings.cache / "answers", case, observer, writer), records)


@contextmanager
def stopping(observer: Observer) -> Iterator[None]:
    """End an observer's workers with the context, and whatever waits for them; say how to go on after Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        progress("interrupted; what was observed is kept, and the same command goes on from there")
        raise
    finally:
        observer.stop()


def named_case(
    name: str,
    parameters: list[str] | None,
    how: HowItRuns | None = None,
    project: Path | None = None,
    lane: str = "cpu",
) -> Case:
    """A case by its probe, or by its id as an earlier run recorded it.

    Raises:
        ProbeError: no such probe, or no run here has such a case.
    """
    how = how or HowItRuns()
    if "[" not in name:
        typed: dict[str, Any] = typed_parameters(parameters or [])
        return make_case(name, typed, lane, how.layout, written_by=how.written_by, written_layout=how.written_layout)
    if parameters:
        raise ProbeError(f"{name} is a case id, which has its parameters in it; leave out {parameters[0]!r}")
    wanted = name.partition("@")[0]
    for record in _recorded(settings_with(None, project)):
        if record["case"].partition("@")[0] == wanted:
            layouts = record["layout"], record.get("old_layout") or record["layout"]
            return make_case(record["probe"], record["parameters"], lane, *layouts, **record.get("written", {}))
    raise ProbeError(f"no run here has a case {name!r}; type its probe and parameters: PROBE KEY=VALUE … --layout …")


def _recorded(settings: Settings) -> Iterator[dict[str, Any]]:
    """The cases of every run, the latest run first."""
    for file in sorted((settings.root / ".parity" / "runs").glob(f"*/{FILE}"), reverse=True):
        try:
            yield from latest_cases(Records(file.parent))
        except RecordsError:
            continue  # a run of another version, or one that was cut: its cases are looked for elsewhere


def commit_route(
    axis: str, good: str, bad: str, clone: Path, core: Path | None = None, *, first_parent: bool = True
) -> Route:
    """The commits of a clone; with a clone of Megatron-Core, Bridge's together with what they record of it.

    Raises:
        StackUsageError: see `commits` and `pairs`.
    """
    if core is not None:
        return PairLine(pairs(clone, good, bad), clone, core)
    return Line(axis, commits(axis, clone, good, bad, first_parent=first_parent))
