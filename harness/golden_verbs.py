"""What `parity golden` does: from the latest run to named files under `golden/`, and never by itself.

The source of a golden is the old side of the latest run. Before one is written, the case runs once more in a second
worker with another hash seed and import order: what changes with those is not worth keeping.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import shutil
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from harness.cases import Case, make_case
from harness.compare import Difference
from harness.goldens import GoldenError, GoldenStore, golden_differences, golden_of, host_class
from harness.layouts import layout_named
from harness.observe import Observation
from harness.observe.observation import load
from harness.report import Records, latest_cases
from harness.schedule import LaneChoice
from harness.stacks import BuiltPin, BuiltStack
from harness.workers.pool import Pool
from harness.workers.protocol import Limits, Request, hand_over

Progress = Callable[[str], None]
Recorded = Mapping[str, Any]
"""The record of one case of a run."""


@dataclass(frozen=True)
class State:
    """Where one case stands: `missing`, `same`, `drift`, `other pins` or `orphan`, and what differs."""

    case: str
    kind: str
    differences: tuple[Difference, ...] = ()


def lane_of(run: Path) -> LaneChoice:
    """The lane that a run was on."""
    lane = Records(run).start["lane"]
    return LaneChoice(**{**lane, "gpus": tuple(lane["gpus"])})


@dataclass(frozen=True)
class GoldenDesk:
    """The goldens of a lane beside the latest run.

    Attributes:
        run: folder of the run.
        store: where the goldens are.
    """

    run: Path
    store: GoldenStore

    def status(self) -> list[State]:
        """Every case of the run, and every golden that the run has no case for, sorted by id."""
        recorded = self._recorded()
        known = self.store.all()
        orphans = [State(case, "orphan") for case in known if case not in recorded]
        return sorted([*(self._state(record) for record in recorded.values()), *orphans], key=lambda state: state.case)

    def diff(self, case: str) -> State:
        """How the latest run's old side differs from the golden of one case.

        Raises:
            GoldenError: the run has no such case, or the golden cannot be used.
        """
        return self._state(self._of(self._recorded(), case))

    def missing(self) -> list[str]:
        """Cases of the run that have no golden yet and could have one."""
        return [state.case for state in self.status() if state.kind == "missing"]

    def accept(self, cases: Sequence[str], why: str, stack: BuiltStack, progress: Progress) -> list[Path]:
        """Write the goldens of exactly these cases, from the old side of the run.

        Args:
            stack: the run's old stack, built; it runs each case again.

        Raises:
            GoldenError: a case is not in the run, gave no observation there, ran on another stack, or is not
                reproducible; then nothing of that case is written, but the others are.
        """
        recorded = self._recorded()
        records = [self._of(recorded, case) for case in cases]
        old = Records(self.run).start["old"]
        if old["golden"]:
            raise GoldenError(f"{self.run.name} did not run {stack.name}, its goldens stood in for it: {old['golden']}")
        if old["key"] != stack.key:
            raise GoldenError(f"{self.run.name} ran on another {stack.name}; give the same options, or run again")
        # The second worker's folder has the same name each time, see _SecondWorker.run: acceptances take turns.
        with filelock.FileLock(self.run / "second.lock"):
            shutil.rmtree(self.run / "second", ignore_errors=True)  # of an acceptance that was cut
            second = _SecondWorker(stack, self.run / "second", lane_of(self.run))
            try:
                progress(f"importing {stack.name} once more, in another order …")
                return self._accept_each(records, why, stack, second, progress)
            finally:
                second.stop()

    def _accept_each(
        self, records: Sequence[Recorded], why: str, stack: BuiltStack, second: _SecondWorker, progress: Progress
    ) -> list[Path]:
        """Write what can be written; what can't keeps no other case from it."""
        written, refused = [], []
        for record in records:
            try:
                written.append(self._accept_one(record, why, stack, second, progress))
            except GoldenError as error:
                progress(f"{error}")
                refused.append(str(error))
        if refused:
            more = f" ({len(refused) - 1} more above)" if len(refused) > 1 else ""
            raise GoldenError(f"{refused[0]}{more}; {len(written)} other golden(s) written")
        return written

    def prune(self) -> list[str]:
        """Delete goldens of cases that no longer exist.

        Raises:
            GoldenError: the run was filtered, failed or interrupted, so it can't say which cases exist.
        """
        records = Records(self.run)
        started = records.start
        finished = next(records.read("run_finished"), None)
        if finished is None:
            raise GoldenError(f"{self.run.name} did not end: run all of suites/parity first")
        if finished["exit_code"] != 0 or started["filters"]:
            reason = f"filtered by {', '.join(started['filters'])}" if started["filters"] else "not green"
            raise GoldenError(f"{self.run.name} was {reason}: run all of suites/parity first")
        orphans = [state.case for state in self.status() if state.kind == "orphan"]
        for file in sorted(self.store.folder.glob("*.json")):
            golden = self.store.read(file.stem)
            if golden is not None and golden.case in orphans:
                self.store.remove(file.stem)
        return orphans

    def _accept_one(
        self, record: Recorded, why: str, stack: BuiltStack, second: _SecondWorker, progress: Progress
    ) -> Path:
        ranks = self._ranks(record)
        if not ranks:
            raise GoldenError(f"{record['case']} gave no observation in {self.run.name}: {record['why']}")
        kept = self.store.read(record["slug"])
        entry = {"who": getpass.getuser(), "why": why, "when": time.strftime("%Y-%m-%d"), "from": self.run.name}
        golden = golden_of(
            record["case"], ranks, _provenance(record, ranks, stack), [*(kept.history if kept else ()), entry]
        )
        again = second.run(record)
        found = golden_differences(golden, again)
        if found:
            raise GoldenError(f"{record['case']} changes with hash seed or import order: {found[0]}; nothing written")
        path = self.store.write(record["slug"], golden)
        progress(f"{record['case']} → {path}")
        return path

    def _recorded(self) -> dict[str, Recorded]:
        """Cases of the run that may have a golden: none of one stack against itself, and none that spans two."""
        cases = [record for record in latest_cases(Records(self.run)) if "slug" in record and not record.get("stack")]
        return {record["case"]: record for record in cases if _case(record).spans is None}

    def _of(self, recorded: Mapping[str, Recorded], case: str) -> Recorded:
        if case not in recorded:
            raise GoldenError(f"{self.run.name} has no case {case!r}; `parity report` lists its cases")
        return recorded[case]

    def _ranks(self, record: Recorded) -> list[Observation]:
        side = next((side for side in record["sides"] if side["side"] == "old"), None)
        if side is None or side.get("golden") or side["fault"] or record["verdict"] == "not_run":
            return []
        if side.get("reads") and side["reads"]["exception"]:
            return []  # it had nothing to read; what was raised belongs to the case that writes
        folder = self.run / "cases" / record["slug"] / "old"
        return [load(folder / f"rank{number}") for number in range(layout_named(record["layout"]).world_size)]

    def _state(self, record: Recorded) -> State:
        golden = self.store.read(record["slug"])
        ranks = self._ranks(record)
        if not ranks:
            return State(record["case"], "no observation")
        if golden is None:
            return State(record["case"], "missing")
        if golden.versions != record["sides"][0]["versions"]:
            return State(record["case"], "other pins")
        found = golden_differences(golden, ranks)
        return State(record["case"], "drift" if found else "same", tuple(found))


