"""A run in one pytest process: stacks and workers, records, and the verdicts in the summary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.compare import LedgerError, Verdict, load_ledger
from harness.compare.ledger import Change
from harness.goldens import GoldenError
from harness.probes import registered_probes
from harness.report import Records, latest_cases, print_regressions, print_run, read_run
from harness.runner import ROLES, Runner, new_run_folder
from harness.schedule import LaneError, choose_lane
from harness.selection import Selection
from harness.stacks import StackError
from harness.workers.pool import Pool, WorkerLost
from harness.workers.protocol import Limits

FIXTURES = frozenset({"parity", "consistency"})
_ENVIRONMENT_FAILED = "environment_failed"


class ParityPlugin:
    """The state of one pytest process; the main process also owns the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        shared = getattr(config, "workerinput", {}).get("parity")
        self._owns = shared is None
        self._shared = shared
        self._claimed: dict[str, str] = {}

    @cached_property
    def folder(self) -> Path:
        """The run's folder, the same in every process."""
        return Path(self._shared["folder"]) if self._shared else new_run_folder(self._config.rootpath)

    @property
    def owner(self) -> int:
        """Id of the process that owns the run's workers."""
        return int(self._shared["owner"]) if self._shared else os.getpid()

    @cached_property
    def _selection(self) -> Selection:
        option = self._config.option
        pins = (option.pin, option.old_pin, option.new_pin)
        more = option.base, option.clone, option.bundle, option.golden_only, option.changed_pins
        return Selection(option.old, option.new, *pins, *more)

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The sides whose stacks are checked for themselves."""
        try:
            return self._selection.roles()
        except (StackError, GoldenError) as error:
            raise pytest.UsageError(str(error)) from error

    def stacks(self, names: Sequence[str]) -> tuple[str, ...]:
        """Named stacks, and the sides of the run that are none of them."""
        try:
            return (*names, *(role for role in self.roles if not self._selection.is_one_of(role, names)))
        except StackError as error:
            raise pytest.UsageError(str(error)) from error

    @cached_property
    def runner(self) -> Runner:
        """Stacks built and workers at hand; what goes wrong ends the run with the code that says so."""
        option = self._config.option
        selection = self._selection
        try:
            ledger = load_ledger(Path(option.ledger or self._config.rootpath / "golden" / "declared"))
            lane = choose_lane(option.lane, option.gpus, deterministic=not option.nondeterministic)
            selection = replace(self._selection, lane=lane)
            sides = selection.build(self._progress)
        except (LedgerError, LaneError, GoldenError) as error:
            self._give_up(str(error), 2)
        except StackError as error:
            self._give_up(str(error), error.exit_code)
        limits = Limits(seconds=option.case_seconds)
        # What is not repeatable has no goldens.
        goldens = selection.goldens if lane.deterministic else None
        runner = Runner(
            self.folder,
            sides,
            ledger,
            self.owner,
            limits,
            goldens=goldens,
            lane=lane,
            triage=True,
            preload=registered_probes(),
        )
        # Under pytest-xdist its own processes alone have a runner; all of them say the same.
        fails_for = {"only_new": self.only_new, "strict_goldens": option.strict_goldens}
        runner.start({**asdict(selection), **fails_for}, self._filters())
        return runner

    @property
    def only_new(self) -> bool:
        """Whether a case fails the run only if triage blames the pins."""
        option = self._config.option
        return bool(option.only_new or option.changed_pins) and not option.strict_triage

    @cached_property
    def moved(self) -> str:
        """The pins that differ between the sides; asked once a case is recorded."""
        return ", ".join(f"{pin.distribution} {pin.old} → {pin.new}" for pin in read_run(Records(self.folder)).moved)

    def claim(self, case: str, test: str) -> None:
        """Give a case to one test: two would overwrite each other's observations."""
        other = self._claimed.setdefault(case, test)
        if other != test:
            pytest.fail(f"{case} is already run by {other}; defaults do not make another case", pytrace=False)

    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist process which run it belongs to."""
        node.workerinput["parity"] = {"folder": str(self.folder), "owner": os.getpid()}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Build and import before the first case, where it can be seen, rather than inside it."""
        uses_parity = any(FIXTURES & set(getattr(item, "fixturenames", ())) for item in session.items)
        if not uses_parity or self._config.option.collectonly or not self._owns:
            return
        runner = self.runner  # builds the stacks
        try:
            runner.preload(self._progress)
        except WorkerLost as error:
            self._give_up(str(error), 3)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """A skipped case is listed as not run, with its reason."""
        report: pytest.TestReport = yield  # type: ignore[assignment]
        recorded = "verdict" in dict(item.user_properties)
        if report.skipped and not recorded and FIXTURES & set(getattr(item, "fixturenames", ())):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            Records(self.folder).write(
                "case",
                {
                    "case": item.name.removeprefix("test_"),
                    "area": area_of(item),
                    "verdict": str(Verdict.NOT_RUN),
                    "why": reason.removeprefix("Skipped: "),
                    "seconds": 0.0,
                    "evidence": False,
                },
            )
        return report  # type: ignore[return-value]

    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        """Show the verdict of a case in the place of PASSED or FAILED."""
        verdict = dict(getattr(report, "user_properties", ())).get("verdict")
        if verdict is None or getattr(report, "when", "") != "call":
            return None
        if hasattr(report, "wasxfail"):
            return "xfailed", "x", verdict
        return report.outcome, {"passed": ".", "skipped": "s"}.get(report.outcome, "F"), verdict

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Stop the workers; a run in which no case ran, or that had no environment, does not pass."""
        started = "runner" in self.__dict__
        if started and not self._owns:
            self.runner.close()
        if not self._owns:
            return
        if started or self._shared_run_started():
            self._stop()
        records = Records(self.folder) if "folder" in self.__dict__ else None
        if records is None or not records.file.exists():
            return
        cases = latest_cases(records)
        unanswered = (Verdict.NOT_RUN, Verdict.BROKEN)
        if cases and all(case["verdict"] in unanswered for case in cases) and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for failure in records.read(_ENVIRONMENT_FAILED):
            session.exitstatus = failure["exit_code"]
        records.write("run_finished", {"exit_code": int(session.exitstatus)})

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, the summary line and the place of the records."""
        if not self._owns or "folder" not in self.__dict__ or not Records(self.folder).file.exists():
            return
        records = Records(self.folder)
        if not latest_cases(records):
            return
        terminalreporter.section("parity")
        writer = terminalreporter._tw  # pytest has no public way to its own stream
        console = Console(file=writer._file, width=writer.fullwidth, no_color=not writer.hasmarkup, highlight=False)
        print_run(read_run(records), console)
        if "regression" in (self._config.option.markexpr or ""):
            print_regressions(records, latest_cases(records), console)
        for change in self._idle_changes(records):
            told = f"the ledger declares {change.path} for {', '.join(change.cases)}, and no such case ran"
            terminalreporter.write_line(told, yellow=True)
        if all(case["verdict"] in (Verdict.NOT_RUN, Verdict.BROKEN) for case in latest_cases(records)):
            terminalreporter.write_line("no case ran: the run fails", red=True)

    def _idle_changes(self, records: Records) -> list[Change]:
        """What the ledger declares for cases that a complete run does not have."""
        if "runner" not in self.__dict__ or self._filters():
            return []
        ledger, sides = self.runner.ledger, self.runner.sides
        versions = {role: sides.old.versions if role == "old" else sides.new.versions for role in ROLES}
        cases = latest_cases(records)
        idle = ledger.idle([case["case"] for case in cases if not case.get("stack")], *versions.values())
        for role in self.roles:
            of_stack = [case["case"] for case in cases if case.get("stack") == sides.label(role)]
            idle += ledger.idle_violations([case.partition("@")[0] for case in of_stack], versions[role])
        return idle

    def _filters(self) -> list[str]:
        """What keeps this run from being all of its suites."""
        option = self._config.option
        names = ("keyword", "markexpr", "deselect", "lf", "last_failed", "maxfail", "stepwise", "golden_only")
        chosen = [name for name in names if getattr(option, name, None)]
        return [*chosen, *(argument for argument in self._config.args if "::" in argument or argument.endswith(".py"))]

    def _shared_run_started(self) -> bool:
        return "folder" in self.__dict__ and (self.folder / "workers").exists()

    def _stop(self) -> None:
        if "runner" in self.__dict__:
            self.runner.stop()
        else:
            Pool(self.folder / "workers", self._config.option.lane, os.getpid(), Records(self.folder).write).stop()

    def _progress(self, line: str) -> None:
        Records(self.folder).write("progress", {"line": line})
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self._owns:
            reporter.ensure_newline()
            reporter.write_line(f"parity: {line}")

    def _give_up(self, message: str, exit_code: int) -> Any:
        Records(self.folder).write(_ENVIRONMENT_FAILED, {"message": message, "exit_code": exit_code})
        if not self._owns:
            pytest.fail(message, pytrace=False)  # the main process ends with the code
        pytest.exit(message, returncode=exit_code)


def area_of(item: pytest.Item) -> str:
    """What a case is counted under: the name of its test's file."""
    return item.path.stem.removeprefix("test_")
