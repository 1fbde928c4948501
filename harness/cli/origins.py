"""Where a difference comes from: `parity explain`, `parity bisect`, and `parity check` for `git bisect run`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from harness.answers import Answers
from harness.bisect.attempts import Attempts
from harness.bisect.bisection import Bisected, Bisection
from harness.bisect.candidates import Candidate, changed_files, commits, releases, releases_between, revision_of
from harness.bisect.walk import Walk, along, along_pairs, dry_run
from harness.cases import OWN, Case, make_case
from harness.cli.options import (
    SECONDS,
    Base,
    ChangedPins,
    Clones,
    New,
    NewPins,
    Old,
    OldPins,
    Pins,
    WrittenBy,
    WrittenLayout,
    console,
    progress,
    typed_parameters,
)
from harness.compare import Judged, Ledger, Verdict, load_ledger
from harness.explain.explanation import explain as explained
from harness.layouts import LAYOUTS
from harness.observe.globs import matches
from harness.observe.host import host_class
from harness.observer import Observer
from harness.probes import ProbeError
from harness.report.bisected import bisected_markdown
from harness.report.explained import explained_lines, tried_lines
from harness.report.records import FILE, Records, RecordsError, latest_cases
from harness.runner import Runner, new_run_folder
from harness.selection import Selection, settings_with
from harness.stacks import BuiltStack, Settings, StackError, StackUsageError, build
from harness.stacks import base as bases
from harness.stacks.uv import nearest_releases
from harness.workers.protocol import Limits

SKIP = 125
"""What `git bisect run` takes for a revision that cannot be tested."""

_NO_IMPORT = ("ImportError:", "ModuleNotFoundError:", "SyntaxError:", "MissingSymbol:")

_WORKER_MEMORY = 3 << 30
"""Bytes that a worker with its forked ranks may take; measured at 1 to 2 GB."""

CaseName = Annotated[str, typer.Argument(metavar="CASE", help="A case id of an earlier run, or a probe's name.")]
Parameters = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="The probe's parameters.")]
Layout = Annotated[str, typer.Option(help=f"Parallelism: {', '.join(LAYOUTS)}.")]
Wanted = Annotated[str | None, typer.Option("--path", help="Glob of the difference to look for (default: the first).")]
Seconds = Annotated[float, typer.Option(help="Time limit of the case on one side.")]


@dataclass(frozen=True)
class _Origin:
    """What every search here needs: the case, the settings, and a way to observe it."""

    case: Case
    settings: Settings
    answers: Answers
    records: Records


def explain(
    case: CaseName,
    parameters: Parameters = None,
    layout: Layout = "single",
    written_by: WrittenBy = OWN,
    written_layout: WrittenLayout = None,
    path: Wanted = None,
    old: Old = None,
    new: New = None,
    pin: Pins = None,
    old_pin: OldPins = None,
    new_pin: NewPins = None,
    base: Base = None,
    clone: Clones = None,
    seconds: Seconds = SECONDS,
) -> None:
    """Say which pin brings a difference, and which config field causes it.

    Pins of the new side are put into the old one, alone and in minimal groups; then the config fields that changed
    are set back on the guilty step, one at a time and in minimal groups. A field is named only if setting it back
    restores parity. What was observed before is read back. The last line is the command that finds the commit.

    Examples: parity explain 'training_step[bfloat16,dp2]' --old verl-0.8.0 --new verl-0.9.1
    · parity explain training_step dtype=bfloat16 --layout dp2
    """
    settings = settings_with(clone)
    found = named_case(case, parameters, layout, written_by, written_layout)
    names = old or settings.old, new or settings.new
    pins = (*(pin or ()), *(old_pin or ())), (*(pin or ()), *(new_pin or ()))
    sides = [settings.stack(name, own).pins for name, own in zip(names, pins, strict=True)]
    selection = Selection(old, new, pin or (), old_pin or (), new_pin or (), base, clone or ())
    with _origin(found, settings, base, names[0], pins[0], seconds) as origin:
        attempts = Attempts(origin.answers, settings, names[0], pins[0], base, progress)
        explanation = explained(found.id, attempts, sides[0], sides[1], path, progress)
        again = " ".join(filter(None, ["parity compare", found.arguments, selection.options]))
        lines = explained_lines(found.id, explanation, f"{names[0]} → {names[1]}", again)
        guilty = sorted(explanation.guilty.pins)
        lines += [_next(found, explanation.changed, name, names[0], path, settings) for name in guilty]
        origin.records.write("explained", {"case": found.id, "lines": lines, "tried": tried_lines(explanation)})
    for line in [*lines, "", *tried_lines(explanation)]:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{origin.answers.made} observations made, the others read back", style="dim")


def bisect(
    case: CaseName,
    parameters: Parameters = None,
    *,
    axis: Annotated[str, typer.Option(help="The distribution that moves, e.g. megatron-bridge.")],
    good: Annotated[str, typer.Option(help="Release, tag or revision without the difference.")],
    bad: Annotated[str, typer.Option(help="Release, tag or revision with it.")],
    layout: Layout = "single",
    written_by: WrittenBy = OWN,
    written_layout: WrittenLayout = None,
    path: Wanted = None,
    stack: Annotated[str | None, typer.Option(help="Holds every other pin (default: `new` of [tool.parity]).")] = None,
    pin: Annotated[list[str] | None, typer.Option("--pin", help="Override a pin of that stack.")] = None,
    base: Base = None,
    clone: Clones = None,
    release: Annotated[
        list[str] | None, typer.Option("--release", help="Walk these releases alone, not commits; repeat the option.")
    ] = None,
    releases_only: Annotated[bool, typer.Option("--releases", help="Walk all releases between, not commits.")] = False,
    alone: Annotated[bool, typer.Option(help="Hold Megatron-Core where the stack pins it while Bridge moves.")] = False,
    all_commits: Annotated[bool, typer.Option(help="Walk every commit, not first parents alone.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Attempts at a time (default: what the host holds).")
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="When to stop, where the case is flaky.")
    ] = 0.97,
    only_say: Annotated[bool, typer.Option("--dry-run", help="Say how many rounds it takes, and stop.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the Markdown here too.")] = None,
    seconds: Seconds = SECONDS,
) -> None:
    """Find the release or the commit that brought a difference.

    Both ends are verified first, twice each. A candidate is bad if it shows the same difference, good if it shows
    none, and is passed over if it cannot run or fails in another way. A case that is not the same twice is searched by
    expected information, stopping at --confidence. Interrupted, the same command goes on where it was.

    With a clone of the axis (--clone, or [tool.parity.clones]) its commits are walked, along first parents; for
    megatron-bridge together with the Megatron-Core commits it records, if there is a clone of that too.

    Example: parity bisect ddp_config --axis megatron-bridge --good 0.5.1 --bad 0.6.0 --clone megatron-bridge=DIR
    """
    settings = settings_with(clone)
    found = named_case(case, parameters, layout, written_by, written_layout)
    holder = stack or settings.new
    pins = tuple(pin or ())
    core = (
        None if alone or release or releases_only or axis != "megatron-bridge" else settings.clones.get("megatron-core")
    )
    bridge = settings.clones.get(axis)
    workers = workers or fitting_workers()
    candidates: Sequence[Candidate] = ()
    if bridge is None or core is None:
        candidates = _candidates(axis, good, bad, settings, release, releases_only, base, all_commits)
        progress(dry_run(len(candidates), workers))
    if only_say:
        if bridge is not None and core is not None:
            candidates = commits(axis, bridge, revision_of(axis, bridge, good), revision_of(axis, bridge, bad))
            progress(f"{dry_run(len(candidates), workers)}, as pairs with the Megatron-Core commits they record")
        return
    with _origin(found, settings, base, holder, pins, seconds) as origin:
        attempts = Attempts(origin.answers, settings, holder, pins, base, progress)

        def search(along_these: Sequence[Candidate]) -> Bisected:
            return Bisection(found.id, along_these, attempts, path, workers, confidence, progress).run()

        if bridge is not None and core is not None:
            ends = [revision_of(axis, bridge, end) for end in (good, bad)]
            walk = along_pairs(bridge, core, ends[0], ends[1], search)
        else:
            walk = along(candidates, f"{len(candidates) - 1} candidates of {axis}", search)
        text = bisected_markdown(
            found.id, walk, _files(walk, settings), _again(found, walk, holder, pins), _about(origin, holder)
        )
        origin.records.write("bisected", {"case": found.id, "markdown": text})
    console.print(text, markup=False, soft_wrap=True, end="")
    if output is not None:
        output.write_text(text)


def check(
    case: CaseName,
    parameters: Parameters = None,
    layout: Layout = "single",
    written_by: WrittenBy = OWN,
    written_layout: WrittenLayout = None,
    path: Annotated[str | None, typer.Option("--path", help="Glob: look at these differences alone.")] = None,
    old: Old = None,
    new: New = None,
    pin: Pins = None,
    old_pin: OldPins = None,
    new_pin: NewPins = None,
    base: Base = None,
    clone: Clones = None,
    changed_pins: ChangedPins = None,
    project: Annotated[Path | None, typer.Option(help="Folder of the pyproject.toml with [tool.parity].")] = None,
    seconds: Seconds = SECONDS,
) -> None:
    """One case for `git bisect run`: exit status 0 without the difference, 1 with it, 125 where it cannot be tested.

    Example, in a clone: git bisect run parity check ddp_config --project ../parity --new-pin megatron-bridge=path:.
    """
    found = named_case(case, parameters, layout, written_by, written_layout, project)
    pins = pin or (), old_pin or (), new_pin or ()
    selection = Selection(old, new, *pins, base, clone or (), changed_pins=changed_pins, root=project)
    settings = settings_with(clone, project)
    try:
        sides = selection.build(progress)
    except StackUsageError:
        raise
    except StackError as error:  # what cannot be built cannot be tested
        progress(str(error))
        raise typer.Exit(SKIP) from None
    ledger = load_ledger(settings.root / "golden" / "declared") if path is None else Ledger()
    runner = Runner(new_run_folder(settings.root), sides, ledger, os.getpid(), Limits(seconds=seconds))
    try:
        outcome = runner.run(found)
    finally:
        runner.stop()
    console.print(f"{found.id}: {outcome.judged.verdict} {outcome.judged.why}", markup=False, soft_wrap=True)
    raise typer.Exit(_status(outcome.judged, path))


def _status(judged: Judged, path: str | None) -> int:
    """For `git bisect run`: what cannot be imported, or fails in another way than is looked for, cannot be tested."""
    shown = [item for item in judged.undeclared if path is None or matches(path, item.path)]
    raised = [item for item in judged.differences if item.path == "exception" and item.old != item.new]
    unusable = raised and (path is None or not shown) and (path is not None or raised[0].new.startswith(_NO_IMPORT))
    if judged.verdict in (Verdict.BROKEN, Verdict.NOT_RUN) or unusable:
        return SKIP
    return 1 if shown else 0


def named_case(
    name: str,
    parameters: list[str] | None,
    layout: str,
    written_by: str,
    written_layout: str | None,
    project: Path | None = None,
) -> Case:
    """A case by its probe, or by its id as an earlier run recorded it.

    Raises:
        ProbeError: no such probe, or no run here has such a case.
    """
    if "[" not in name:
        typed: dict[str, Any] = typed_parameters(parameters or [])
        return make_case(name, typed, layout=layout, written_by=written_by, written_layout=written_layout)
    if parameters:
        raise ProbeError(f"{name} is a case id, which has its parameters in it; leave out {parameters[0]!r}")
    wanted = name.partition("@")[0]
    runs = (settings_with(None, project).root / ".parity" / "runs").glob(f"*/{FILE}")
    for file in sorted(runs, reverse=True):
        for record in _recorded(Records(file.parent)):
            if record["case"].partition("@")[0] == wanted:
                layouts = record["layout"], record.get("old_layout") or record["layout"]
                return make_case(record["probe"], record["parameters"], "cpu", *layouts, **record.get("written", {}))
    raise ProbeError(f"no run here has a case {name!r}; type its probe and parameters: PROBE KEY=VALUE … --layout …")


def _recorded(records: Records) -> list[dict[str, Any]]:
    try:
        return latest_cases(records)
    except RecordsError:
        return []  # a run of another version, or one that was cut: its cases are looked for elsewhere


@contextmanager
def _origin(
    case: Case, settings: Settings, base: str | None, stack: str, pins: Sequence[str], seconds: float
) -> Iterator[_Origin]:
    folder = new_run_folder(settings.root)
    records = Records(folder)
    observer = Observer(folder, os.getpid(), records.write, limits=Limits(seconds=seconds))

    def writer(who: str) -> BuiltStack:
        chosen = settings.stack(stack, pins) if who in ("old", "new") else settings.stack(who)
        return build(chosen, settings, base=base, progress=progress)

    answers = Answers(settings.cache / "answers", case, observer, writer)
    try:
        yield _Origin(case, settings, answers, records)
    finally:
        observer.stop()


def _candidates(
    axis: str,
    good: str,
    bad: str,
    settings: Settings,
    named: list[str] | None,
    releases_only: bool,
    base: str | None,
    all_commits: bool,
) -> list[Candidate]:
    clone = settings.clones.get(axis)
    if named:
        return releases(axis, [good, *named, bad])
    if clone is not None and not releases_only:
        ends = [revision_of(axis, clone, end) for end in (good, bad)]
        return commits(axis, clone, ends[0], ends[1], first_parent=not all_commits)
    interpreter = bases.ensure(settings, base, progress).python

    def newest_below(version: str) -> str | None:
        below = nearest_releases(axis, version, python=interpreter, cwd=settings.root)[:1]
        return below[0] if below else None

    return releases_between(axis, good, bad, newest_below)


def fitting_workers() -> int:
    """As many as processors and memory allow; importing, the most of an attempt, keeps one processor busy."""
    return max(1, min(os.cpu_count() or 1, psutil.virtual_memory().available // _WORKER_MEMORY))


def _files(walk: Walk, settings: Settings) -> list[str]:
    culprits = walk.result.culprits
    commit = culprits[0].commit if len(culprits) == 1 else None
    moved = culprits[0].pins[-1 if "held" in culprits[0].label else 0].distribution
    clone = settings.clones.get(moved)
    return changed_files(clone, commit.hash) if commit and clone else []


def _again(case: Case, walk: Walk, stack: str, pins: Sequence[str]) -> str:
    result = walk.result
    good, bad = result.candidates[result.found.first - 1], result.culprits[-1]
    words = ["parity", "compare", *shlex.split(case.arguments), "--old", stack, "--new", stack]
    words += [word for pin in pins for word in ("--pin", pin)]
    for option, candidate in (("--old-pin", good), ("--new-pin", bad)):
        words += [word for pin in candidate.pins for word in (option, pin.requested)]
    return shlex.join(words)


def _about(origin: _Origin, stack: str) -> dict[str, str]:
    pins = {name: pin.requested.removeprefix(name) for name, pin in origin.settings.stack(stack).pins.items()}
    return {"stack": stack, **pins, **host_class()}


def _next(
    case: Case, changed: dict[str, tuple[str, str]] | Any, name: str, stack: str, path: str | None, settings: Settings
) -> str:
    ends = [text.rpartition("=")[2].rpartition("@")[2] for text in changed[name]]
    clone = "" if name in settings.clones else f" --clone {name}=PATH"
    words = ["parity", "bisect", *shlex.split(case.arguments), "--axis", name, "--good", ends[0], "--bad", ends[1]]
    words += ["--stack", stack] + (["--path", path] if path else [])
    return f"commit: {shlex.join(words)}{clone}"


def register(app: typer.Typer) -> None:
    """Add these commands to `parity`."""
    for command in (explain, bisect, check):
        app.command()(command)
