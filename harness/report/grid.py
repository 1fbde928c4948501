"""A matrix of pins: combinations as a grid, and what every case came to on each of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.matrix import Cell, Found, Observed, held, value_of
from harness.report.records import without_controls
from harness.stacks import Pin

Results = Mapping[str, Mapping[str, Found]]
"""Case id → letter of a combination → what was found; without those that could not be built."""

_LONGEST = 28

_MARKS = {
    Cell.RUNS: ("✓", "green"),
    Cell.SAME: ("=", "green"),
    Cell.SOURCES: ("~", "cyan"),
    Cell.DECLARED: ("d", "cyan"),
    Cell.DIFFERS: ("≠", "yellow"),
    Cell.RAISES: ("✗", "bold red"),
    Cell.BROKEN: ("!", "bold red"),
    Cell.NOT_RUN: ("·", "dim"),
}
_MEANINGS = {
    Cell.RUNS: "runs",
    Cell.SAME: "as on {base}",
    Cell.SOURCES: "as on {base}, by other functions",
    Cell.DECLARED: "differs from {base} as declared",
    Cell.DIFFERS: "differs from {base}",
    Cell.RAISES: "raises",
    Cell.BROKEN: "broken",
    Cell.NOT_RUN: "not run",
}
_WORKS = (Cell.RUNS, Cell.SAME, Cell.SOURCES, Cell.DECLARED, Cell.DIFFERS)
_TOLD = (Cell.SOURCES, Cell.DIFFERS, Cell.RAISES, Cell.BROKEN, Cell.NOT_RUN)


def print_matrix(observed: Sequence[Observed], base: Observed, results: Results, console: Console) -> None:
    """The grid of combinations, the table of cases, and the legend."""
    console.print(_grid(observed, results))
    console.print()
    console.print(_table(observed, results))
    console.print(_legend(base, results))


def print_reasons(observed: Sequence[Observed], results: Results, console: Console) -> None:
    """For each combination its other pins, and why cases fail or differ on it; cases of one reason together."""
    for found in observed:
        letter, about = found.combination.letter, without_controls(found.combination.label)
        console.print(
            Text.assemble(
                (f"\n{letter}  {about}", "bold"), (f"  with {without_controls(held(found.combination))}", "dim")
            )
        )
        if found.why:
            console.print(Text(f"   cannot be built: {without_controls(found.why)}", "red"))
        alike: dict[tuple[Cell, str], list[str]] = defaultdict(list)
        for case, cells in results.items():
            if letter in cells and cells[letter].cell in _TOLD:
                alike[cells[letter].cell, cells[letter].why].append(case)
        for (cell, why), cases in alike.items():
            told = without_controls(f"{', '.join(cases)}: {why}")
            console.print(Text.assemble(("   ", ""), _MARKS[cell], f" {told}"))


def _grid(observed: Sequence[Observed], results: Results) -> Table:
    """The last axis across, the others down; how many cases run, and how many of them differ."""
    across = list(dict.fromkeys(found.combination.pins[-1] for found in observed))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for pin in across:
        table.add_column(_short(pin), overflow="fold")
    for pins, members in groupby(observed, key=lambda found: found.combination.pins[:-1]):
        table.add_row(Text("\n".join(map(_short, pins)), "bold"), *(_summary(found, results) for found in members))
    return table


def _short(pin: Pin) -> str:
    """A pin as a heading; the end of a path or an address tells it from others."""
    value = without_controls(value_of(pin))
    return f"{pin.distribution} {value if len(value) <= _LONGEST else '…' + value[1 - _LONGEST :]}"


def _summary(found: Observed, results: Results) -> Text:
    letter = found.combination.letter
    if found.built is None:
        return Text(f"{letter}  cannot be built", "bold red")
    counts = Counter(cells[letter].cell for cells in results.values())
    runs, differ = sum(counts[cell] for cell in _WORKS), counts[Cell.DIFFERS]
    style = "green" if runs == len(results) else "yellow" if runs else "bold red"
    return Text(f"{letter}  {runs}/{len(results)} run" + (f", {differ} ≠" if differ else ""), style)


def _table(observed: Sequence[Observed], results: Results) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("case", overflow="fold")
    for found in observed:
        table.add_column(found.combination.letter, justify="center")
    for case, cells in results.items():
        letters = [found.combination.letter for found in observed]
        table.add_row(
            Text(without_controls(case)), *(Text(*_MARKS[cells[at].cell]) if at in cells else "" for at in letters)
        )
    return table


def _legend(base: Observed, results: Results) -> Text:
    used = {found.cell for cells in results.values() for found in cells.values()}
    told = [f"{_MARKS[cell][0]} {_MEANINGS[cell]}" for cell in Cell if cell in used]
    return Text("   ".join(told).format(base=base.combination.letter), "dim")
