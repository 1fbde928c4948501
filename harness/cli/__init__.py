"""The `parity` command."""

from __future__ import annotations

import inspect
import os
import shlex
import signal
import sys
from dataclasses import asdict
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from harness.bisect.bisection import EndsError
from harness.bisect.focus import NoDifferenceError
from harness.cases import Case, make_case, make_check
from harness.cli import goldens, matrix, origins, reports, stacks
from harness.cli.options import (
    ENVIRONMENT,
    USAGE,
    Base,
    ChangedPins,
    Clones,
    GoldenOnly,
    HowItRuns,
    Parameters,
    StackPins,
    WhereItRuns,
    WhichSides,
    console,
    errors,
    progress,
    typed_parameters,
    with_groups,
)
from harness.compare import LedgerError, Verdict, load_ledger
from harness.goldens import Golden, GoldenError
from harness.layouts import UnknownLayoutError
from harness.probes import Probe, ProbeError, find_probe, registered_probes
from harness.report import Records, RecordsError
from harness.runner import Outcome, Runner, new_run_folder
from harness.schedule import LaneChoice, LaneError
from harness.selection import Selection
from harness.stacks import StackError, load_settings
from harness.workers.pool import WorkerLost
from harness.workers.protocol import Limits

app = typer.Typer(
    help="Old against new: what changes when a training stack moves a pin.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point: errors a user can mend are one or two lines, and an exit code says which kind they are."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        app()
    except (ProbeError, UnknownLayoutError, LedgerError, RecordsError, GoldenError, LaneError) as error:
        _fail(str(error), USAGE)
    except StackError as error:
        _fail(str(error), error.exit_code)
    except (EndsError, NoDifferenceError) as error:
        _fail(str(error), 1)
    except WorkerLost as error:
        _fail(str(error), ENVIRONMENT)


@app.command()
def probes(name: Annotated[str | None, typer.Argument(help="Show one probe in full.")] = None) -> None:
    """List the probes, with their parameters and what they look at."""
    if name is not None:
        _print_probe(find_probe(name), whole=True)
        return
    for probe in registered_probes().values():
        _print_probe(probe, whole=False)


@app.command()
@with_groups
def compare(
    probe: Annotated[str, typer.Argument(help="A probe's name, or FILE.py::NAME.")],
    parameters: Parameters = None,
    *,
    how: HowItRuns,
    old_layout: Annotated[str | None, typer.Option(help="Layout of the old side, where it is another.")] = None,
    new_layout: Annotated[str | None, typer.Option(help="Layout of the new side, where it is another.")] = None,
    sides: WhichSides,
    where: WhereItRuns,
    golden_only: GoldenOnly = False,
    changed_pins: ChangedPins = None,
) -> None:
    """Run one case on both sides, or on the new one against a golden, and print its verdict and differences.

    Values are JSON where they can be (`true`, `2`, `{"a": 1}`) and text otherwise.

    Example: parity compare ddp_config variant=fsdp --new-pin megatron-bridge==0.6.2
    """
    case = make_case(
        probe,
        typed_parameters(parameters or []),
        where.lane,
        new_layout or how.layout,
        old_layout or how.layout,
        written_by=how.written_by,
        written_layout=how.written_layout,
    )
    chosen = where.choice
    selection = sides.selection(golden_only=golden_only, changed_pins=changed_pins, lane=chosen)
    runner = _runner(selection, how.seconds, case, chosen)
    try:
        runner.start({**asdict(selection), "only_new": changed_pins is not None}, ["compare"])
        runner.preload(progress)
        outcome = runner.run(case)
    finally:
        runner.stop()
    _end_with(outcome, runner.records, only_new=changed_pins is not None)


@app.command()
@with_groups
def check_stack(
    name: Annotated[str, typer.Argument(help="A stack, see `parity stacks list`.")],
    probe: Annotated[str | None, typer.Argument(help="One check alone: its name, or FILE.py::NAME.")] = None,
    parameters: Parameters = None,
    *,
    how: HowItRuns,
    pin: StackPins = None,
    base: Base = None,
    clone: Clones = None,
) -> None:
    """Check one stack against itself: everything in suites/parity that is marked self_consistency, or one check.

    Example: parity check-stack verl-0.9.1 --pin megatron-bridge==0.6.3
    """
    selection = Selection(old=name, new=name, pins=pin or (), base=base, clones=clone or ())
    if probe is None:
        raise typer.Exit(_self_consistency_suite(selection, how.seconds))
    case = make_check(probe, typed_parameters(parameters or []), how.layout, how.written_by, how.written_layout)
    runner = _runner(selection, how.seconds, case)
    try:
        runner.start(asdict(selection), ["check-stack"])
        outcome = runner.check(case, "new")
    finally:
        runner.stop()
    _end_with(outcome, runner.records)


def _runner(selection: Selection, seconds: float, case: Case, lane: LaneChoice | None = None) -> Runner:
    root = load_settings().root
    ledger = load_ledger(root / "golden" / "declared")
    sides = selection.build(progress)
    limits = Limits(seconds=seconds)
    preload = [case.probe.reference]
    folder = new_run_folder(root)
    return Runner(folder, sides, ledger, os.getpid(), limits, lane=lane, triage=True, preload=preload)


def _self_consistency_suite(selection: Selection, seconds: float) -> int:
    """Run the suite in this process, and return an exit status of ours."""
    import pytest  # needed here alone, and a quarter of a command's start

    root = load_settings().root
    arguments = ["--rootdir", str(root), "-m", "self_consistency", "--case-seconds", str(seconds)]
    status = int(pytest.main([str(root / "suites" / "parity"), *arguments, *shlex.split(selection.options)]))
    return {int(pytest.ExitCode.USAGE_ERROR): USAGE, int(pytest.ExitCode.NO_TESTS_COLLECTED): 1}.get(status, status)


def _end_with(outcome: Outcome, records: Records, *, only_new: bool = False) -> NoReturn:
    if outcome.misuse:
        raise ProbeError(outcome.misuse)
    _print_outcome(outcome, records)
    excused = only_new and outcome.triage is not None and not outcome.triage.blocks
    raise typer.Exit(int(outcome.judged.verdict.fails and not excused))


def _print_probe(probe: Probe, whole: bool) -> None:
    told = ", ".join(str(parameter).partition(": ")[0] + _default(parameter) for parameter in probe.parameters.values())
    console.print(f"[bold]{escape(probe.name)}[/]({escape(told)})", soft_wrap=True)
    text = inspect.getdoc(probe.function) or ""
    console.print(escape(text if whole else text.partition("\n\n")[0]), style="dim" if not whole else None)


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}"


