"""Lists of cases whose ids stay whole, and who reads what whom wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare import Verdict
from harness.report.records import Records, without_controls


def print_rows(rows: Sequence[tuple[str, Text]], console: Console) -> None:
    """A line for each case id, or other name, and what is told of it.

    Names stay whole, to be copied and searched for: a terminal has a long one on a line above the rest, and elsewhere
    lines are as long as they need to be.
    """
    widest = max(len(name) for name, _ in rows)
    column = min(widest, console.width // 2) if console.is_terminal else widest
    for name, told in rows:
        before = name if len(name) <= column else ""
        if not before:
            console.print(Text(name), soft_wrap=True)
        line = Text.assemble(f"{before:<{column}}  ", told)
        if console.is_terminal:
            console.print(line, no_wrap=True, overflow="ellipsis")
        else:
            console.print(line, soft_wrap=True)


def print_save_and_load(cases: Iterable[Mapping[str, Any]], console: Console, *, only_failing: bool = False) -> None:
    """For every check of files that a named stack wrote: writers down, readers across, the verdict in each cell.

    Args:
        only_failing: leave out checks in which nothing fails.
    """
    cells: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for case in cases:
        writer = (case.get("written") or {}).get("written_by")
        if case.get("stack") and writer:
            subject = case["case"].replace(f"written_by={writer}", "").replace("[,", "[").replace(",]", "]")
            cells[subject.partition("@")[0].replace("[]", "")][writer, case["stack"]] = case["verdict"]
    for subject, found in sorted(cells.items()):
        if only_failing and not any(Verdict(verdict).fails for verdict in found.values()):
            continue
        readers = sorted({reader for _, reader in found})
        table = Table(title=Text(subject, "bold"), title_justify="left", box=None, pad_edge=False)
        table.add_column("written by ↓, read by →")
        for reader in readers:
            table.add_column(reader)
        for writer in sorted({writer for writer, _ in found}):
            table.add_row(writer, *(found.get((writer, reader), "") for reader in readers))
        console.print(table)
        console.print()


def print_regressions(records: Records, cases: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Every known regression that a test of the run was marked with: its cases, their verdicts, and why."""
    by_case = {case["case"]: without_controls(dict(case)) for case in cases}
    marked = {(name, event["case"]) for event in records.read("regression") for name in event["ids"]}
    rows = [("id, case", Text("verdict: why", "bold"))]
    for name, case in sorted(marked):
        if case in by_case:
            found = by_case[case]
            why = found["why"].splitlines()[0] if found["why"] else ""
            rows.append((f"{name}  {case}", Text(f"{found['verdict']}: {why}".removesuffix(": "))))
    if marked:
        console.print(Text("known regressions", "bold"))
        print_rows(rows, console)
