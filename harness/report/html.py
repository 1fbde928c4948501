"""A run as one HTML file that needs no network: findings, matrix, timings, and every case to filter and to open.

Whatever the records hold is text: the template escapes it, the data are JSON that cannot end its element, the script
only ever sets text, and the page's own policy lets nothing but that script run.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files

from harness.compare import Verdict
from harness.report.html_data import case_data, subject_of
from harness.report.run_view import CaseRecord, RunView

_TEMPLATES = "templates"
_SLOWEST = 12


def html_report(run: RunView) -> str:
    """The document."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # needed here alone
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("harness.report", _TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    script, style = _own("report.js"), _own("report.css")
    page = environment.get_template("report.html.j2").render(
        run=run,
        when=datetime.fromtimestamp(run.started, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        verdicts=[str(verdict) for verdict in Verdict if run.counts[verdict]],
        failing=[str(verdict) for verdict in Verdict if verdict.fails],
        matrix=_matrix(run),
        worst=worst,
        timings=_timings(run.cases),
        slowest=sorted(run.cases, key=lambda case: -case["seconds"])[:_SLOWEST],
        data=case_data(run),
        script=Markup(script),
        style=Markup(style),
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_digest(script)}'",
    )
    # What no text may hold: a page is read as text, and a lone surrogate cannot be written.
    return page.replace("\x00", "�").encode(errors="replace").decode()


def _own(name: str) -> str:
    return files("harness.report").joinpath(_TEMPLATES, name).read_text(encoding="utf-8").strip()


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@dataclass(frozen=True)
class _Matrix:
    """Areas down, what was compared across."""

    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Counter[str]]]


def _matrix(run: RunView) -> _Matrix:
    """Verdicts of every area, of both sides against each other and of each stack against itself."""
    rows: dict[str, dict[str, Counter[str]]] = {}
    for case in run.cases:
        rows.setdefault(str(case["area"]), {}).setdefault(subject_of(case, run), Counter())[str(case["verdict"])] += 1
    found = {column for row in rows.values() for column in row}
    return _Matrix(tuple(sorted(found, key=lambda column: (column != run.title, column))), dict(sorted(rows.items())))


def _timings(cases: Iterable[CaseRecord]) -> list[tuple[str, float, int]]:
    """Area, seconds, and number of cases, the longest first."""
    seconds: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for case in cases:
        seconds[case["area"]] += case["seconds"]
        number[case["area"]] += 1
    return [(area, took, number[area]) for area, took in seconds.most_common()]


def worst(counts: Mapping[str, int]) -> str:
    """The gravest verdict among some."""
    order: Sequence[str] = [str(verdict) for verdict in Verdict]
    return max(counts, key=order.index)
