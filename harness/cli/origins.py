"""Where a difference comes from: `parity explain`, `parity bisect`, and `parity check` for `git bisect run`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from harness.bisect.candidates import releases, releases_between
from harness.bisect.focus import UNAVAILABLE
from harness.bisect.prior import Leads
from harness.bisect.walk import Line, Route
from harness.cli.handover import Handover
from harness.cli.options import (
    Base,
    ChangedPins,
    Clones,
    HowItRuns,
    Output,
    Parameters,
    StackPins,
    Wanted,
    WhereItRuns,
    WhichSides,
    Workers,
    console,
    progress,
    with_groups,
    write_file,
)
from harness.cli.searches import Held, Hunt, commit_route, named_case, origin_of
from harness.compare import Judged, Ledger, Verdict, load_ledger
from harness.explain.explanation import explain as explained
from harness.observe.globs import matches
from harness.report.bisected import bisected_markdown
from harness.report.explained import explained_lines, tried_lines
from harness.runner import Runner, new_run_folder
from harness.selection import settings_with
from harness.stacks import Builder, Settings, Stack, StackError, StackUsageError
from harness.stacks import base as bases
from harness.stacks.uv import nearest_releases
from harness.workers.protocol import Limits

SKIP = 125
"""What `git bisect run` takes for a revision that cannot be tested."""

_NO_IMPORT = ("ImportError:", "ModuleNotFoundError:", "SyntaxError:", "MissingSymbol:")

CaseName = Annotated[str, typer.Argument(metavar="CASE", help="A case id of an earlier run, or a probe's name.")]


@with_groups
def explain(
    case: CaseName,
    parameters: Parameters = None,
    *,
    how: HowItRuns,
    where: WhereItRuns,
    path: Wanted = None,
    sides: WhichSides,
    bisects: Annotated[
        bool, typer.Option("--bisect/--no-bisect", help="Go on to the commit where a clone of the guilty pin is known.")
    ] = True,
    workers: Workers = None,
) -> None:
    r"""Say which pin brings a difference, which config field causes it, and which commit brought it.

    Pins of the new side are put into the old one, alone and in minimal groups; then the config fields that changed
    are set back on the guilty step, one at a time and in minimal groups. A field is named only if setting it back
    restores parity; where none does, the first module that diverges and what changed of its sources. With a clone of
    the guilty pin (--clone, or PARITY_CLONES) its commits are searched, those that touch the field first; without,
    the last line is the command that does. What was observed before is read back.

    Examples: parity explain 'training_step\[bfloat16,dp2]' --old verl-0.8.0 --new verl-0.9.1
    · parity explain training_step dtype=bfloat16 --layout dp2
    """
    settings = settings_with(sides.clone)
    found = named_case(case, parameters, how, lane=where.lane)
    lane = where.choice
    names = sides.old or settings.old, sides.new or settings.new
    held = Held(names[0], (*(sides.pin or ()), *(sides.old_pin or ())))
    old = settings.stack(held.stack, held.pins).pins
    new = settings.stack(names[1], (*(sides.pin or ()), *(sides.new_pin or ()))).pins
    with origin_of(found, sides.builder(settings), held, lane, how.seconds) as origin:
        explanation = explained(found.id, origin.attempts(held), old, new, path, progress)
        again = " ".join(filter(None, ["parity compare", found.arguments, sides.selection().options, lane.options]))
        lines = explained_lines(found.id, explanation, f"{names[0]} → {names[1]}", again)
        lines += Handover(origin, held, explanation, old, new, bisects, workers).lines()
        origin.records.write("explained", {"case": found.id, "lines": lines, "tried": tried_lines(explanation)})
    for line in [*lines, "", *tried_lines(explanation)]:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{origin.answers.made} observations made, the others read back", style="dim")


@with_groups
def bisect(
    case: CaseName,
    parameters: Parameters = None,
    *,
    axis: Annotated[str, typer.Option(help="The distribution that moves, e.g. megatron-bridge.")],
    good: Annotated[str, typer.Option(help="Release, tag or revision without the difference.")],
    bad: Annotated[str, typer.Option(help="Release, tag or revision with it.")],
    how: HowItRuns,
    where: WhereItRuns,
    path: Wanted = None,
    field: Annotated[
        list[str] | None,
        typer.Option(help="Try first the commits that touch this name (default: the field that the difference names)."),
    ] = None,
    file: Annotated[
        list[str] | None, typer.Option(help="Try first the commits that change this file; the end of a path will do.")
    ] = None,
    stack: Annotated[str | None, typer.Option(help="Holds every other pin (default: `new` of tool.parity).")] = None,
    pin: StackPins = None,
    base: Base = None,
    clone: Clones = None,
    release: Annotated[
        list[str] | None, typer.Option("--release", help="Walk these releases alone, not commits; repeat the option.")
    ] = None,
    releases_only: Annotated[bool, typer.Option("--releases", help="Walk all releases between, not commits.")] = False,
    alone: Annotated[bool, typer.Option(help="Hold Megatron-Core where the stack pins it while Bridge moves.")] = False,
    all_commits: Annotated[bool, typer.Option(help="Walk every commit, not first parents alone.")] = False,
    workers: Workers = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="When to stop, where the case is flaky.")
    ] = 0.97,
    only_say: Annotated[bool, typer.Option("--dry-run", help="Say how many rounds it takes, and stop.")] = False,
    output: Output = None,
) -> None:
    """Find the release or the commit that brought a difference.

    Both ends are verified first, twice each. A candidate is bad if it shows the same difference, good if it shows
    none, and is passed over if it cannot run or fails in another way. A case that is not the same twice is searched by
    expected information, stopping at --confidence. Interrupted, the same command goes on where it was.

    With a clone of the axis (--clone, or PARITY_CLONES) its commits are walked, along first parents; for
    megatron-bridge together with the Megatron-Core commits it records, if there is a clone of that too. Commits that
    touch the field, or a file that names it, are tried first.

    Example: parity bisect ddp_config --axis megatron-bridge --good 0.5.1 --bad 0.6.0 --clone megatron-bridge=DIR
    """
    if good == bad:
        raise StackUsageError(f"--good and --bad are both {good}: there is nothing between them to search")
    settings = settings_with(clone)
    found = named_case(case, parameters, how, lane=where.lane)
    lane = where.choice
    hunt = Hunt(path, Leads(tuple(field or ()), tuple(file or ())), workers, confidence)
    held = Held(stack or settings.new, tuple(pin or ()))
    _verify_axis(axis, settings.stack(held.stack, held.pins))
    moving = settings.clones.get(axis)
    if release:
        route: Route = Line(axis, releases(axis, [good, *release, bad]))
    elif releases_only or moving is None:
        route = _between_releases(axis, good, bad, settings, base)
    else:
        core = settings.clones.get("megatron-core") if axis == "megatron-bridge" and not alone else None
        route = commit_route(axis, good, bad, moving, core, first_parent=not all_commits)
    progress(route.told(hunt.at_a_time))
    if only_say:
        return
    with origin_of(found, Builder(settings, base, None, progress), held, lane, how.seconds) as origin:
        walk = origin.walk(route, held, hunt)
        text = bisected_markdown(found.id, walk, origin.files(walk), origin.again(walk, held), origin.about(held))
        origin.records.write("bisected", {"case": found.id, "markdown": text})
    console.print(text, markup=False, soft_wrap=True, end="")
    if output is not None:
        write_file(output, text)


@with_groups
def check(
    case: CaseName,
    parameters: Parameters = None,
    *,
    how: HowItRuns,
    where: WhereItRuns,
    path: Annotated[str | None, typer.Option("--path", help="Glob: look at these differences alone.")] = None,
    sides: WhichSides,
    changed_pins: ChangedPins = None,
    project: Annotated[Path | None, typer.Option(help="Folder of the pyproject.toml that names the stacks.")] = None,
) -> None:
    """One case for `git bisect run`: exit status 0 without the difference, 1 with it, 125 where it cannot be tested.

    Example, in a clone: git bisect run parity check ddp_config --project ../parity --new-pin megatron-bridge=path:.
    """
    found = named_case(case, parameters, how, project, where.lane)
    lane = where.choice
    settings = settings_with(sides.clone, project)
    try:
        built = sides.selection(changed_pins=changed_pins, lane=lane, root=project).build(progress)
    except StackUsageError:
        raise
    except StackError as error:  # what cannot be built cannot be tested
        progress(str(error))
        raise typer.Exit(SKIP) from None
    ledger = load_ledger(settings.root / "golden" / "declared") if path is None else Ledger()
    runner = Runner(new_run_folder(settings.root), built, ledger, os.getpid(), Limits(seconds=how.seconds), lane=lane)
    try:
        outcome = runner.run(found)
    finally:
        runner.stop()
    console.print(f"{found.id}: {outcome.judged.verdict} {outcome.judged.why}", markup=False, soft_wrap=True)
    raise typer.Exit(status_of(outcome.judged, path))


def status_of(judged: Judged, path: str | None) -> int:
    """For `git bisect run`: what cannot be imported, or fails in another way than is looked for, cannot be tested."""
    shown = [item for item in judged.undeclared if path is None or matches(path, item.path)]
    raised = [item for item in judged.differences if item.path == "exception" and item.old != item.new]
    unusable = raised and (path is None or not shown) and (path is not None or raised[0].new.startswith(_NO_IMPORT))
    lacking = any(item.path == UNAVAILABLE for item in judged.differences)
    if judged.verdict in (Verdict.BROKEN, Verdict.NOT_RUN) or lacking or unusable:
        return SKIP
    return 1 if shown else 0


def _verify_axis(axis: str, stack: Stack) -> None:
    """Refuse to move what the stack does not pin: most likely its name is misspelt."""
    if axis not in stack.pins:
        raise StackUsageError(
            f"--axis {axis}: stack {stack.name} has no such pin; it has {', '.join(stack.pins)}. "
            f"To move another distribution, pin it: --pin {axis}==VERSION"
        )


def _between_releases(axis: str, good: str, bad: str, settings: Settings, base: str | None) -> Route:
    interpreter = bases.ensure(settings, base, progress).python

    def newest_below(version: str) -> str | None:
        below = nearest_releases(axis, version, python=interpreter, cwd=settings.root)[:1]
        return below[0] if below else None

    return Line(axis, releases_between(axis, good, bad, newest_below))


def register(app: typer.Typer) -> None:
    """Add these commands to `parity`."""
    for command in (explain, bisect, check):
        app.command()(command)