class _SecondWorker:
    """A worker of the same stack with another hash seed and import order."""

    def __init__(self, stack: BuiltStack, folder: Path, lane: LaneChoice) -> None:
        self._stack = stack
        self._folder = folder
        self._lane = lane
        self._pool = Pool(folder / "workers", lane.name, os.getpid(), lambda *_: None, other_order=True)

    def run(self, record: Recorded) -> list[Observation]:
        case = _case(record)
        # The folder's name must be as long and as empty as the first time: paths may end up in what a probe sees.
        folder = self._folder / "cases" / case.slug / "old"
        writer = case.writer("old")
        if writer:
            written = folder.with_name("written-by-old")
            self._ranks(writer[1], written)
            hand_over(written, folder)
        return self._ranks(case, folder)

    def _ranks(self, case: Case, folder: Path) -> list[Observation]:
        devices = self._lane.gpus[: self._lane.needed(case.layout)]
        request = Request(
            case.probe.reference, dict(case.parameters), case.layout, str(folder), Limits(), devices=devices
        )
        reply = self._pool.run(self._stack, request)
        fault = next((rank.fault for rank in reply.ranks if rank.fault), None)
        if fault:
            raise GoldenError(f"{case.id} {fault} when it ran once more; nothing written")
        return [load(folder / f"rank{number}") for number in range(len(reply.ranks))]

    def stop(self) -> None:
        self._pool.stop()


def _case(record: Recorded) -> Case:
    return make_case(
        record["probe"],
        record["parameters"],
        layout=record["layout"],
        old_layout=record.get("old_layout"),
        **record.get("written", {}),
    )


def _provenance(record: Recorded, ranks: Sequence[Observation], stack: BuiltStack) -> dict[str, Any]:
    return {
        "stack": stack.name,
        "command": _command(record, stack),
        "versions": stack.versions,
        "commits": {pin.distribution: pin.commit for pin in stack.pins if pin.commit},
        "revisions": {pin.distribution: _revision(pin) for pin in stack.pins if pin.kind == "git"},
        "probe": record["probe"],
        "parameters": record["parameters"],
        "layout": record["layout"],
        "lane": record["lane"],
        "host": dict(host_class(ranks[0])),
        "harness": _own_version(),
    }


def _own_version() -> str:
    """The harness's version; a checkout that a bundle runs is not installed, and has only its `pyproject.toml`."""
    try:
        return importlib.metadata.version("parity-harness")
    except importlib.metadata.PackageNotFoundError:
        project = Path(__file__).resolve().parents[1] / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])


def _command(record: Recorded, stack: BuiltStack) -> str:
    """What runs a case on the stack again, whatever its clones are called here."""
    clones = [f"--clone {pin.distribution}=PATH" for pin in stack.pins if pin.kind == "git"]
    return " ".join([_case(record).command, "--old", stack.name, *clones])


def _revision(pin: BuiltPin) -> str:
    return pin.requested.rpartition("@")[2]
