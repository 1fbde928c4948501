"""A run as one JSON document, for scripts: `jq '.findings[].case'`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.report.run_view import CaseRecord, RunView

_FORMAT = 1
"""Grows when a field changes its meaning or goes."""

_OF_A_CASE = (
    "case",
    "area",
    "verdict",
    "why",
    "triage",
    "seconds",
    "evidence",
    "command",
    "undeclared",
    "declared_by",
    "stale",
    "masked",
    "drift",
    "tensors",
    "divergence",
    "configs",
)


def json_report(run: RunView) -> str:
    """The document; what the sides printed and entered stays in the records."""
    document = {
        "format": _FORMAT,
        "run": run.name,
        "started": run.started,
        "seconds": run.seconds,
        "exit_code": run.exit_code,
        "fails": run.fails,
        "verdict": run.verdict_line,
        "lane": run.lane,
        "filters": run.filters,
        "old": _side(run, 0),
        "new": _side(run, 1),
        "moved": [asdict(pin) for pin in run.moved],
        "counts": run.counts,
        "areas": run.areas,
        "findings": [
            {"case": found.case["case"], "verdict": found.verdict, "alike": found.alike, "commands": found.commands}
            for found in run.findings
        ],
        "cases": [_case(case) for case in run.cases],
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _side(run: RunView, side: int) -> Mapping[str, Any]:
    return {"stack": run.sides[side], "pins": {name: pin["version"] for name, pin in run.pins[side].items()}}


def _case(case: CaseRecord) -> Mapping[str, Any]:
    return {name: case[name] for name in _OF_A_CASE if name in case}