def _print_outcome(outcome: Outcome, records: Records) -> None:
    judged = outcome.judged
    console.print(f"[bold]{escape(outcome.id)}[/]: {judged.verdict} {escape(judged.why)}", soft_wrap=True)
    if outcome.triage:
        console.print(f"  triage: {outcome.triage}")
    for difference in judged.differences:
        mark = "!" if difference in judged.undeclared else "="
        console.print(f"  {mark} {escape(str(difference))}", soft_wrap=True)
    for mask in judged.masked:
        console.print(f"  ~ masked {escape(str(mask))}", soft_wrap=True)
    if judged.verdict in (Verdict.BROKEN, Verdict.BOTH_RAISE):
        console.print(escape(outcome.message), soft_wrap=True)
    if outcome.golden:
        _print_golden(outcome.golden)
    for side in outcome.sides.values():
        console.print(f"  {side.name}: {escape(side.stack)} in {side.seconds:.2f} s", style="dim")
    console.print(f"records: {records.file}", soft_wrap=True)


def _print_golden(golden: Golden) -> None:
    recorded, accepted = golden.provenance, golden.history[-1]
    console.print(
        f"  old: golden of {recorded['stack']}, {accepted['when']} ({accepted['why']})", style="dim", markup=False
    )


def _fail(message: str, code: int) -> None:
    errors.print(f"parity: {message}", markup=False, soft_wrap=True)
    sys.exit(code)


for group in (reports, origins, matrix, goldens, stacks):
    group.register(app)
