"""The `parity` command."""

from __future__ import annotations

import inspect
import os
import shlex
import signal
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import pytest
import typer
from rich.markup import escape

from harness.bisect.bisection import EndsError
from harness.bisect.focus import NoDifferenceError
from harness.cases import make_case, make_check
from harness.cli import matrix, origins, reports
from harness.cli.options import (
    ENVIRONMENT,
    USAGE,
    Base,
    Bundle,
    ChangedPins,
    Clones,
    GoldenOnly,
    Gpus,
    HowItRuns,
    Lane,
    Names,
    Nondeterministic,
    Parameters,
    RunFolder,
    RunOld,
    WhichSides,
    console,
    errors,
    latest_run,
    progress,
    typed_parameters,
    with_groups,
)
from harness.compare import LedgerError, Verdict, load_ledger
from harness.doctor import examine
from harness.golden_verbs import GoldenDesk, lane_of
from harness.goldens import Golden, GoldenError
from harness.layouts import UnknownLayoutError
from harness.probes import Probe, ProbeError, find_probe, registered_probes
from harness.report import Records, RecordsError, draft_ledger, latest_cases
from harness.runner import ROLES, Outcome, Runner, new_run_folder
from harness.schedule import LaneChoice, LaneError, choose_lane
from harness.selection import Selection, goldens_of, settings_with
from harness.stacks import StackError, build, changed_stacks, load_settings, nothing_moved
from harness.stacks import bundle as bundles
from harness.workers.pool import Pool, WorkerLost
from harness.workers.protocol import Limits

app = typer.Typer(
    help="Old against new: what changes when a training stack moves a pin.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
stacks_app = typer.Typer(help="Stacks: named sets of pins that can run.", no_args_is_help=True)
app.add_typer(stacks_app, name="stacks")
golden_app = typer.Typer(
    help="Goldens: observations of the old stack kept under golden/. A run never writes one.", no_args_is_help=True
)
app.add_typer(golden_app, name="golden")
origins.register(app)
matrix.register(app)
reports.register(app)


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
    bundle: Bundle = None,
    lane: Lane = "cpu",
    gpus: Gpus = None,
    nondeterministic: Nondeterministic = False,
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
        lane,
        new_layout or how.layout,
        old_layout or how.layout,
        written_by=how.written_by,
        written_layout=how.written_layout,
    )
    chosen = choose_lane(lane, gpus, deterministic=not nondeterministic)
    selection = sides.selection(bundle=bundle, golden_only=golden_only, changed_pins=changed_pins, lane=chosen)
    runner = _runner(selection, how.seconds, chosen)
    try:
        runner.start({**asdict(selection), "only_new": changed_pins is not None}, ["compare"])
        runner.preload((case.probe.reference,), progress)
        outcome = runner.run(case)
    finally:
        runner.stop()
    _end_with(outcome, runner.records, only_new=changed_pins is not None)


@app.command()
def changed(
    base: Annotated[str, typer.Argument(metavar="BASE", help="A git revision of this project.")],
    names: Annotated[bool, typer.Option("--names", help="Names of stacks alone, one a line.")] = False,
) -> None:
    """Say which stacks' pins in pyproject.toml moved since a git revision, as `--changed-pins` will compare them.

    Example: parity changed origin/main
    """
    moves = changed_stacks(load_settings(), base)
    for move in moves:
        console.print(move.new.name if names else f"{move}", markup=False, soft_wrap=True)
    if not moves:
        progress(nothing_moved(base))


@app.command()
@with_groups
def check_stack(
    name: Annotated[str, typer.Argument(help="A stack, see `parity stacks list`.")],
    probe: Annotated[str | None, typer.Argument(help="One check alone: its name, or FILE.py::NAME.")] = None,
    parameters: Parameters = None,
    *,
    how: HowItRuns,
    pin: Annotated[list[str] | None, typer.Option("--pin", help="Override a pin of the stack.")] = None,
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
    runner = _runner(selection, how.seconds)
    try:
        runner.start(asdict(selection), ["check-stack"])
        outcome = runner.check(case, "new")
    finally:
        runner.stop()
    _end_with(outcome, runner.records)


@app.command()
def declare(
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="[CASE]…", help="Cases (default: all that differ).")
    ] = None,
    run: RunFolder = None,
) -> None:
    """Draft ledger entries for the undeclared differences of the latest run.

    The draft goes to standard output; give each entry its reason and class, then add it to a file of golden/declared/.
    """
    records = Records(run or latest_run())
    sides, recorded = [records.start[side]["name"] for side in ROLES], latest_cases(records)
    if not any(case.get("sides") for case in recorded):
        told = f"{records.folder.name} compared no case of {' and '.join(sides)}"
        raise RecordsError(f"{told}: run again, or name another run with --run")
    unknown = [case for case in cases or [] if case not in {record["case"] for record in recorded}]
    if unknown:
        raise RecordsError(f"the run has no case {unknown[0]!r}; `parity report` lists its cases")
    draft = draft_ledger(recorded, only=cases)
    console.print(draft or "nothing undeclared\n", markup=False, soft_wrap=True, end="")


