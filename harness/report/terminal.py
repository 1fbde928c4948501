"""The terminal view of a run: a table of cases, the summary line, and where the records are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare import Triage, Verdict
from harness.report.records import Records, latest_cases

_ALWAYS_SHOWN = (Verdict.IDENTICAL, Verdict.DECLARED, Verdict.REGRESSION)
_STYLES: dict[str, str] = {
    Verdict.IDENTICAL: "green",
    Verdict.WITHIN_NOISE: "green",
    Verdict.DECLARED: "cyan",
    Verdict.MASKED: "yellow",
    Verdict.UNSUPPORTED: "yellow",
    Verdict.DRIFT: "yellow",
    Verdict.NOT_RUN: "dim",
}


def summary_line(cases: Iterable[Mapping[str, Any]]) -> str:
    """`41 identical · 3 declared · 0 regression · 6 not_run · 0 unexplained · evidence 44 of 44`."""
    cases = list(cases)
    counts = Counter(case["verdict"] for case in cases)
    shown = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict] or verdict in _ALWAYS_SHOWN]
    ran = [case for case in cases if case["verdict"] != Verdict.NOT_RUN]
    if any(case.get("declared_by") for case in cases):
        shown.append(f"{_count(cases, 'unexplained')} unexplained")
    return " · ".join([*shown, f"evidence {sum(case['evidence'] for case in ran)} of {len(ran)}"])


def triage_line(cases: Iterable[Mapping[str, Any]]) -> str:
    """`triage: 2 new · 1 flaky`; empty where nothing was triaged."""
    counts = Counter(case.get("triage") for case in cases)
    told = [f"{counts[label]} {label}" for label in Triage if counts[label]]
    return f"triage: {' · '.join(told)}" if told else ""


def print_areas(cases: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print how many cases of each area came to which verdict, and how many declared differences nobody can explain.

    An area is a file of the suites. Verdicts that no case came to have no column; the last row counts all cases.
    """
    rows = {area: list(members) for area, members in groupby(sorted(cases, key=_area), key=_area)}
    verdicts = [verdict for verdict in Verdict if any(case["verdict"] == verdict for case in cases)]
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0), show_footer=len(rows) > 1)
    table.add_column("area", "all", overflow="fold")
    for name in [*verdicts, "unexplained"]:
        table.add_column(name, str(_count(cases, name)), justify="right", overflow="fold", style=_style(name))
    for area, members in rows.items():
        counts = [_count(members, name) for name in [*verdicts, "unexplained"]]
        table.add_row(Text(area), *(str(count or "") for count in counts))
    console.print(table)


def _area(case: Mapping[str, Any]) -> str:
    return str(case["area"])


def _count(cases: Iterable[Mapping[str, Any]], name: str) -> int:
    """How many cases came to a verdict, or how many declared differences of theirs are `unexplained`."""
    if name == "unexplained":
        return sum(change["class_"] == name for case in cases for change in case.get("declared_by", ()))
    return sum(case["verdict"] == name for case in cases)


def golden_line(old: Mapping[str, Any]) -> str:
    """What to say of the old side where its goldens stood in for it; empty where it ran."""
    return f"old = golden: {old['name']} was not run; {old['golden']}" if old["golden"] else ""


def print_run(records: Records, console: Console) -> None:
    """Print the table of a run's cases, sorted by id, then its areas and summary line."""
    _print_cases(latest_cases(records), console)
    console.print()
    print_summary(records, console)


def print_summary(records: Records, console: Console) -> None:
    """Print the table of a run's areas, its summary line, what stood in for the old side, and where the records are."""
    cases = latest_cases(records)
    print_areas(cases, console)
    console.print()
    console.print(Text(summary_line(cases), "bold"), soft_wrap=True)
    triaged = triage_line(cases)
    if triaged:
        console.print(Text(triaged), soft_wrap=True)
    told = golden_line(records.start["old"])
    if told:
        console.print(Text(told, "yellow"), soft_wrap=True)
    console.print(Text(f"records: {records.file}"), soft_wrap=True)


def _print_cases(cases: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column("case", overflow="fold", ratio=4)
    table.add_column("verdict", no_wrap=True, width=max(len(verdict) for verdict in Verdict))
    table.add_column("seconds", justify="right", no_wrap=True, width=7)
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=6)
    for case in cases:
        verdict = Verdict(case["verdict"])
        table.add_row(
            Text(case["case"]), Text(verdict, _style(verdict)), f"{case['seconds']:.2f}", Text(_one_line(case))
        )
    console.print(table)


def _style(verdict: str) -> str:
    return _STYLES.get(verdict, "bold red")


def _one_line(case: Mapping[str, Any]) -> str:
    masked = ", ".join(mask["path"] for mask in case.get("masked", ()))
    why = case["why"].splitlines()[0] if case["why"] else ""
    if case.get("triage"):
        why = f"{case['triage']}: {why}"
    if masked and case["verdict"] != Verdict.MASKED:
        why = f"{why} [masked: {masked}]".strip()
    return why
