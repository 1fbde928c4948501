"""The terminal view of a run: what fails and what to type next first, then counts; the cases where there are few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.compare import Verdict
from harness.report.findings import Finding
from harness.report.records import FILE, without_controls
from harness.report.run_view import UNEXPLAINED, CaseRecord, RunView
from harness.report.tables import print_rows, print_save_and_load

_STYLES: dict[str, str] = {
    Verdict.IDENTICAL: "green",
    Verdict.WITHIN_NOISE: "green",
    Verdict.DECLARED: "cyan",
    Verdict.MASKED: "yellow",
    Verdict.UNSUPPORTED: "yellow",
    Verdict.DRIFT: "yellow",
    Verdict.NOT_RUN: "dim",
    UNEXPLAINED: "yellow",
}
_FEW_CASES = 40
"""So many cases are listed; more are folded to counts, but for those that nobody expects."""
_WIDE = 100
"""Columns of a console that has room for how long a case took."""
_VERDICT = max(map(len, Verdict))
_UNFOLDED = (Verdict.MASKED, Verdict.DRIFT)
_FINDINGS = 12
_DIFFERENCES = 4
_TENSORS = 3
_ROWS = 8
_VALUE = 400


def print_run(run: RunView, console: Console, *, all_cases: bool = False) -> None:
    """Print the verdict line, the findings, the cases (folded to counts where there are many), and the summary."""
    run = replace(run, cases=tuple(without_controls(dict(case)) for case in run.cases))
    _print_verdict(run, console)
    for number, found in enumerate(run.findings[:_FINDINGS], 1):
        console.print()
        _print_finding(number, found, console)
    _print_rest(run.findings, console)
    console.print()
    fold = len(run.cases) > _FEW_CASES and not all_cases
    _print_cases(run, console, fold=fold)
    print_save_and_load(run.cases, console, only_failing=fold)
    print_summary(run, console)


def print_summary(run: RunView, console: Console) -> None:
    """Print the table of a run's areas, its summary line, what stood in for the old side, and where the records are."""
    print_areas(run, console)
    console.print()
    console.print(Text(run.summary, "bold"), soft_wrap=True)
    if run.triage:
        console.print(Text(run.triage), soft_wrap=True)
    if run.golden:
        console.print(Text(run.golden, "yellow"), soft_wrap=True)
    console.print(Text(f"records: {run.folder / FILE}"), soft_wrap=True)


def print_areas(run: RunView, console: Console) -> None:
    """Print how many cases of each area came to which verdict, and how many declared differences nobody can explain.

    An area is a file of the suites. Verdicts that no case came to have no column; the last row counts all cases. A
    console that is too narrow for columns gets the counts in words.
    """
    columns = [*(name for name in run.columns if name != UNEXPLAINED), UNEXPLAINED]
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0), show_footer=len(run.areas) > 1)
    table.add_column("area", "all", no_wrap=True)
    for name in columns:
        table.add_column(name, str(run.counts[name]), justify="right", no_wrap=True, style=_style(name))
    for area, counts in run.areas.items():
        table.add_row(Text(area), *(str(counts[name] or "") for name in columns))
    if Measurement.get(console, console.options.update(max_width=1000), table).maximum > console.width:
        table = _areas_in_words(run, columns)
    console.print(table)


def _areas_in_words(run: RunView, columns: Sequence[str]) -> Table:
    rows = [*run.areas.items(), *([("all", run.counts)] if len(run.areas) > 1 else [])]
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("area", overflow="fold")
    table.add_column("cases")
    for area, counts in rows:
        words = {name: f"{counts[name]} {name}" for name in columns if counts[name]}
        if UNEXPLAINED in words:
            words[UNEXPLAINED] = f"{counts[UNEXPLAINED]} differences unexplained"
        told = [Text(text, _style(name)) for name, text in words.items()]
        table.add_row(Text(area), Text(", ").join(told))
    return table


def _print_verdict(run: RunView, console: Console) -> None:
    console.print(Text(run.verdict_line, "bold red" if run.fails else "bold green"), soft_wrap=True)
    took = f" · {run.took}" if run.took else ""
    console.print(Text(f"{run.title} · {run.lane} lane{took}"), soft_wrap=True)
    for pin in run.moved if run.sides[0] != run.sides[1] else ():
        commits = f" ({pin.between})" if pin.between else ""
        console.print(Text(f"  {pin.distribution} {pin.old} → {pin.new}{commits}"), soft_wrap=True)


