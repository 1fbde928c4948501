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
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.compare import Difference, Verdict
from harness.compare.ledger import Change
from harness.compare.profile import DECADES
from harness.report.run_view import CaseRecord, RunView

_TEMPLATES = "templates"
_VALUE = 1200
"""Characters of a value that are shown."""
_DIFFERENCES = 300
"""Differences of a case that are shown."""
_SLOWEST = 12


def html_report(run: RunView) -> str:
    """The document."""
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
        data=_data(run),
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
        rows.setdefault(str(case["area"]), {}).setdefault(_subject(case, run), Counter())[str(case["verdict"])] += 1
    found = {column for row in rows.values() for column in row}
    return _Matrix(tuple(sorted(found, key=lambda column: (column != run.title, column))), dict(sorted(rows.items())))


def _subject(case: CaseRecord, run: RunView) -> str:
    """What a case compares: both sides, or one stack with itself."""
    return f"{case['stack']} alone" if case.get("stack") else run.title


def _timings(cases: Iterable[CaseRecord]) -> list[tuple[str, float, int]]:
    """Area, seconds, and number of cases, the longest first."""
    seconds: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for case in cases:
        seconds[case["area"]] += case["seconds"]
        number[case["area"]] += 1
    return [(area, took, number[area]) for area, took in seconds.most_common()]


def _data(run: RunView) -> Mapping[str, Any]:
    """What the script shows of a case once it is opened; what many cases share stands once."""
    shared = _Shared()
    commands = {found.case["case"]: found.commands for found in run.findings}
    cases = [_case(case, run, commands.get(case["case"], {}), shared) for case in run.cases]
    edges = ["equal", f"< 1e{DECADES[0]}", *(f"≥ 1e{decade}" for decade in DECADES)]
    return {"cases": cases, "changes": shared.changes, "standIns": shared.stand_ins, "bins": edges}


class _Shared:
    """Declared changes and stand-ins, each once."""

    def __init__(self) -> None:
        self.changes: list[Mapping[str, Any]] = []
        self.stand_ins: list[Mapping[str, Any]] = []
        self._places: dict[tuple[str, ...], int] = {}

    def change(self, change: Mapping[str, Any]) -> int:
        return self._place(self.changes, {name: change[name] for name in ("reason", "class_", "link")})

    def stand_in(self, stand_in: Mapping[str, Any]) -> int:
        return self._place(self.stand_ins, {name: stand_in[name] for name in ("replaced", "by", "reason")})

    def _place(self, into: list[Mapping[str, Any]], item: Mapping[str, str]) -> int:
        key = tuple(item.values())
        if key not in self._places:
            self._places[key] = len(into)
            into.append(item)
        return self._places[key]


def _case(case: CaseRecord, run: RunView, commands: Mapping[str, str], shared: _Shared) -> Mapping[str, Any]:
    sides = case.get("sides", ())
    own = {"again": case["command"]} if case.get("command") else {}
    about = {
        "case": case["case"],
        "area": case["area"],
        "verdict": case["verdict"],
        "why": _short(case["why"]),
        "seconds": case["seconds"],
        "subject": _subject(case, run),
        "layout": _layouts(case),
        "commands": commands or own,
        "differences": _differences(case, shared),
        "more": max(0, len(case.get("differences", ())) - _DIFFERENCES),
        "stale": [{"path": change["path"], "change": shared.change(change)} for change in case.get("stale", ())],
        "masked": [_pair(mask) for mask in case.get("masked", ())],
        "drift": [_pair(item) for item in case.get("drift", ())[:_DIFFERENCES]],
        "configs": [{key: _short(row[key]) for key in ("field", "old", "new")} for row in case.get("configs", ())],
        "tensors": case.get("tensors", ()),
        "divergence": case.get("divergence"),
        "sides": [_side(side, case) for side in sides],
        "standIns": sorted({shared.stand_in(one) for side in sides for one in side.get("stand_ins", ())}),
    }
    return {name: value for name, value in about.items() if value not in (None, "", 0, [], (), {})}


def _layouts(case: CaseRecord) -> str:
    old, new = case.get("old_layout", ""), case.get("layout", "")
    return new if old == new else f"{old} → {new}"


def _differences(case: CaseRecord, shared: _Shared) -> list[Mapping[str, Any]]:
    """Differences, undeclared ones first, each of the others with the change that declares it."""
    undeclared = [(item["path"], item["old"], item["new"]) for item in case.get("undeclared", ())]
    declared = [(Change(**change), change) for change in case.get("declared_by", ())]
    shown: list[Mapping[str, Any]] = []
    for item in case.get("differences", ()):
        new = (item["path"], item["old"], item["new"]) in undeclared
        by = None if new else next((raw for change, raw in declared if change.describes(Difference(**item))), None)
        shown.append({**_pair(item), **({} if by is None else {"change": shared.change(by)})})
    return sorted(shown, key=lambda item: "change" in item)[:_DIFFERENCES]


def _pair(item: Mapping[str, str]) -> Mapping[str, str]:
    return {"path": item["path"], "kind": item["kind"], "old": _short(item["old"]), "new": _short(item["new"])}


def _side(side: Mapping[str, Any], case: CaseRecord) -> Mapping[str, Any]:
    raised = side.get("exception") or {}
    named = ": ".join(filter(None, [raised.get("type"), raised.get("message")]))
    about = {
        "side": side["side"],
        "stack": side.get("stack", ""),
        "seconds": side.get("seconds", 0),
        "fault": side.get("fault"),
        "raised": _short(raised.get("described") or named),
        "golden": bool(side.get("golden")),
        "entered": [entry["function"] for entry in side.get("entered", ())],
        "output": side.get("output") if Verdict(case["verdict"]).fails else None,
    }
    return {name: value for name, value in about.items() if value}


def _short(text: Any) -> str:
    text = str(text)
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}… ({len(text) - _VALUE} characters more, in the records)"


def worst(counts: Mapping[str, int]) -> str:
    """The gravest verdict among some."""
    order: Sequence[str] = [str(verdict) for verdict in Verdict]
    return max(counts, key=order.index)
