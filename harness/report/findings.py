"""Findings: the failing cases of a run, those that fail alike told once, each with what to type next."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.compare import Triage, Verdict
from harness.report.config_rows import touching
from harness.report.pins import MovedPin

_OUTPUT_LINES = 15
_RANK = re.compile(r"rank\d+: ")
_LAYER = re.compile(r"\.(\d+)(?=\.)")


@dataclass(frozen=True)
class Finding:
    """One failing case, with others that fail alike.

    Attributes:
        case: the record of the case that stands for them, the one with the shortest id.
        alike: ids of the others.
        commands: what to type next, each with its purpose: `again`, `explain`, `bisect`.
    """

    case: Mapping[str, Any]
    alike: tuple[str, ...]
    commands: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        """Of all of them."""
        return Verdict(self.case["verdict"])

    @property
    def label(self) -> str:
        """The verdict, and what triage says of it: `regression (pre-existing)`."""
        triage = self.case.get("triage")
        return f"{self.verdict} ({triage})" if triage else str(self.verdict)

    @property
    def differences(self) -> Sequence[Mapping[str, str]]:
        """What is not declared, but for tensors: path, kind, old and new value."""
        names = {tensor["name"] for tensor in self._tensors}
        return [item for item in self.case.get("undeclared", ()) if _RANK.sub("", item["path"]) not in names]

    @property
    def divergence(self) -> Mapping[str, Any]:
        """Where the traces of the modules part; empty where there is none."""
        return self.case.get("divergence") or {}

    @property
    def ends(self) -> tuple[str, str]:
        """What the two values of a difference are: a check of one stack expects one and finds the other."""
        return ("expected", "actual") if self.case.get("stack") else ("old", "new")

    @property
    def distances(self) -> list[str]:
        """How far off each tensor is that differs, and how far beyond noise, the worst first."""
        return [_distance(tensor) for tensor in self._tensors]

    @property
    def _tensors(self) -> Sequence[Mapping[str, Any]]:
        return [tensor for tensor in self.case.get("tensors", ()) if tensor["kind"] == "different" and "name" in tensor]

    @property
    def config_rows(self) -> tuple[list[Mapping[str, str]], list[Mapping[str, str]]]:
        """Fields of the resolved configs that differ: those that touch the module where the sides part, and others."""
        return touching(self.divergence.get("module", ""), self.case.get("configs", ()))

    @property
    def output(self) -> list[tuple[str, str]]:
        """Side and the last lines of its output, where the harness got no answer or both sides raise."""
        if self.verdict not in (Verdict.BROKEN, Verdict.BOTH_RAISE):
            return []
        return [
            (side["side"], "\n".join(side["output"].rstrip().splitlines()[-_OUTPUT_LINES:]))
            for side in self.case.get("sides", ())
            if side.get("output")
        ]


def findings_of(cases: Iterable[Mapping[str, Any]], moved: Sequence[MovedPin]) -> list[Finding]:
    """The findings of a run: what fails it first, then by verdict, then by how many cases share them."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for case in cases:
        if Verdict(case["verdict"]).fails:
            groups.setdefault(_signature(case), []).append(case)
    found = [_finding(sorted(group, key=_simplest), moved) for group in groups.values()]
    return sorted(found, key=_gravity)


def _gravity(found: Finding) -> tuple[bool, int, int, str]:
    triage = found.case.get("triage")
    harmless = triage is not None and not Triage(triage).blocks
    return harmless, -list(Verdict).index(found.verdict), -len(found.alike), found.case["case"]


def _distance(tensor: Mapping[str, Any]) -> str:
    rank = f"rank{tensor['rank']}: " if tensor["rank"] else ""
    name = f"{rank}{tensor['name']}"
    if tensor.get("needed") is None:
        kinds = tensor.get("message", "").splitlines()[1:2]  # another dtype or shape, or none on one side
        return f"{name}: {kinds[0].strip() if kinds else 'differs'}"
    found = f"{name}: {tensor['quantity']} {tensor['needed']:.3g}"
    if not tensor["allowed"]:
        return f"{found}; bit for bit was expected{': ' + tensor['no_floor'] if tensor['no_floor'] else ''}"
    times = tensor["needed"] / tensor["allowed"]
    return f"{found}, {times:.3g} times what the noise floor allows ({tensor['allowed']:.3g})"


def _simplest(case: Mapping[str, Any]) -> tuple[int, str]:
    return len(case["case"]), case["case"]


def _finding(group: Sequence[Mapping[str, Any]], moved: Sequence[MovedPin]) -> Finding:
    first = group[0]
    return Finding(first, tuple(case["case"] for case in group[1:]), _commands(first, moved))


def _signature(case: Mapping[str, Any]) -> tuple[Any, ...]:
    """What cases that fail alike share: the module in which they part, else their differences, else the reason."""
    label = case["verdict"], case.get("triage")
    module = (case.get("divergence") or {}).get("module")
    if module:
        return *label, _LAYER.sub(".N", module), case["divergence"]["phase"]
    undeclared = case.get("undeclared", ())
    if undeclared and case["verdict"] == Verdict.REGRESSION:
        values = {(_RANK.sub("", item["path"]), item["kind"], item["old"], item["new"]) for item in undeclared}
        return *label, frozenset(values)
    return *label, case["why"]


def _commands(case: Mapping[str, Any], moved: Sequence[MovedPin]) -> dict[str, str]:
    again = case.get("command", "")
    commands = {"again": again} if again else {}
    if case["verdict"] == Verdict.REGRESSION and _can_be_explained(case):
        commands["explain"] = again.replace("parity compare", "parity explain", 1)
        if len(moved) == 1 and moved[0].versions:
            good, bad = moved[0].versions
            stack = next(side["stack"] for side in case["sides"] if side["side"] == "old")
            ends = f"--axis {moved[0].distribution} --good {good} --bad {bad} --stack {stack.partition('@')[0]}"
            commands["bisect"] = f"parity bisect {shlex.quote(case['case'])} {ends}"
    return commands


def _can_be_explained(case: Mapping[str, Any]) -> bool:
    """Whether both sides ran, on the lane, in the one layout and with the options that `parity explain` knows."""
    ran = [side["side"] for side in case.get("sides", ()) if "golden" not in side]
    one_layout = case.get("layout") == case.get("old_layout")
    command = case.get("command", "")
    known = bool(command) and not any(option in command for option in ("--changed-pins", "--bundle"))
    return ran == ["old", "new"] and one_layout and case.get("lane") == "cpu" and known
