"""A matrix of pins: combinations as a grid, and what every case came to on each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.matrix import Cell, Found, Observed, held, value_of
from harness.stacks import Pin

Results = Mapping[str, Mapping[str, Found]]
"""Case id → letter of a combination → what was found; without those that could not be built."""

_LONGEST = 28

_MARKS = {
    Cell.RUNS: ("✓", "green"),
    Cell.SAME: ("=", "green"),
    Cell.DECLARED: ("d", "cyan"),
    Cell.DIFFERS: ("≠", "yellow"),
    Cell.RAISES: ("✗", "bold red"),
    Cell.BROKEN: ("!", "bold red"),
    Cell.NOT_RUN: ("·", "dim"),
}
_MEANINGS = {
    Cell.RUNS: "runs",
    Cell.SAME: "as in {first}",
    Cell.DECLARED: "differs from {first} as declared",
    Cell.DIFFERS: "differs from {first}",
    Cell.RAISES: "raises",
    Cell.BROKEN: "broken",
    Cell.NOT_RUN: "not run",
}
_WORKS = (Cell.RUNS, Cell.SAME, Cell.DECLARED, Cell.DIFFERS)


def print_matrix(observed: Sequence[Observed], results: Results, console: Console) -> None:
    """The grid of combinations, the table of cases, the legend, and what differs or fails, with its reason."""
    console.print(_grid(observed, results))
    console.print()
    console.print(_table(observed, results))
    console.print(_legend(observed, results))
    for line in _reasons(observed, results):
        console.print(line)


def _grid(observed: Sequence[Observed], results: Results) -> Table:
    """The last axis across, the others down; how many cases run, and how many of them differ."""
    across = list(dict.fromkeys(found.combination.pins[-1] for found in observed))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for pin in across:
        table.add_column(_short(pin), overflow="fold")
    for pins, members in groupby(observed, key=lambda found: found.combination.pins[:-1]):
        name = Text("\n".join(_short(pin) for pin in pins), "bold")
        table.add_row(name, *(_summary(found, results) for found in members))
    return table


def _short(pin: Pin) -> str:
    """A pin as a heading; the end of a path or an address tells it from others."""
    value = value_of(pin)
    return f"{pin.distribution} {value if len(value) <= _LONGEST else '…' + value[1 - _LONGEST :]}"


def _summary(found: Observed, results: Results) -> Text:
    letter = found.combination.letter
    if found.built is None:
        return Text(f"{letter}  cannot be built", "bold red")
    counts = Counter(cells[letter].cell for cells in results.values())
    runs = sum(counts[cell] for cell in _WORKS)
    told = [
        f"{runs} of {len(results)} run",
        *(f"{counts[cell]} {cell}" for cell in (Cell.DIFFERS, Cell.DECLARED) if counts[cell]),
    ]
    style = "green" if runs == len(results) else "yellow" if runs else "bold red"
    return Text(f"{letter}  {', '.join(told)}", style)


def _table(observed: Sequence[Observed], results: Results) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("case", overflow="fold")
    for found in observed:
        table.add_column(found.combination.letter, justify="center")
    for case, cells in results.items():
        marks = [
            _MARKS[cells[letter].cell] if (letter := found.combination.letter) in cells else (" ", "")
            for found in observed
        ]
        table.add_row(Text(case), *(Text(*mark) for mark in marks))
    return table


def _legend(observed: Sequence[Observed], results: Results) -> Text:
    used = {found.cell for cells in results.values() for found in cells.values()}
    first = observed[0].combination.letter
    return Text(
        "   ".join(f"{_MARKS[cell][0]} {_MEANINGS[cell].format(first=first)}" for cell in Cell if cell in used), "dim"
    )


def _reasons(observed: Sequence[Observed], results: Results) -> list[Text]:
    """A paragraph for each combination: what else it pins, why it cannot be built, which cases stand out and why."""
    lines = []
    for found in observed:
        letter = found.combination.letter
        lines.append(
            Text(f"\n{letter}  {found.combination.label}", "bold").append(f"  with {held(found.combination)}", "dim")
        )
        if found.why:
            lines.append(Text(f"   cannot be built: {found.why}", "red"))
        for case, cells in results.items():
            if letter in cells and cells[letter].cell in (Cell.DIFFERS, Cell.RAISES, Cell.BROKEN, Cell.NOT_RUN):
                mark, style = _MARKS[cells[letter].cell]
                lines.append(Text(f"   {mark} ", style).append(f"{case}: {cells[letter].why}", "default"))
    return lines
