"""Run cases on both sides and judge them: what the pytest plugin and the command line share."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.cases import Case
from harness.compare import Expectation, Judged, Ledger, Side, Verdict, judge, judge_stack
from harness.golden_side import GoldenSide
from harness.goldens import UNRAISED, Golden, GoldenError, GoldenStore, golden_differences, with_golden
from harness.layouts import layout_named
from harness.observe import Observation, ObservationError
from harness.observe.observation import load
from harness.probes import ProbeError
from harness.report.records import Records
from harness.schedule import LaneChoice, Schedule, ScheduleStopped, TooFewError
from harness.stacks import BuiltStack, StackUsageError
from harness.workers.pool import Pool, WorkerLost
from harness.workers.protocol import EXPECTED, Limits, Reply, Request, hand_over

_OUTPUT_LINES = 15
_DIFFERENCE_LINES = 30
_TENSOR_RECORDS = 20
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


@dataclass(frozen=True)
class Outcome:
    """What one case came to.

    Attributes:
        options: what selects the stacks again.
        stack: of a check of one stack, what tells it from the same check of another.
        golden: what stood in for the old side.
    """

    case: Case
    judged: Judged
    sides: Mapping[str, Side]
    seconds: float
    options: str = ""
    stack: str = ""
    golden: Golden | None = None

    @property
    def id(self) -> str:
        """The case's id; `id@stack` for a check of one stack."""
        return f"{self.case.id}@{self.stack}" if self.stack else self.case.id

    @property
    def old(self) -> Side:
        """What the old side gave; there is none where a golden stood in for it."""
        return self.sides["old"]

    @property
    def new(self) -> Side:
        """What the new side gave."""
        return self.sides["new"]

    @property
    def message(self) -> str:
        """What a reader needs of a verdict that fails: the case, the differences, the output, what to type next."""
        undeclared = self.judged.undeclared
        lines = [f"{self.id}: {self.judged.verdict} — {self.judged.why}"]
        lines += [f"  {difference}" for difference in undeclared[:_DIFFERENCE_LINES]]
        if len(undeclared) > _DIFFERENCE_LINES:
            lines.append(f"  … and {len(undeclared) - _DIFFERENCE_LINES} more, in the records")
        lines += [f"  {line}" for line in (self.judged.divergence.detail if self.judged.divergence else ())]
        lines += [f"  stale: {change.path} ({change.reason})" for change in self.judged.stale]
        for side in self.sides.values():
            if self.judged.verdict in (Verdict.BROKEN, Verdict.BOTH_RAISE) and side.output.strip():
                last = side.output.strip().splitlines()[-_OUTPUT_LINES:]
                lines += [f"  last output of {side.name} ({side.stack}):", *(f"    {line}" for line in last)]
        return "\n".join([*lines, f"  again: {self.command}"])

    @property
    def misuse(self) -> str | None:
        """What the probe said of a value that the user gave and that it does not know."""
        start = f"{ProbeError.__name__}: "
        faults = [side.fault for side in self.sides.values() if side.fault and side.fault.startswith(start)]
        return faults[0].removeprefix(start) if faults else None

    @property
    def command(self) -> str:
        """The command that runs this case alone."""
        case = self.case.arguments
        words = ["parity check-stack", self.options, case] if self.stack else ["parity compare", case, self.options]
        return " ".join(word for word in words if word)


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
        ledger: the declared changes.
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
    ) -> None:
        self.sides = sides
        self.records = Records(folder)
        self._folder = folder
        self.ledger = ledger
        self._limits = limits or Limits()
        self._goldens = goldens
        self.lane = lane or LaneChoice()
        self._schedule = Schedule(folder, self.lane.places)
        self._pool = Pool(
            folder / "workers", self.lane.name, owner_pid, self.records.write, deterministic=self.lane.deterministic
        )
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

    def preload(self, probes: tuple[str, ...], progress: Callable[[str], None]) -> None:
        """Import the stacks at the same time, before the first case.

        Raises:
            WorkerLost: a worker cannot start.
        """
        stacks = {stack.name: stack for stack in self._stacks.values()}
        progress(f"importing {' and '.join(stacks)} …")
        jobs = {stack.name: self._threads.submit(self._pool.preload, stack, probes) for stack in stacks.values()}
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
        limits = limits or self._limits
        if isinstance(self.sides.old, GoldenSide) and case.spans:
            return self.not_run(case, f"{case.spans}; {self.sides.old.why}", area=area)
        written = self._written(case, limits, self._stacks)
        sides = self._both(case, limits, written)
        judged, golden = self._judged(case, sides, expects, limits)
        if self._repeats and "old" in sides:
            again = self._side("old-again", self.sides.of("old"), case, limits, reads=written.get("old"))
            judged = _with_repeat(judged, sides["old"], again)
        outcome = Outcome(case, judged, sides, time.monotonic() - started, self._options, golden=golden)
        return self._recorded(outcome, area)

    def _both(self, case: Case, limits: Limits, written: Mapping[str, Side]) -> dict[str, Side]:
        jobs = {
            name: self._threads.submit(self._side, name, stack, case, limits, reads=written.get(name))
            for name, stack in self._stacks.items()
        }
        return {name: job.result() for name, job in jobs.items()}

    def check(self, case: Case, who: str, limits: Limits | None = None, *, area: str = "") -> Outcome:
        """Run a check of one stack (`old`, `new` or one by its name), judge it and record it; `area` as in `run`.

        Raises:
            StackError: a stack that is named cannot be built.
        """
        started = time.monotonic()
        limits = limits or self._limits
        reads = self._written(case, limits, [who]).get(who)
        side = self._side(who, self.sides.of(who), case, limits, reads=reads)
        try:
            judged = judge_stack(case.id, _expected(side), side, self.ledger)
        except ObservationError as error:
            judged = Judged(Verdict.BROKEN, str(error))
        selected, label = self.sides.alone.get(who, who), self.sides.label(who)
        outcome = Outcome(case, judged, {who: side}, time.monotonic() - started, selected, label)
        return self._recorded(outcome, area)

    def _recorded(self, outcome: Outcome, area: str) -> Outcome:
        self.records.write("case", {"area": area or outcome.case.probe.name, **_case_record(outcome)})
        return outcome

    def close(self) -> None:
        """Forget the connections of this process."""
        self._threads.shutdown(cancel_futures=True)

    def stop(self) -> None:
        """End the workers of the whole run; only its owner does this."""
        self._schedule.stop()
        self._pool.stop()
        self.close()

    def _judged(
        self, case: Case, sides: Mapping[str, Side], expects: Expectation | None, limits: Limits
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

    def _with_floor(self, case: Case, old: Side, stack: BuiltStack, limits: Limits) -> Side:
        """The old side with further runs of it, which give a noise floor: as it was, and with perturbed inputs."""
        run = partial(self._side, stack=stack, case=case, limits=limits, reads=old.reads)
        repeats = [run(f"old-repeat{number}") for number in range(1, _REPEATS + 1)]
        moved = [run(f"old-perturbed{seed}", perturbed=seed) for seed in _PERTURBED]
        return replace(
            old,
            repeats=[side.ranks for side in repeats if side.ranks],
            perturbed=[side.ranks for side in moved if side.ranks],
        )

    def _written(self, case: Case, limits: Limits, sides: Iterable[str]) -> dict[str, Side]:
        """For each side, the run that writes what it reads, which is one run where both read the same."""
        writers = {side: writer for side in sides if (writer := case.writer(side))}
        jobs = {
            who: self._threads.submit(self._side, f"written-by-{who}", self.sides.of(who), writer, limits, case.slug)
            for who, writer in dict(writers.values()).items()
        }
        return {side: jobs[who].result() for side, (who, _) in writers.items()}

    def _side(
        self,
        name: str,
        stack: BuiltStack,
        case: Case,
        limits: Limits,
        slug: str | None = None,
        *,
        reads: Side | None = None,
        perturbed: int = 0,
    ) -> Side:
        """Run one side, or what writes the files of one.

        Args:
            slug: of the case that reads the files, where this run writes them.
            reads: the run that wrote the files this one reads; if it left none, this side ends as that run did.
        """
        folder = self._folder / "cases" / (slug or case.slug) / name
        layout = case.layout_of("new" if name == "new" else "old")
        shutil.rmtree(folder, ignore_errors=True)
        request = Request(case.probe.reference, dict(case.parameters), layout, str(folder), limits, perturbed)
        if reads is not None:
            ended = _without_files(reads)
            if ended:
                return replace(ended, name=name, stack=stack.name, versions=stack.versions, layout=layout, reads=reads)
            hand_over(folder.parent / reads.name, folder)
        try:
            with self._schedule.hold(self.lane.needed(layout)) as places:
                devices = places if self.lane.gpus else ()
                reply = self._pool.run(stack, replace(request, devices=devices))
        except TooFewError as error:
            return Side(name, stack.name, stack.versions, unavailable=str(error), layout=layout, reads=reads)
        except (WorkerLost, ScheduleStopped) as error:
            return Side(name, stack.name, stack.versions, fault=str(error), layout=layout, reads=reads)
        output = "".join(rank.output for rank in reply.ranks)
        side = Side(name, stack.name, stack.versions, output=output, seconds=reply.seconds, layout=layout, reads=reads)
        unavailable = next((rank.unavailable for rank in reply.ranks if rank.unavailable), None)
        fault = _first_fault(reply)
        if fault or unavailable:
            return replace(side, fault=fault, unavailable=unavailable)
        try:
            ranks = [load(folder / f"rank{number}") for number in range(layout_named(layout).world_size)]
        except ObservationError as error:
            return replace(side, fault=str(error))
        return replace(side, ranks=ranks)


def _expected(side: Side) -> Side:
    """A side with what its check expects in the place of what is there."""
    return replace(side, ranks=[_expected_of(rank) for rank in side.ranks])


def _expected_of(rank: Observation) -> Observation:
    if rank.folder is None or rank.exception or rank.missing:
        return replace(rank, tree={}, tensors={}, exception=None)
    expected = load(rank.folder / EXPECTED)
    return replace(rank, tree=expected.tree, tensors=expected.tensors, folder=expected.folder)


def _without_files(writer: Side) -> Side | None:
    """How a side ends that has nothing to read: as the run that was to write it did. None where there are files."""
    missing = next((rank.missing for rank in writer.ranks if rank.missing), ())
    fault = writer.fault or (f"no evidence: {'; '.join(missing)}" if missing else None)
    if fault:
        return replace(writer, fault=f"{fault} ({writer.name})")
    return writer if writer.exception or writer.unavailable else None


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


def _first_fault(reply: Reply) -> str | None:
    """The fault of the rank that ended first; a rank that was cut because of it comes later."""
    faulty = [rank for rank in reply.ranks if rank.fault]
    if not faulty:
        return None
    first = min(faulty, key=lambda rank: rank.ended_at)
    told = f"rank {first.rank} {first.fault}" if len(reply.ranks) > 1 else f"{first.fault}"
    others = [f"rank {rank.rank} {rank.fault}" for rank in faulty if rank is not first]
    return "; ".join([told, *others])


def _case_record(outcome: Outcome) -> Mapping[str, Any]:
    judged = outcome.judged
    return {
        "case": outcome.id,
        "stack": outcome.stack,
        "probe": outcome.case.probe.reference,
        "parameters": dict(outcome.case.parameters),
        "layout": outcome.case.layout,
        "old_layout": outcome.case.layout_of("old"),
        "written": outcome.case.written,
        "lane": outcome.case.lane,
        "verdict": str(judged.verdict),
        "why": judged.why,
        "command": outcome.command,
        "seconds": round(outcome.seconds, 3),
        "differences": [asdict(difference) for difference in judged.differences],
        "undeclared": [asdict(difference) for difference in judged.undeclared],
        "declared_by": [asdict(change) for change in judged.declared_by],
        "stale": [asdict(change) for change in judged.stale],
        "masked": [asdict(mask) for mask in judged.masked],
        "drift": [asdict(difference) for difference in judged.drift],
        "tensors": [
            {"rank": rank, "kind": tensor.kind, "message": tensor.message}
            for rank, tensors in enumerate(judged.tensors)
            for tensor in tensors[:_TENSOR_RECORDS]
        ],
        "divergence": asdict(judged.divergence) if judged.divergence else None,
        "slug": outcome.case.slug,
        "sides": [*_golden_record(outcome.golden), *(_side_record(side) for side in outcome.sides.values())],
        "evidence": bool(outcome.sides) and all(_proven(side.ranks) for side in outcome.sides.values()),
        "host": os.uname().nodename,
    }


def _stack_record(side: BuiltStack | GoldenSide) -> Mapping[str, Any]:
    if isinstance(side, GoldenSide):
        return {"name": side.name, "key": None, "pins": [], "golden": side.why}
    return {"name": side.name, "key": side.key, "pins": [asdict(pin) for pin in side.pins], "golden": None}


def _golden_record(golden: Golden | None) -> list[Mapping[str, Any]]:
    """What the record of a case says of an old side that a golden stood in for."""
    if golden is None:
        return []
    raised = next((rank.exception for rank in golden.ranks if rank.exception != UNRAISED), None)
    exception = {"described": raised} if raised else None
    return [
        {
            "side": "old",
            "stack": golden.provenance["stack"],
            "versions": dict(golden.versions),
            "seconds": 0.0,
            "fault": None,
            "exception": exception,
            "golden": golden.history[-1],
        }
    ]


def _side_record(side: Side) -> Mapping[str, Any]:
    first = side.ranks[0] if side.ranks else None
    return {
        "side": side.name,
        "stack": side.stack,
        "versions": dict(side.versions),
        "seconds": round(side.seconds, 3),
        "fault": side.fault,
        "exception": asdict(side.exception) if side.exception else None,
        "entered": [asdict(entry) for entry in first.entered] if first else [],
        "stand_ins": first.environment["stand_ins"] if first else [],
        "set_by_hand": first.environment["set_by_hand"] if first else {},
        "host": first.environment["host"] if first else {},
        "settings": first.environment.get("settings", {}) if first else {},
        "gpu_memory": [rank.environment["gpu_memory"] for rank in side.ranks if "gpu_memory" in rank.environment],
        "provenance": dict(first.provenance) if first else {},
        "output": side.output[-4000:],
        "reads": _side_record(side.reads) if side.reads else None,
    }


def _proven(ranks: Sequence[Observation]) -> bool:
    return bool(ranks) and all(not rank.missing for rank in ranks)