@stacks_app.command("list")
def stacks_list() -> None:
    """List the declared stacks and their pins."""
    settings = load_settings()
    for name in settings.stacks:
        role = " ".join(f"({side})" for side in ("old", "new") if getattr(settings, side) == name)
        console.print(f"[bold]{escape(name)}[/] {role}")
        for pin in settings.stack(name).pins.values():
            console.print(f"  {escape(pin.requested)}")


@stacks_app.command("show")
def stacks_show(name: str) -> None:
    """Show one stack's pins."""
    for pin in load_settings().stack(name).pins.values():
        console.print(escape(pin.requested))


@stacks_app.command("build")
def stacks_build(names: Names, base: Base = None, clone: Clones = None) -> None:
    """Build the base environment and the overlays of stacks."""
    settings = settings_with(clone)
    for name in names:
        built = build(settings.stack(name), settings, base=base, progress=progress)
        console.print(f"{escape(name)}: {built.overlay}", soft_wrap=True)


@app.command()
def doctor(base: Base = None, bundle: Bundle = None) -> None:
    """Say what this host has and lacks, and what each suite can run here; exit status 1 where something is amiss."""
    findings = examine(load_settings(), base, Path(bundle) if bundle else None)
    for finding in findings:
        mark = {True: "[green]✓[/]", False: "[red]✗[/]", None: " "}[finding.ok]
        console.print(f"{mark} {escape(finding.about):24} {escape(finding.told)}", soft_wrap=True)
    raise typer.Exit(int(any(finding.ok is False for finding in findings)))


@app.command()
def bundle(
    names: Names,
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder for the bundle.")],
    for_python: Annotated[str, typer.Option(help="MAJOR.MINOR of the other host's interpreter.")] = "3.12",
    have: Annotated[
        Path | None, typer.Option(help="A requirement file: what the other host's interpreter has already.")
    ] = None,
    wheel: Annotated[list[Path] | None, typer.Option(help="A wheel to add, e.g. Transformer Engine's.")] = None,
    max_part: Annotated[str, typer.Option(help="Largest size of one file of the bundle.")] = "2G",
    gpu: Annotated[
        int | None, typer.Option(help="Keep GPU code of this architecture alone in added wheels: 90 for sm_90.")
    ] = None,
    base: Base = None,
    clone: Clones = None,
) -> None:
    """Write what stacks need beyond another host's interpreter, for a host without a network.

    There, `--bundle DIR` of `parity compare` and of pytest uses it, every hash verified.

    Example: parity bundle verl-0.7.1 verl-0.8.0 -o bundle --have have.txt --max-part 58M
    """
    settings = settings_with(clone)
    stacks = [build(settings.stack(name), settings, base=base, progress=progress) for name in names]
    lacking = bundles.names_in(have) if have else frozenset()
    plan = bundles.BundlePlan(stacks, for_python, lacking, wheel or [], bundles.parse_size(max_part), gpu)
    manifest = bundles.write(plan, output, settings, progress)
    for part in manifest["parts"]:
        console.print(f"{output / part['file']}: {part['size'] / 1e6:.1f} MB", soft_wrap=True)


