"""Run cases on both sides and judge them: what the pytest plugin and the command line share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.cases import Case
from harness.compare import Expectation, Judged, Ledger, Side, Triage, Verdict, judge, judge_stack, triage, triage_check
from harness.golden_side import GoldenSide
from harness.goldens import Golden, GoldenError, GoldenStore, golden_differences, with_golden
from harness.observe import Observation, ObservationError
from harness.observe.observation import load
from harness.observer import Observer
from harness.outcome import Outcome, case_record
from harness.report.records import Records
from harness.schedule import LaneChoice
from harness.stacks import BuiltStack, StackUsageError
from harness.workers.protocol import EXPECTED, Limits

__all__ = ["ROLES", "Outcome", "Runner", "Sides", "new_run_folder"]

_SIDES_AT_ONCE = 3
"""Old, new, and old once more: as many as are ever asked for together; the schedule says which run at once."""
_REPEATS = 2
"""How often the old side runs again where a tensor differs; with the first run that is three (A/A)."""
_PERTURBED = (1, 2, 4)
"""Seeds of the runs with perturbed inputs; a third seed of 3 would be sqrt(4), which has a pattern."""


ROLES = ("old", "new")
"""The sides of a comparison."""


@dataclass(frozen=True)
class Sides:
    """The two stacks of a run, and how one selects them again.

    Attributes:
        options: the command-line options that select both.
        build: builds a further stack by its name, for cases that read what that one wrote.
        alone: `old` or `new` → what selects this one for `parity check-stack`.
    """

    old: BuiltStack | GoldenSide
    new: BuiltStack
    options: str = ""
    build: Callable[[str], BuiltStack] | None = None
    alone: Mapping[str, str] = field(default_factory=dict)

    def of(self, who: str) -> BuiltStack:
        """The stack of `old` or `new`, or a further one by its name.

        Raises:
            StackError: it cannot be built.
        """
        if who == "new":
            return self.new
        if who == "old":
            if isinstance(self.old, GoldenSide):
                raise StackUsageError(f"{self.old.name} does not run here: {self.old.why}")
            return self.old
        if self.build is None:
            raise StackUsageError(f"no stack {who!r} can be built here")
        return self.build(who)

    def label(self, who: str) -> str:
        """What tells the checks of one stack from the others': its name, with the side where both have the same."""
        if who not in ROLES:
            return who
        alike = self.old.name == self.new.name and (isinstance(self.old, GoldenSide) or self.old.key != self.new.key)
        return f"{self.new.name}-{who}" if alike else getattr(self, who).name


def new_run_folder(root: Path) -> Path:
    """A new folder under `.parity/runs/`, named by the time; an ignore file keeps it out of git."""
    runs = root / ".parity" / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    (root / ".parity" / ".gitignore").write_text("*\n")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        folder = runs / (f"{stamp}-{attempt}" if attempt else stamp)
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise RuntimeError(f"no free run folder in {runs}")


