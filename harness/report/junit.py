"""A run as JUnit XML: a suite for each area, the verdict and where the sides part as properties of each case."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from harness.compare import Verdict
from harness.report.run_view import CaseRecord, RunView

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def junit_report(run: RunView) -> str:
    """The document, as CI systems read it."""
    root = Element("testsuites", {"name": _text(f"parity {run.title}"), **_totals(run, run.cases)})
    when = datetime.fromtimestamp(run.started, UTC).isoformat(timespec="seconds")
    by_area = sorted(run.cases, key=lambda case: (case["area"], case["case"]))
    for area, members in groupby(by_area, key=lambda case: str(case["area"])):
        cases = list(members)
        suite = SubElement(root, "testsuite", {"name": _text(area), "timestamp": when, **_totals(run, cases)})
        _add_properties(suite, _of_run(run))
        for case in cases:
            _add_case(suite, run, case)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def case_properties(case: CaseRecord) -> dict[str, str]:
    """What a case's JUnit element says beside passed and failed: the verdict, and where the sides part first."""
    undeclared = case.get("undeclared") or ()
    first = [f"{item['path']}: {item['old']} → {item['new']}" for item in undeclared[:1]]
    module = case.get("divergence") or {}
    return {
        "verdict": str(case["verdict"]),
        **({"triage": str(case["triage"])} if case.get("triage") else {}),
        **({"first_difference": first[0]} if first else {}),
        **({"first_divergence": f"{module['module']} ({module['phase']})"} if module.get("module") else {}),
    }


def _of_run(run: RunView) -> dict[str, str]:
    moved = {pin.distribution: f"{pin.old} → {pin.new}" for pin in run.moved}
    return {"old": run.sides[0], "new": run.sides[1], "lane": run.lane, "run": run.name, **moved}


def _add_case(suite: Element, run: RunView, case: CaseRecord) -> None:
    about = {"classname": _text(case["area"]), "name": _text(case["case"]), "time": f"{case['seconds']:.3f}"}
    element = SubElement(suite, "testcase", about)
    _add_properties(element, case_properties(case) | ({"command": case["command"]} if case.get("command") else {}))
    outcome = _outcome(run, case)
    if outcome is not None:
        excused = f"{case['triage']}: " if run.excuses(case) else ""
        said = SubElement(element, outcome, {"type": str(case["verdict"]), "message": _text(f"{excused}{case['why']}")})
        if outcome != "skipped":
            said.text = _text("\n".join(_lines(case)))


def _outcome(run: RunView, case: CaseRecord) -> str | None:
    """As pytest's own document: what triage excuses is skipped."""
    verdict = Verdict(case["verdict"])
    if verdict is Verdict.NOT_RUN or run.excuses(case):
        return "skipped"
    if verdict is Verdict.BROKEN:
        return "error"
    return "failure" if verdict.fails or (verdict is Verdict.DRIFT and run.strict_goldens) else None


def _lines(case: CaseRecord) -> list[str]:
    lines = [f"{item['path']}: {item['old']} → {item['new']}" for item in case.get("undeclared", ())]
    lines += [f"stale: {change['path']} ({change['reason']})" for change in case.get("stale", ())]
    lines += [f"last output of {side['side']}:\n{side['output']}" for side in _silent(case)]
    return [*lines, f"again: {case.get('command', '')}"]


def _silent(case: CaseRecord) -> list[Mapping[str, str]]:
    """Sides whose output tells why a case is broken."""
    return [side for side in case.get("sides", ()) if side.get("output") and case["verdict"] == Verdict.BROKEN]


def _totals(run: RunView, cases: Sequence[CaseRecord]) -> dict[str, str]:
    outcomes = [_outcome(run, case) for case in cases]
    return {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failure")),
        "errors": str(outcomes.count("error")),
        "skipped": str(outcomes.count("skipped")),
        "time": f"{sum(case['seconds'] for case in cases):.3f}",
    }


def _add_properties(parent: Element, found: Mapping[str, str]) -> None:
    properties = SubElement(parent, "properties")
    for name, value in found.items():
        SubElement(properties, "property", {"name": _text(name), "value": _text(value)})


def _text(value: object) -> str:
    return _NO_XML.sub("�", str(value))
