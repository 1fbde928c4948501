"""The terminal view of a run: a table of cases, the summary line, and where the records are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare import Verdict
from harness.report.records import Records

_ALWAYS_SHOWN = (Verdict.IDENTICAL, Verdict.DECLARED, Verdict.REGRESSION)
_STYLES = {
    Verdict.IDENTICAL: "green",
    Verdict.WITHIN_NOISE: "green",
    Verdict.DECLARED: "cyan",
    Verdict.MASKED: "yellow",
    Verdict.UNSUPPORTED: "yellow",
    Verdict.DRIFT: "yellow",
    Verdict.NOT_RUN: "dim",
}


def summary_line(cases: Iterable[Mapping[str, Any]]) -> str:
    """`41 identical · 3 declared · 0 regression · 6 not_run · evidence 44 of 44`."""
    cases = list(cases)
    counts = Counter(case["verdict"] for case in cases)
    shown = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict] or verdict in _ALWAYS_SHOWN]
    ran = [case for case in cases if case["verdict"] != Verdict.NOT_RUN]
    unexplained = sum(
        any(change["class_"] == "unexplained" for change in case.get("declared_by", ())) for case in cases
    )
    shown += [f"{unexplained} unexplained"] if unexplained else []
    return " · ".join([*shown, f"evidence {sum(case['evidence'] for case in ran)} of {len(ran)}"])


def golden_line(old: Mapping[str, Any]) -> str:
    """What to say of the old side where its goldens stood in for it; empty where it ran."""
    return f"old = golden: {old['name']} was not run; {old['golden']}" if old["golden"] else ""


def print_run(records: Records, console: Console) -> None:
    """Print the table of a run's cases, sorted by id, then its summary line."""
    cases = latest_cases(records)
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column("case", overflow="fold", ratio=4)
    table.add_column("verdict", no_wrap=True, width=max(len(verdict) for verdict in Verdict))
    table.add_column("seconds", justify="right", no_wrap=True, width=7)
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=6)
    for case in cases:
        verdict = Verdict(case["verdict"])
        style = _STYLES.get(verdict, "bold red")
        table.add_row(Text(case["case"]), Text(verdict, style), f"{case['seconds']:.2f}", Text(_one_line(case)))
    console.print(table)
    console.print(Text(summary_line(cases), "bold"), soft_wrap=True)
    told = golden_line(records.start["old"])
    if told:
        console.print(Text(told, "yellow"), soft_wrap=True)
    console.print(Text(f"records: {records.file}"), soft_wrap=True)


def latest_cases(records: Records) -> list[dict[str, Any]]:
    """The last record of every case, sorted by id."""
    by_id = {record["case"]: record for record in records.read("case")}
    return [by_id[case] for case in sorted(by_id)]


def _one_line(case: Mapping[str, Any]) -> str:
    masked = ", ".join(mask["path"] for mask in case.get("masked", ()))
    why = case["why"].splitlines()[0] if case["why"] else ""
    if masked and case["verdict"] != Verdict.MASKED:
        why = f"{why} [masked: {masked}]".strip()
    return why