class Runner:
    """Cases of one run, in one process of it.

    Attributes:
        sides: the two stacks.
        records: where every outcome is written.
        ledger: the declared changes, on the lane of the run.
    """

    def __init__(
        self,
        folder: Path,
        sides: Sides,
        ledger: Ledger,
        owner_pid: int,
        limits: Limits | None = None,
        *,
        goldens: GoldenStore | None = None,
        lane: LaneChoice | None = None,
        triage: bool = False,
        preload: Iterable[str] = (),
    ) -> None:
        """`triage`: whether a case that fails runs once more on each side, to tell who is to blame.

        `preload` is of the workers, see `Pool`.
        """
        self.sides = sides
        self.records = Records(folder)
        self._goldens = goldens
        self._triage = triage
        self._observer = Observer(folder, owner_pid, self.records.write, lane, limits, preload=preload)
        self.lane = self._observer.lane
        self.ledger = ledger.on(self.lane.name)
        self._threads = ThreadPoolExecutor(max_workers=_SIDES_AT_ONCE, thread_name_prefix="side")

    @property
    def _stacks(self) -> dict[str, BuiltStack]:
        old = {} if isinstance(self.sides.old, GoldenSide) else {"old": self.sides.old}
        return {**old, "new": self.sides.new}

    def start(self, options: Mapping[str, Any], filters: Sequence[str]) -> None:
        """Record what is compared.

        Args:
            options: what selects the sides, as typed.
            filters: what keeps the run from being all of its suites.
        """
        sides = {"old": _stack_record(self.sides.old), "new": _stack_record(self.sides.new)}
        self.records.write("run_started", {**sides, "options": options, "filters": filters, "lane": asdict(self.lane)})

    @property
    def _repeats(self) -> bool:
        """Whether the old side always runs twice (A/A): where that the same comes out is a claim, not a given."""
        return self.lane.name == "cuda"

    def not_run(self, case: Case, reason: str, *, area: str = "") -> Outcome:
        """Record that a case cannot run here, without trying; `area` as in `run`."""
        outcome = Outcome(case, Judged(Verdict.NOT_RUN, reason), {}, 0.0, self._options)
        return self._recorded(outcome, area)

    @property
    def _options(self) -> str:
        return " ".join(filter(None, [self.sides.options, self.lane.options]))

    def preload(self, progress: Callable[[str], None]) -> None:
        """Import the stacks at the same time, before the first case.

        Raises:
            WorkerLost: a worker cannot start.
        """
        stacks = {stack.name: stack for stack in self._stacks.values()}
        progress(f"importing {' and '.join(stacks)} …")
        jobs = {stack.name: self._threads.submit(self._observer.preload, stack) for stack in stacks.values()}
        for name, job in jobs.items():
            imported = job.result()
            progress(f"{name}: {imported.modules} modules imported in {imported.seconds:.0f} s")

    def run(
        self, case: Case, expects: Expectation | None = None, limits: Limits | None = None, *, area: str = ""
    ) -> Outcome:
        """Run a case on both sides at the same time, judge it and record it.

        Args:
            area: what the case is counted under (default: its probe).

        Raises:
            StackError: the stack that the case names to write its files cannot be built.
            ProbeError: the probe that writes them does not exist.
        """
        started = time.monotonic()
        if lacking := self.lane.lacking(case.layouts):
            return self.not_run(case, lacking, area=area)
        if isinstance(self.sides.old, GoldenSide) and case.spans:
            return self.not_run(case, f"{case.spans}; {self.sides.old.why}", area=area)
        written = self._written(case, limits, self._stacks)
        sides = self._both(case, limits, written)
        judged, golden = self._judged(case, sides, expects, limits)
        again: dict[str, Side] = {}
        if self._repeats and "old" in sides:
            again = self._again(case, {"old": sides["old"]}, limits)
            judged = _with_repeat(judged, sides["old"], again["old"])
        label = None
        if self._triage and judged.verdict.fails:
            again |= self._again(case, {name: side for name, side in sides.items() if name not in again}, limits)
        if self._triage:
            label = _told(lambda: triage(case.id, judged, sides, again))
        seconds = time.monotonic() - started
        return self._recorded(Outcome(case, judged, sides, seconds, self._options, golden=golden, triage=label), area)

    def _again(self, case: Case, sides: Mapping[str, Side], limits: Limits | None) -> dict[str, Side]:
        """One more run of each of some sides, reading what the first one read."""
        jobs = {
            name: self._threads.submit(
                self._observer.side, f"{name}-again", self.sides.of(name), case, limits, reads=side.reads
            )
            for name, side in sides.items()
        }
        return {name: job.result() for name, job in jobs.items()}

    def _both(self, case: Case, limits: Limits | None, written: Mapping[str, Side]) -> dict[str, Side]:
        """Both sides, which set no config field back but keep what they resolved, for the records."""
        jobs = {
            name: self._threads.submit(
                self._observer.side, name, stack, case, limits, reads=written.get(name), restored={}
            )
            for name, stack in self._stacks.items()
        }
        return {name: job.result() for name, job in jobs.items()}

    def check(self, case: Case, who: str, limits: Limits | None = None, *, area: str = "") -> Outcome:
        """Run a check of one stack (`old`, `new` or one by its name), judge it and record it; `area` as in `run`.

        Raises:
            StackError: a stack that is named cannot be built.
        """
        started = time.monotonic()
        reads = self._written(case, limits, [who]).get(who)
        side = self._observer.side(who, self.sides.of(who), case, limits, reads=reads)
        judged = self._checked(case, side)
        label = None
        if self._triage and judged.verdict.fails:
            again = self._again(case, {who: side}, limits)[who]
            old = self._checked_on_old(case, limits) if who == "new" else None
            label = _told(lambda: triage_check(case.id, who, judged, side, again, old))
        selected, stack = self.sides.alone.get(who, who), self.sides.label(who)
        seconds = time.monotonic() - started
        return self._recorded(Outcome(case, judged, {who: side}, seconds, selected, stack, triage=label), area)

    def _checked(self, case: Case, side: Side) -> Judged:
        try:
            return judge_stack(case.id, expected_side(side), side, self.ledger)
        except ObservationError as error:
            return Judged(Verdict.BROKEN, str(error))

    def _checked_on_old(self, case: Case, limits: Limits | None) -> Judged | None:
        """What the same check comes to on the old side's stack; None where that is the same one, or does not run."""
        old = self.sides.old
        if isinstance(old, GoldenSide) or old.key == self.sides.new.key:
            return None
        # Its own folder: another process may be running the old side's own check of that name.
        slug = f"{case.slug}-of-old"
        reads = self._written(case, limits, ["old"], slug).get("old")
        return self._checked(case, self._observer.side("old", old, case, limits, slug, reads=reads))

    def _recorded(self, outcome: Outcome, area: str) -> Outcome:
        self.records.write("case", {"area": area or outcome.case.probe.name, **case_record(outcome)})
        return outcome

    def close(self) -> None:
        """Forget the connections of this process."""
        self._threads.shutdown(cancel_futures=True)

    def stop(self) -> None:
        """End the workers of the whole run; only its owner does this."""
        self._observer.stop()
        self.close()

    def _judged(
        self, case: Case, sides: Mapping[str, Side], expects: Expectation | None, limits: Limits | None
    ) -> tuple[Judged, Golden | None]:
        """The verdict, and the golden that stood in for the old side, if one did."""
        try:
            if isinstance(self.sides.old, GoldenSide):
                return self._judged_by_golden(self.sides.old, case, sides, expects)
            judged = judge(case.id, sides["old"], sides["new"], self.ledger, expects)
            if any(judged.tensors) and judged.verdict is Verdict.REGRESSION:
                floor = self._with_floor(case, sides["old"], self.sides.old, limits)
                judged = judge(case.id, floor, sides["new"], self.ledger, expects)
            golden = self._goldens.read(case.slug) if self._goldens and case.spans is None else None
            if golden is None or golden.versions != sides["old"].versions:
                return judged, None
            of_sides = [golden_differences(golden, sides[name].ranks) for name in ("old", "new")]
            return with_golden(judged, *of_sides), None
        except (ObservationError, GoldenError) as error:
            return Judged(Verdict.BROKEN, str(error)), None

    def _judged_by_golden(
        self, old: GoldenSide, case: Case, sides: Mapping[str, Side], expects: Expectation | None
    ) -> tuple[Judged, Golden | None]:
        golden = old.store.read(case.slug)
        return old.judge(case.id, golden, sides["new"], self.ledger, expects), golden

    def _with_floor(self, case: Case, old: Side, stack: BuiltStack, limits: Limits | None) -> Side:
        """The old side with further runs of it, which give a noise floor: as it was, and with perturbed inputs."""
        run = partial(self._observer.side, stack=stack, case=case, limits=limits, reads=old.reads)
        repeats = [run(f"old-repeat{number}") for number in range(1, _REPEATS + 1)]
        moved = [run(f"old-perturbed{seed}", perturbed=seed) for seed in _PERTURBED]
        return replace(
            old,
            repeats=[side.ranks for side in repeats if side.ranks],
            perturbed=[side.ranks for side in moved if side.ranks],
        )

    def _written(
        self, case: Case, limits: Limits | None, sides: Iterable[str], slug: str | None = None
    ) -> dict[str, Side]:
        """For each side, the run that writes what it reads, which is one run where both read the same."""
        writers = {side: writer for side in sides if (writer := case.writer(side))}
        jobs = {
            who: self._threads.submit(
                self._observer.side, f"written-by-{who}", self.sides.of(who), writer, limits, slug or case.slug
            )
            for who, writer in dict(writers.values()).items()
        }
        return {side: jobs[who].result() for side, (who, _) in writers.items()}


