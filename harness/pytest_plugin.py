"""The pytest plugin: options that choose the sides, the `parity` fixture, and the verdicts in the summary.

The run's main process owns the stack workers. Under pytest-xdist every process shares them through the run's folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.cases import OWN, make_case, make_check
from harness.compare import Expectation, LedgerError, Verdict, load_ledger
from harness.compare.ledger import Change
from harness.goldens import GoldenError
from harness.layouts import UnknownLayoutError
from harness.probes import ProbeError, registered_probes
from harness.report import Records, case_properties, latest_cases, print_regressions, print_run, read_run
from harness.runner import ROLES, Outcome, Runner, new_run_folder
from harness.schedule import LaneError, choose_lane
from harness.selection import Selection
from harness.stacks import StackError, changed_stack, load_settings
from harness.workers.pool import Pool, WorkerLost
from harness.workers.protocol import Limits

LANES = ("cpu", "cuda")

_FIXTURES = frozenset({"parity", "consistency"})
_ENVIRONMENT_FAILED = "environment_failed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that choose the sides."""
    group = parser.getgroup("parity", "old against new")
    group.addoption("--old", metavar="STACK", help="stack of the old side (default: [tool.parity] old)")
    group.addoption("--new", metavar="STACK", help="stack of the new side (default: [tool.parity] new)")
    for name, side in (("--pin", "both sides"), ("--old-pin", "the old side"), ("--new-pin", "the new side")):
        group.addoption(
            name,
            action="append",
            default=[],
            metavar="PIN",
            help=f"override a pin of {side} for this run: NAME==VERSION, NAME=path:DIR or NAME=git:SOURCE@REVISION",
        )
    group.addoption("--base", metavar="PYTHON", help="`current` or an interpreter to use instead of the locked base")
    group.addoption("--bundle", metavar="DIR", help="take both stacks from this bundle, see `parity bundle`")
    group.addoption("--clone", action="append", default=[], metavar="NAME=DIR", help="local clone for git pins of NAME")
    group.addoption(
        "--lane", default="cpu", metavar="LANE", help="cpu (default), or cuda: NCCL on the GPUs of this host"
    )
    group.addoption("--gpus", metavar="IDS", help="which GPUs of this host, as nvidia-smi counts them (default: all)")
    group.addoption(
        "--nondeterministic", action="store_true", help="cuda lane with production settings; the noise floor judges"
    )
    group.addoption("--case-seconds", type=float, default=Limits().seconds, help="time limit of one case on one side")
    group.addoption("--golden-only", action="store_true", help="compare the new side with the goldens alone")
    group.addoption(
        "--changed-pins",
        metavar="BASE",
        help="compare the stack whose pins in pyproject.toml moved since git revision BASE with what it was there; "
        "only what triage calls new fails, and where no pin moved nothing runs",
    )
    group.addoption("--only-new", action="store_true", help="a case fails the run only if triage calls it new")
    group.addoption(
        "--strict-triage", action="store_true", help="with --changed-pins: fail for every verdict that fails elsewhere"
    )
    group.addoption("--strict-goldens", action="store_true", help="fail where a golden has drifted")
    group.addoption("--hf-configs", metavar="DIR", help="resolve every config.json under this folder too")
    group.addoption("--ledger", metavar="PATH", help="ledger: a file, or a folder of them (default: golden/declared/)")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """End before anything is collected where no pin moved, or where that cannot be told."""
    option = config.option
    if option.changed_pins is None or hasattr(config, "workerinput") or option.help or option.version:
        return None
    try:
        changed_stack(load_settings(), option.changed_pins, option.new)
    except StackError as error:
        print(f"parity: {error}", file=sys.stderr if error.exit_code else sys.stdout)
        return error.exit_code
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of self-consistency runs once for each stack of the run."""
    if "consistency" not in metafunc.fixturenames:
        return
    plugin: Any = metafunc.config.pluginmanager.get_plugin("parity-run")
    marker = metafunc.definition.get_closest_marker("stacks")
    stacks = plugin.stacks(marker.args) if marker else plugin.roles
    metafunc.parametrize("consistency", stacks, indirect=True, scope="function")
    if "writer" in metafunc.fixturenames:
        metafunc.parametrize("writer", stacks, scope="function")


def pytest_configure(config: pytest.Config) -> None:
    """Give this process its part of the run, and register what tests may be marked with."""
    config.addinivalue_line("markers", "self_consistency: judges one stack, with no second one to compare")
    config.addinivalue_line("markers", "stacks(name, …): judges these stacks besides the run's, and lets them write")
    config.pluginmanager.register(ParityPlugin(config), "parity-run")


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
        runner = Runner(self.folder, sides, ledger, self.owner, limits, goldens=goldens, lane=lane, triage=True)
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
        uses_parity = any(_FIXTURES & set(getattr(item, "fixturenames", ())) for item in session.items)
        if not uses_parity or self._config.option.collectonly or not self._owns:
            return
        probes = tuple(name for name in registered_probes())
        runner = self.runner  # builds the stacks
        try:
            runner.preload(probes, self._progress)
        except WorkerLost as error:
            self._give_up(str(error), 3)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """A skipped case is listed as not run, with its reason."""
        report: pytest.TestReport = yield  # type: ignore[assignment]
        recorded = "verdict" in dict(item.user_properties)
        if report.skipped and not recorded and _FIXTURES & set(getattr(item, "fixturenames", ())):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            Records(self.folder).write(
                "case",
                {
                    "case": item.name.removeprefix("test_"),
                    "area": _area(item),
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


class Parity:
    """What a test calls: run one case on both sides and fail unless its verdict passes."""

    def __init__(self, plugin: ParityPlugin, request: pytest.FixtureRequest) -> None:
        self._plugin = plugin
        self._request = request

    @property
    def lane(self) -> str:
        """The run's lane, `cpu` or `cuda`."""
        return str(self._request.config.option.lane)

    def __call__(
        self,
        probe: str,
        *,
        layout: str = "single",
        old_layout: str | None = None,
        new_layout: str | None = None,
        written_by: str = OWN,
        written_layout: str | None = None,
        expects: Expectation | None = None,
        lanes: Sequence[str] = LANES,
        **parameters: Any,
    ) -> Outcome:
        """Run `probe` with `parameters` under `layout` on both sides, and return what came out if the verdict passes.

        Args:
            old_layout: the old side's layout, where it is another; the probe must say what part of each tensor a rank
                holds. Bitwise equality is not to be expected then: the old side's noise floor judges.
            new_layout: the same of the new side.
            written_by: for a probe that reads files, who writes them: `own` (each side its own), `old`, `new` or the
                name of a stack.
            written_layout: the layout in which they are written, where it is another.
            expects: an exception both sides must raise exactly, for a case that neither pin can run.
            lanes: the lanes this case can run on; on another it is `not_run`.
        """
        try:
            case = make_case(
                probe,
                parameters,
                self.lane,
                new_layout or layout,
                old_layout or layout,
                written_by=written_by,
                written_layout=written_layout,
            )
        except (ProbeError, UnknownLayoutError) as error:
            pytest.fail(str(error), pytrace=False)
        self._plugin.claim(case.id, self._request.node.nodeid)
        runner = self._plugin.runner
        try:
            if self.lane in lanes:
                outcome = runner.run(case, expects, area=_area(self._request.node))
            else:
                needs = f"needs the {' or '.join(lanes)} lane (--lane {lanes[0]})"
                outcome = runner.not_run(case, needs, area=_area(self._request.node))
        except StackError as error:
            pytest.fail(str(error), pytrace=False)
        _settle(self._request, outcome)
        return outcome


