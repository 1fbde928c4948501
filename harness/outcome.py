"""What one case came to, what a reader is told of it, and what the records keep."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.cases import Case
from harness.compare import Judged, Side, Triage, Verdict
from harness.compare.configs import changed_configs
from harness.goldens import UNRAISED, Golden
from harness.observe import Observation
from harness.probes import ProbeError
from harness.report.tensor_records import tensor_records

_OUTPUT_LINES = 15
_DIFFERENCE_LINES = 30
_CONFIG_RECORDS = 120
_CONFIG_VALUE = 300


@dataclass(frozen=True)
class Outcome:
    """What one case came to.

    Attributes:
        options: what selects the stacks again.
        stack: of a check of one stack, what tells it from the same check of another.
        golden: what stood in for the old side.
        triage: whether the pins that moved are to blame; None where nothing failed, or nobody asked.
    """

    case: Case
    judged: Judged
    sides: Mapping[str, Side]
    seconds: float
    options: str = ""
    stack: str = ""
    golden: Golden | None = None
    triage: Triage | None = None

    @property
    def id(self) -> str:
        """The case's id; `id@stack` for a check of one stack."""
        return f"{self.case.id}@{self.stack}" if self.stack else self.case.id

    @property
    def old(self) -> Side:
        """What the old side gave; there is none where a golden stood in for it."""
        return self.sides["old"]

    @property
    def new(self) -> Side:
        """What the new side gave."""
        return self.sides["new"]

    @property
    def message(self) -> str:
        """What a reader needs of a verdict that fails: the case, the differences, the output, what to type next."""
        undeclared = self.judged.undeclared
        label = f" ({self.triage})" if self.triage else ""
        lines = [f"{self.id}: {self.judged.verdict}{label} — {self.judged.why}"]
        lines += [f"  {difference}" for difference in undeclared[:_DIFFERENCE_LINES]]
        if len(undeclared) > _DIFFERENCE_LINES:
            lines.append(f"  … and {len(undeclared) - _DIFFERENCE_LINES} more, in the records")
        lines += [f"  {line}" for line in (self.judged.divergence.detail if self.judged.divergence else ())]
        lines += [f"  stale: {change.path} ({change.reason})" for change in self.judged.stale]
        for side in self.sides.values():
            if self.judged.verdict in (Verdict.BROKEN, Verdict.BOTH_RAISE) and side.output.strip():
                last = side.output.strip().splitlines()[-_OUTPUT_LINES:]
                lines += [f"  last output of {side.name} ({side.stack}):", *(f"    {line}" for line in last)]
        return "\n".join([*lines, f"  again: {self.command}"])

    @property
    def brief(self) -> Mapping[str, Any]:
        """What the record of the case says of the verdict and of where the sides part."""
        judged = self.judged
        return {
            "verdict": str(judged.verdict),
            "triage": str(self.triage) if self.triage else None,
            "undeclared": [asdict(difference) for difference in judged.undeclared],
            "divergence": asdict(judged.divergence) if judged.divergence else None,
        }

    @property
    def misuse(self) -> str | None:
        """What the probe said of a value that the user gave and that it does not know."""
        start = f"{ProbeError.__name__}: "
        faults = [side.fault for side in self.sides.values() if side.fault and side.fault.startswith(start)]
        return faults[0].removeprefix(start) if faults else None

    @property
    def command(self) -> str:
        """The command that runs this case alone."""
        case = self.case.arguments
        words = ["parity check-stack", self.options, case] if self.stack else ["parity compare", case, self.options]
        return " ".join(word for word in words if word)


def case_record(outcome: Outcome) -> Mapping[str, Any]:
    """A case as the records keep it."""
    judged = outcome.judged
    return {
        "case": outcome.id,
        "stack": outcome.stack,
        "probe": outcome.case.probe.reference,
        "parameters": dict(outcome.case.parameters),
        "layout": outcome.case.layout,
        "old_layout": outcome.case.layout_of("old"),
        "written": outcome.case.written,
        "lane": outcome.case.lane,
        **outcome.brief,
        "why": judged.why,
        "command": outcome.command,
        "seconds": round(outcome.seconds, 3),
        "differences": [asdict(difference) for difference in judged.differences],
        "declared_by": [asdict(change) for change in judged.declared_by],
        "stale": [asdict(change) for change in judged.stale],
        "masked": [asdict(mask) for mask in judged.masked],
        "drift": [asdict(difference) for difference in judged.drift],
        "tensors": tensor_records(judged, outcome.sides),
        "configs": _config_records(outcome),
        "slug": outcome.case.slug,
        "sides": [*_golden_record(outcome.golden), *(_side_record(side) for side in outcome.sides.values())],
        "evidence": bool(outcome.sides) and all(_proven(side.ranks) for side in outcome.sides.values()),
        "host": os.uname().nodename,
    }


def _config_records(outcome: Outcome) -> list[Mapping[str, str]]:
    """Fields in which the configs that both sides resolved differ, where that may say why a case fails."""
    if not outcome.judged.undeclared or outcome.sides.keys() != {"old", "new"}:
        return []
    found = changed_configs(outcome.old.ranks, outcome.new.ranks)[:_CONFIG_RECORDS]
    return [{"field": row.path, "old": row.old[:_CONFIG_VALUE], "new": row.new[:_CONFIG_VALUE]} for row in found]


def _golden_record(golden: Golden | None) -> list[Mapping[str, Any]]:
    """What the record of a case says of an old side that a golden stood in for."""
    if golden is None:
        return []
    raised = next((rank.exception for rank in golden.ranks if rank.exception != UNRAISED), None)
    exception = {"described": raised} if raised else None
    return [
        {
            "side": "old",
            "stack": golden.provenance["stack"],
            "versions": dict(golden.versions),
            "seconds": 0.0,
            "fault": None,
            "exception": exception,
            "golden": golden.history[-1],
        }
    ]


def _side_record(side: Side) -> Mapping[str, Any]:
    first = side.ranks[0] if side.ranks else None
    return {
        "side": side.name,
        "stack": side.stack,
        "versions": dict(side.versions),
        "seconds": round(side.seconds, 3),
        "fault": side.fault,
        "exception": asdict(side.exception) if side.exception else None,
        "entered": [asdict(entry) for entry in first.entered] if first else [],
        "stand_ins": first.environment["stand_ins"] if first else [],
        "set_by_hand": first.environment["set_by_hand"] if first else {},
        "host": first.environment["host"] if first else {},
        "settings": first.environment.get("settings", {}) if first else {},
        "gpu_memory": [rank.environment["gpu_memory"] for rank in side.ranks if "gpu_memory" in rank.environment],
        "provenance": dict(first.provenance) if first else {},
        "output": side.output[-4000:],
        "reads": _side_record(side.reads) if side.reads else None,
    }


def _proven(ranks: Sequence[Observation]) -> bool:
    return bool(ranks) and all(not rank.missing for rank in ranks)