def _print_finding(number: int, found: Finding, console: Console) -> None:
    alike = f" and {len(found.alike)} more alike" if found.alike else ""
    console.print(
        Text.assemble(f"{number}. ", (found.label, _style(found.verdict)), " ", (found.case["case"], "bold"), alike),
        soft_wrap=True,
    )
    if found.divergence.get("why"):
        _print_line(found.divergence["why"], console)
    for difference in found.differences[:_DIFFERENCES]:
        _print_difference(difference, found.ends, console)
    _print_more(found.differences, _DIFFERENCES, console)
    for line in found.distances[:_TENSORS]:
        _print_line(line, console)
    _print_more(found.distances, _TENSORS, console, "tensors")
    if not found.differences and not found.distances:
        _print_line(found.case["why"], console)
    near, far = found.config_rows
    if near or far:
        touch = f"that touch {found.divergence['module']}" if near else "of the resolved configs that differ"
        _print_line(f"fields {touch}:", console, "dim")
        for row in (near or far)[:_ROWS]:
            _print_line(f"  {row['field']}: {row['old']} → {row['new']}", console)
        _print_more(near or far, _ROWS, console)
    for why, command in found.commands.items():
        console.print(Text.assemble(f"   {why:<8}", (command, "cyan")), soft_wrap=True)


def _print_difference(difference: Mapping[str, str], ends: tuple[str, str], console: Console) -> None:
    """One line where it fits, else three."""
    path, old, new = (difference[key] for key in ("path", "old", "new"))
    line = f"{path}: {old} → {new}"
    if "\n" not in line and len(line) + 3 <= console.width:
        _print_line(line, console)
        return
    _print_line(f"{path}:", console)
    for end, value in zip(ends, (old, new), strict=True):
        _print_line(f"  {end} {_short(value)}", console)


def _print_line(line: str, console: Console, style: str = "") -> None:
    for part in line.splitlines():
        console.print(Text(f"   {part}", style), soft_wrap=True)


def _print_more(items: Sequence[object], shown: int, console: Console, what: str = "") -> None:
    if len(items) > shown:
        _print_line(f"… and {len(items) - shown} more {what}".rstrip(), console, "dim")


def _print_rest(findings: Sequence[Finding], console: Console) -> None:
    """A line for each finding beyond those told in full."""
    rest = findings[_FINDINGS:]
    if rest:
        console.print()
    for number, found in enumerate(rest, _FINDINGS + 1):
        alike = f" (+{len(found.alike)})" if found.alike else ""
        told = f" {found.case['case']}{alike}: {_one_line(found.case)}"
        line = Text.assemble(f"{number}. ", (found.label, _style(found.verdict)), told)
        console.print(line, no_wrap=True, overflow="ellipsis")


def _print_cases(run: RunView, console: Console, *, fold: bool) -> None:
    shown = [case for case in run.cases if case["verdict"] in _UNFOLDED] if fold else run.cases
    if shown:
        _print_case_list(shown, console)
        console.print()
    if fold:
        console.print(Text(f"{len(run.cases)} cases; `parity report --cases` lists them", "dim"), soft_wrap=True)


def _print_case_list(cases: Sequence[CaseRecord], console: Console) -> None:
    took = not console.is_terminal or console.width >= _WIDE
    rows = [("case", _told("verdict", "seconds" if took else "", "why", "bold"))]
    for case in cases:
        verdict, seconds = Verdict(case["verdict"]), f"{case['seconds']:.2f}" if took else ""
        rows.append((case["case"], _told(verdict, seconds, _one_line(case), _style(verdict))))
    print_rows(rows, console)


def _told(verdict: str, seconds: str, why: str, style: str) -> Text:
    took = f"{seconds:>7}  " if seconds else ""
    return Text.assemble((f"{verdict:<{_VERDICT}}", style), f"  {took}{why}")


def _style(verdict: str) -> str:
    return _STYLES.get(verdict, "bold red")


def _short(text: str) -> str:
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}… ({len(text) - _VALUE} characters more)"


def _one_line(case: CaseRecord) -> str:
    masked = ", ".join(mask["path"] for mask in case.get("masked", ()))
    why = str(case["why"]).splitlines()[0] if case["why"] else ""
    if masked and case["verdict"] != Verdict.MASKED:
        why = f"{why} [masked: {masked}]".strip()
    return why