class Consistency:
    """What a test of self-consistency calls: run one check on one stack and fail unless its verdict passes."""

    def __init__(self, plugin: ParityPlugin, request: pytest.FixtureRequest) -> None:
        self._plugin = plugin
        self._request = request

    def __call__(
        self,
        probe: str,
        *,
        layout: str = "single",
        written_by: str = OWN,
        written_layout: str | None = None,
        seconds: float | None = None,
        **parameters: Any,
    ) -> None:
        """Run `probe` with `parameters` under `layout` on the stack of one side; a test runs once for each stack.

        Args:
            written_by: as `Parity`.
            written_layout: as `Parity`.
            seconds: time limit, where the case needs more than others do.
        """
        runner, role = self._plugin.runner, self._request.param
        try:
            case = make_check(probe, parameters, layout, written_by, written_layout)
            self._plugin.claim(f"{case.id}@{role}", self._request.node.nodeid)
            limits = Limits(seconds=seconds) if seconds else None
            outcome = runner.check(case, role, limits, area=_area(self._request.node))
        except (ProbeError, UnknownLayoutError, StackError) as error:
            pytest.fail(str(error), pytrace=False)
        _settle(self._request, outcome)


def _settle(request: pytest.FixtureRequest, outcome: Outcome) -> None:
    """Let the test end as its verdict says."""
    plugin: Any = request.config.pluginmanager.get_plugin("parity-run")
    request.node.user_properties += [
        ("case", outcome.id),
        ("pins", plugin.moved),
        *case_properties(outcome.brief).items(),
    ]
    known = [name for marker in request.node.iter_markers("regression") for name in marker.args]
    if known:
        Records(plugin.folder).write("regression", {"ids": known, "case": outcome.id})
    if outcome.judged.verdict is Verdict.NOT_RUN:
        pytest.skip(outcome.judged.why)
    drifted = outcome.judged.verdict is Verdict.DRIFT and request.config.option.strict_goldens
    if outcome.judged.verdict.fails and plugin.only_new and outcome.triage and not outcome.triage.blocks:
        pytest.xfail(f"{outcome.triage}: {outcome.judged.why}")
    if outcome.judged.verdict.fails or drifted:
        pytest.fail(outcome.message, pytrace=False)


@pytest.fixture
def consistency(request: pytest.FixtureRequest) -> Consistency:
    """Check one stack: `consistency("process_groups", layout="tp2")`; the test runs once for each stack."""
    return Consistency(request.config.pluginmanager.get_plugin("parity-run"), request)  # type: ignore[arg-type]


def _area(item: pytest.Item) -> str:
    """What a case is counted under: the name of its test's file."""
    return item.path.stem.removeprefix("test_")


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Parity:
    """Run one case on both sides: `parity("ddp_config", variant="fsdp", layout="tp2")`."""
    return Parity(request.config.pluginmanager.get_plugin("parity-run"), request)  # type: ignore[arg-type]
