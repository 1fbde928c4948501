"""Runs that only exist as records: any number of cases, verdicts and texts, without a stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.compare import Verdict
from harness.report import Records, RunView, read_run

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>`|\"'&{{ 7*7 }} @somebody\x00\x1b[31m\nsecond line"
)
"""What a case id or a value may hold at worst."""
TENSOR = {
    "rank": 0,
    "name": "gradients/w",
    "kind": "different",
    "relative_error": 2e-4,
    "message": "gradients/w: different",
    "quantity": "relative error",
    "needed": 2e-4,
    "allowed": 1e-5,
    "no_floor": "",
}
"""A tensor that differs, as the record of a failing case tells it."""


def pin(distribution: str, version: str, **more: Any) -> dict[str, Any]:
    """A release pin as the records keep it."""
    absent = {"commit": None, "dirty": False, "tree_hash": None}
    about = {"distribution": distribution, "kind": "release", "version": version, **absent}
    return {**about, "requested": f"{distribution}=={version}", **more}


def case(name: str, verdict: str = "identical", **more: Any) -> dict[str, Any]:
    """A case as the records keep it."""
    return {
        "case": name,
        "area": name.partition("[")[0].partition("@")[0],
        "probe": name.partition("[")[0],
        "layout": "single",
        "old_layout": "single",
        "lane": "cpu",
        "verdict": verdict,
        "why": "",
        "command": f"parity compare {name}",
        "seconds": 0.5,
        "evidence": verdict != "not_run",
        "sides": [
            {"side": side, "stack": stack, "versions": {}, "seconds": 0.2, "output": ""}
            for side, stack in (("old", "verl-1"), ("new", "verl-2"))
        ],
        **more,
    }


def regression(name: str, *differences: tuple[str, str, str], **more: Any) -> dict[str, Any]:
    """A failing case with undeclared differences: path, old and new value."""
    found = [{"path": path, "kind": "changed", "old": old, "new": new} for path, old, new in differences]
    why = f"{differences[0][0]}: {differences[0][1]} → {differences[0][2]}"
    return case(name, "regression", **{"why": why, "undeclared": found, "differences": found, **more})


def write_run(
    folder: Path,
    cases: Iterable[Mapping[str, Any]],
    *,
    old: Iterable[Mapping[str, Any]] = (pin("verl", "0.7.1"),),
    new: Iterable[Mapping[str, Any]] = (pin("verl", "0.8.0"),),
    finished: bool = True,
    exit_code: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Records:
    """Write the records of a run; its exit code is what the verdicts say unless given."""
    cases = list(cases)
    folder.mkdir(parents=True, exist_ok=True)
    records = Records(folder)
    sides = {
        name: {"name": stack, "key": name, "pins": list(pins), "golden": None}
        for name, stack, pins in (("old", "verl-1", old), ("new", "verl-2", new))
    }
    lane = {"name": "cpu", "gpus": [], "deterministic": True, "architecture": ""}
    records.write("run_started", {**sides, "options": dict(options or {}), "filters": [], "lane": lane})
    for found in cases:
        records.write("case", found)
    if finished:
        failed = any(Verdict(found["verdict"]).fails for found in cases)
        records.write("run_finished", {"exit_code": int(failed) if exit_code is None else exit_code})
    return records


def view(folder: Path, *cases: Mapping[str, Any], **more: Any) -> RunView:
    """What the formats show of such a run."""
    return read_run(write_run(folder, cases, **more))