def _told(ask: Callable[[], Triage | None]) -> Triage | None:
    try:
        return ask()
    except ObservationError:
        return Triage.UNKNOWN  # a repeat whose tensors cannot be read says nothing


def expected_side(side: Side) -> Side:
    """A side with what its check expects in the place of what is there."""
    return replace(side, ranks=[_expected_of(rank) for rank in side.ranks])


def _expected_of(rank: Observation) -> Observation:
    if rank.folder is None or rank.exception or rank.missing:
        return replace(rank, tree={}, tensors={}, exception=None)
    expected = load(rank.folder / EXPECTED)
    return replace(rank, tree=expected.tree, tensors=expected.tensors, folder=expected.folder)


def _with_repeat(judged: Judged, old: Side, again: Side) -> Judged:
    """The verdict, with a word on what the old side gave when it ran once more, where that is something else."""
    if old.fault or old.unavailable or not old.ranks:
        return judged
    if again.fault or len(again.ranks) != len(old.ranks):
        told = f"old once more: {again.fault or again.unavailable or 'another number of ranks'}"
        return replace(judged, why=f"{judged.why}; {told}".lstrip("; "))
    unequal = {
        name
        for first, second in zip(old.ranks, again.ranks, strict=True)
        for name in first.tensors.keys() | second.tensors.keys()
        if first.tensors.get(name) != second.tensors.get(name)
    }
    if not unequal:
        return judged
    told = f"old once more differs in {len(unequal)} tensors, {min(unequal)} among them"
    return replace(judged, why=f"{judged.why}; {told}".lstrip("; "))


def _stack_record(side: BuiltStack | GoldenSide) -> Mapping[str, Any]:
    if isinstance(side, GoldenSide):
        return {"name": side.name, "key": None, "pins": [], "golden": side.why}
    return {"name": side.name, "key": side.key, "pins": [asdict(pin) for pin in side.pins], "golden": None}