@stacks_app.command("check")
def stacks_check(names: Names, base: Base = None, clone: Clones = None) -> None:
    """Import the whole closure of stacks in a worker, and say in one line what is missing."""
    settings = settings_with(clone)
    failed = False
    for name in names:
        built = build(settings.stack(name), settings, base=base, progress=progress)
        pool = Pool(new_run_folder(settings.root) / "workers", "cpu", os.getpid(), lambda *_: None)
        try:
            imported = pool.preload(built, tuple(registered_probes()))
        finally:
            pool.stop()
        failed |= bool(imported.failed)
        told = "; ".join(f"{module}: {why}" for module, why in imported.failed.items())
        console.print(f"{escape(name)}: {escape(told) or 'ok'} ({imported.modules} modules, {imported.seconds:.0f} s)")
    raise typer.Exit(int(failed))


@golden_app.command("status")
def golden_status(run: RunFolder = None) -> None:
    """Say where every case of the latest run stands: same, drift, missing, other pins, orphan."""
    states = _desk(run).status()
    for state in states:
        if state.kind != "same":
            console.print(f"{state.kind:14} {state.case}", markup=False, soft_wrap=True)
    counts = Counter(state.kind for state in states)
    console.print(" · ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no cases")


@golden_app.command("diff")
def golden_diff(
    case: Annotated[str, typer.Argument(help="A case id, as the report shows it.")], run: RunFolder = None
) -> None:
    """Show how the latest run's old side differs from the golden of one case; exit status 1 if it does."""
    state = _desk(run).diff(case)
    console.print(f"{state.case}: {state.kind}", markup=False, soft_wrap=True)
    for difference in state.differences:
        console.print(f"  {difference}", markup=False, soft_wrap=True)
    raise typer.Exit(int(bool(state.differences)))


@golden_app.command("new")
def golden_new(
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="[CASE]…", help="Cases (default: all without one).")
    ] = None,
    run: RunFolder = None,
    old: RunOld = None,
    base: Base = None,
    clone: Clones = None,
    bundle: Bundle = None,
) -> None:
    """Record goldens for cases of the latest run that have none yet."""
    desk = _desk(run)
    missing = desk.missing()
    taken = [case for case in cases or [] if case not in missing]
    if taken:
        raise GoldenError(f"{taken[0]} has a golden already, or no observation; see `parity golden status`")
    selection = Selection(old=old or _old_stack(desk.run), base=base, clones=clone or (), bundle=bundle)
    _accept(desk, cases or missing, "first recording", selection)


@golden_app.command("accept")
def golden_accept(
    cases: Annotated[list[str], typer.Argument(metavar="CASE…", help="Exactly these are written.")],
    why: Annotated[str, typer.Option(help="Why the change is accepted; kept in the golden's history.")],
    run: RunFolder = None,
    old: RunOld = None,
    base: Base = None,
    clone: Clones = None,
    bundle: Bundle = None,
) -> None:
    """Write the goldens of the named cases from the latest run's old side."""
    if not why.strip():
        raise GoldenError("--why must say why")
    desk = _desk(run)
    selection = Selection(old=old or _old_stack(desk.run), base=base, clones=clone or (), bundle=bundle)
    _accept(desk, cases, why, selection)


@golden_app.command("prune")
def golden_prune(run: RunFolder = None) -> None:
    """Delete goldens of cases that no longer exist; only after a complete green run."""
    pruned = _desk(run).prune()
    console.print("\n".join(pruned) or "nothing to prune", markup=False, soft_wrap=True)


def _desk(run: Path | None) -> GoldenDesk:
    """The goldens of the stack that was the old side of a run, on its lane."""
    folder = (run or latest_run()).resolve()  # workers run in a folder of their own
    return GoldenDesk(folder, goldens_of(_old_stack(folder), load_settings(), lane_of(folder)))


def _old_stack(run: Path) -> str:
    return str(Records(run).start["old"]["name"])


def _accept(desk: GoldenDesk, cases: list[str], why: str, selection: Selection) -> None:
    if not cases:
        console.print("nothing to record")
        return
    desk.accept(cases, why, selection.build_old(progress), progress)
    console.print(f"{len(cases)} golden(s) written")


def _runner(selection: Selection, seconds: float, lane: LaneChoice | None = None) -> Runner:
    root = load_settings().root
    ledger = load_ledger(root / "golden" / "declared")
    sides = selection.build(progress)
    return Runner(new_run_folder(root), sides, ledger, os.getpid(), Limits(seconds=seconds), lane=lane, triage=True)


def _self_consistency_suite(selection: Selection, seconds: float) -> int:
    """Run the suite in this process, and return an exit status of ours."""
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
