"""What the HTML report shows of a case once it is opened: bounded, and what many cases share stands once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from harness.compare import Difference, Verdict
from harness.compare.ledger import Change
from harness.compare.profile import DECADES
from harness.report.run_view import CaseRecord, RunView

Data = dict[str, Any]

BUDGET = 12_000_000
"""Characters of all cases together; what comes after is told in brief."""
_VALUE = 1200
"""Characters of a value that are shown."""
_DIFFERENCES = 300
"""Differences of a case that are shown."""
_BRIEF = 5
"""Differences and tensors of a case that is told in brief, whose values are shown in part."""


def case_data(run: RunView) -> Data:
    """The cases in their order, and what they share."""
    shared = _Shared()
    commands = {found.case["case"]: found.commands for found in run.findings}
    told: dict[str, Data] = {}
    left = BUDGET
    for case in _gravest_first(run):
        data = _case(case, run, commands.get(case["case"], {}), shared)
        size = len(json.dumps(data))
        if size > left:
            data = _in_brief(data)
        left -= min(size, left)
        told[case["case"]] = data
    edges = ["equal", f"< 1e{DECADES[0]}", *(f"≥ 1e{decade}" for decade in DECADES)]
    cases = [told[case["case"]] for case in run.cases]
    return {"cases": cases, "changes": shared.changes, "standIns": shared.stand_ins, "bins": edges}


def subject_of(case: CaseRecord, run: RunView) -> str:
    """What a case compares: both sides, or one stack with itself."""
    return f"{case['stack']} alone" if case.get("stack") else run.title


def _gravest_first(run: RunView) -> list[CaseRecord]:
    """Cases that stand for a finding, others that fail, and the rest."""
    first = {found.case["case"]: found.case for found in run.findings}
    failing = {case["case"]: case for case in run.cases if Verdict(case["verdict"]).fails}
    return list(({**first, **failing} | {case["case"]: case for case in run.cases}).values())


def _in_brief(data: Data) -> Data:
    """A case without pictures and output, and with few of its differences."""
    kept = {name: value for name, value in data.items() if name not in ("configs", "standIns", "divergence", "drift")}
    differences = data.get("differences", [])
    brief = {
        "brief": True,
        "differences": [_cut(item) for item in differences[:_BRIEF]],
        "more": data.get("more", 0) + max(0, len(differences) - _BRIEF),
        "tensors": [
            {key: tensor.get(key) for key in ("rank", "name", "kind", "relative_error")}
            for tensor in data.get("tensors", [])[:_BRIEF]
        ],
        "sides": [
            {key: side[key] for key in ("side", "stack", "seconds", "fault") if key in side}
            for side in data.get("sides", [])
        ],
    }
    return {**kept, **{name: value for name, value in brief.items() if value}}


def _cut(item: Mapping[str, Any]) -> Data:
    return {**item, **{key: item[key][:100] for key in ("old", "new")}}


class _Shared:
    """Declared changes and stand-ins, each once."""

    def __init__(self) -> None:
        self.changes: list[Data] = []
        self.stand_ins: list[Data] = []
        self._places: dict[tuple[str, ...], int] = {}

    def change(self, change: Mapping[str, Any]) -> int:
        return self._place("change", self.changes, {name: change[name] for name in ("reason", "class_", "link")})

    def stand_in(self, stand_in: Mapping[str, Any]) -> int:
        return self._place("", self.stand_ins, {name: stand_in[name] for name in ("replaced", "by", "reason")})

    def _place(self, kind: str, into: list[Data], item: Data) -> int:
        key = (kind, *item.values())
        if key not in self._places:
            self._places[key] = len(into)
            into.append(item)
        return self._places[key]


def _case(case: CaseRecord, run: RunView, commands: Mapping[str, str], shared: _Shared) -> Data:
    sides: Sequence[Mapping[str, Any]] = case.get("sides", ())
    own = {"again": case["command"]} if case.get("command") else {}
    always = {name: case[name] for name in ("case", "area", "verdict", "seconds")}
    where_there_is_any = {
        "why": _short(case["why"]),
        "triage": case.get("triage"),
        "subject": subject_of(case, run),
        "layout": _layouts(case),
        "commands": commands or own,
        "differences": _differences(case, shared),
        "more": max(0, len(case.get("differences", ())) - _DIFFERENCES),
        "stale": [{"path": change["path"], "change": shared.change(change)} for change in case.get("stale", ())],
        "masked": [_pair(mask) for mask in case.get("masked", ())],
        "drift": [_pair(item) for item in case.get("drift", ())[:_DIFFERENCES]],
        "configs": [{key: _short(row[key]) for key in ("field", "old", "new")} for row in case.get("configs", ())],
        "tensors": case.get("tensors"),
        "divergence": case.get("divergence"),
        "sides": [_side(side, case) for side in sides],
        "standIns": sorted({shared.stand_in(one) for one in _of_all(sides, "stand_ins")}),
    }
    return always | {name: value for name, value in where_there_is_any.items() if value}


def _of_all(sides: Iterable[Mapping[str, Any]], name: str) -> Iterable[Any]:
    return chain.from_iterable(side.get(name, ()) for side in sides)


def _layouts(case: CaseRecord) -> str:
    old, new = case.get("old_layout", ""), case.get("layout", "")
    return new if old == new else f"{old} → {new}"


def _differences(case: CaseRecord, shared: _Shared) -> list[Data]:
    """Differences, undeclared ones first, each of the others with the change that declares it."""
    undeclared = {(item["path"], item["old"], item["new"]) for item in case.get("undeclared", ())}
    declared = [(Change(**change), change) for change in case.get("declared_by", ())]
    shown: list[Data] = []
    for item in case.get("differences", ()):
        data = _pair(item)
        if (item["path"], item["old"], item["new"]) in undeclared:
            data["undeclared"] = True
        else:
            by = next((raw for change, raw in declared if change.describes(Difference(**item))), None)
            data |= {} if by is None else {"change": shared.change(by)}
        shown.append(data)
    return sorted(shown, key=lambda item: "undeclared" not in item)[:_DIFFERENCES]


def _pair(item: Mapping[str, str]) -> Data:
    return {"path": item["path"], "kind": item["kind"], "old": _short(item["old"]), "new": _short(item["new"])}


def _side(side: Mapping[str, Any], case: CaseRecord) -> Data:
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
