"""Goldens and ledger: `parity golden`, `parity declare`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Base, Bundle, Clones, RunFolder, RunOld, console, latest_run, progress, with_groups
from harness.golden_verbs import GoldenDesk, lane_of
from harness.goldens import GoldenError
from harness.report import Records, RecordsError, draft_ledger, latest_cases
from harness.runner import ROLES
from harness.selection import Selection, goldens_of
from harness.stacks import load_settings

golden_app = typer.Typer(
    help="Goldens: observations of the old stack kept under golden/. A run never writes one.", no_args_is_help=True
)


@dataclass(frozen=True)
class Recording:
    """What is recorded, and on which stack: options of every command that writes goldens."""

    run: RunFolder = None
    old: RunOld = None
    base: Base = None
    clone: Clones = None
    bundle: Bundle = None

    def selection(self, run: Path) -> Selection:
        """The old side that runs again; by default the stack that was that of the run."""
        return Selection(old=self.old or _old_stack(run), base=self.base, clones=self.clone or (), bundle=self.bundle)


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
@with_groups
def golden_new(
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="[CASE]…", help="Cases (default: all without one).")
    ] = None,
    *,
    recording: Recording,
) -> None:
    """Record goldens for cases of the latest run that have none yet."""
    desk = _desk(recording.run)
    missing = desk.missing()
    taken = [case for case in cases or [] if case not in missing]
    if taken:
        raise GoldenError(f"{taken[0]} has a golden already, or no observation; see `parity golden status`")
    _accept(desk, cases or missing, "first recording", recording)


@golden_app.command("accept")
@with_groups
def golden_accept(
    cases: Annotated[list[str], typer.Argument(metavar="CASE…", help="Exactly these are written.")],
    why: Annotated[str, typer.Option(help="Why the change is accepted; kept in the golden's history.")],
    *,
    recording: Recording,
) -> None:
    """Write the goldens of the named cases from the latest run's old side."""
    if not why.strip():
        raise GoldenError("--why must say why")
    _accept(_desk(recording.run), cases, why, recording)


@golden_app.command("prune")
def golden_prune(run: RunFolder = None) -> None:
    """Delete goldens of cases that no longer exist; only after a complete green run."""
    pruned = _desk(run).prune()
    console.print("\n".join(pruned) or "nothing to prune", markup=False, soft_wrap=True)


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


def _desk(run: Path | None) -> GoldenDesk:
    """The goldens of the stack that was the old side of a run, on its lane."""
    folder = (run or latest_run()).resolve()  # workers run in a folder of their own
    return GoldenDesk(folder, goldens_of(_old_stack(folder), load_settings(), lane_of(folder)))


def _old_stack(run: Path) -> str:
    return str(Records(run).start["old"]["name"])


def _accept(desk: GoldenDesk, cases: list[str], why: str, recording: Recording) -> None:
    if not cases:
        console.print("nothing to record")
        return
    desk.accept(cases, why, recording.selection(desk.run).build_old(progress), progress)
    console.print(f"{len(cases)} golden(s) written")


def register(app: typer.Typer) -> None:
    """Add these commands to `parity`."""
    app.add_typer(golden_app, name="golden")
    app.command()(declare)
