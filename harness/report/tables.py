"""Tables beside the list of cases: who reads what whom wrote, and the known regressions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare import Verdict
from harness.report.records import Records


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
    by_case = {case["case"]: case for case in cases}
    marked = {(name, event["case"]) for event in records.read("regression") for name in event["ids"]}
    table = Table(title=Text("known regressions", "bold"), title_justify="left", box=None, pad_edge=False, expand=True)
    table.add_column("id", no_wrap=True)
    table.add_column("case", overflow="fold", ratio=4)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=6)
    for name, case in sorted(marked):
        if case in by_case:
            found = by_case[case]
            why = found["why"].splitlines()[0] if found["why"] else ""
            table.add_row(name, Text(case), found["verdict"], Text(why))
    if marked:
        console.print(table)
