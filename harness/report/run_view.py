"""A run as its records tell it: what every format shows, worked out once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.compare import Triage, Verdict
from harness.report.findings import Finding, findings_of
from harness.report.pins import MovedPin, RecordedPin, counted, moved_pins
from harness.report.records import Records, latest_cases
from harness.stacks.settings import Source

CaseRecord = Mapping[str, Any]

UNEXPLAINED = "unexplained"
"""Counted beside the verdicts: declared differences whose cause nobody knows."""

_EXCUSED = tuple(label for label in Triage if not label.blocks)
_ALWAYS_SHOWN = (Verdict.IDENTICAL, Verdict.DECLARED, Verdict.REGRESSION)


@dataclass(frozen=True)
class RunView:
    """One run.

    Attributes:
        folder: where its records are.
        started: seconds since 1970.
        seconds: how long it took; None where its end is not recorded.
        exit_code: None likewise.
        sides: names of the stacks, old and new.
        pins: distribution → pin, old and new.
        moved: the pins that differ.
        lane: `cpu` or `cuda`.
        filters: what kept the run from being all of its suites.
        golden: what to say where goldens stood in for the old side, else empty.
        cases: the last record of each case, by id.
        imports: stack → seconds that its worker needed to import.
        only_new: whether a case fails the run only if triage blames the pins.
        strict_goldens: whether a golden that has drifted fails the run.
    """

    folder: Path
    started: float
    seconds: float | None
    exit_code: int | None
    sides: tuple[str, str]
    pins: tuple[Mapping[str, RecordedPin], Mapping[str, RecordedPin]]
    moved: tuple[MovedPin, ...]
    lane: str
    filters: tuple[str, ...]
    golden: str
    cases: tuple[CaseRecord, ...]
    imports: Mapping[str, float] = field(default_factory=dict)
    only_new: bool = False
    strict_goldens: bool = False

    @property
    def took(self) -> str:
        """`6.1 min (imports 31 s, cases 240 s, waiting and comparison 12 s)`: stacks import at once, sides run at once.

        The last is what cases take beyond the slower of their sides: they wait for a processor or GPU, for another run
        that writes their files, for the repeats of a noise floor; comparing takes some hundredths of a second. With
        several processes the parts add up to more than the whole. Empty where the end of the run is not recorded.
        """
        if self.seconds is None:
            return ""
        inside = sum(max((float(side.get("seconds", 0)) for side in case["sides"]), default=0.0) for case in self.ran)
        whole = sum(float(case["seconds"]) for case in self.ran)
        parts = {
            "imports": max(self.imports.values(), default=0.0),
            "cases": inside,
            "waiting and comparison": whole - inside,
        }
        told = ", ".join(f"{name} {max(seconds, 0.0):.0f} s" for name, seconds in parts.items())
        return f"{self.seconds / 60:.1f} min ({told})"

    @property
    def name(self) -> str:
        """The name of its folder, which says when it started."""
        return self.folder.resolve().name

    @cached_property
    def findings(self) -> list[Finding]:
        """What is to be looked at: cases that fail, those that fail alike together, the gravest first."""
        return findings_of(self.cases, self.moved)

    @property
    def title(self) -> str:
        """`verl-0.7.1 → verl-0.8.0`; where a stack is compared with itself, with the pins that tell them apart."""
        old, new = self.sides
        if old != new:
            return f"{old} → {new}"
        moves = ", ".join(f"{pin.distribution} {pin.old} → {pin.new}" for pin in self.moved)
        return f"{old}, {moves or 'nothing moved'}"

    @property
    def fails(self) -> bool:
        """Whether the run failed; where its end is not recorded, whether a case did or none ran."""
        if self.exit_code is not None:
            return self.exit_code != 0
        failing = (case for case in self.cases if Verdict(case["verdict"]).fails)
        return not all(map(self.excuses, failing)) or not self.ran

    def excuses(self, case: CaseRecord) -> bool:
        """Whether a case that fails elsewhere does not fail this run: triage blames something else than the pins."""
        return self.only_new and Verdict(case["verdict"]).fails and case.get("triage") in _EXCUSED

    @property
    def ran(self) -> list[CaseRecord]:
        """The cases that ran."""
        return [case for case in self.cases if case["verdict"] != Verdict.NOT_RUN]

    @property
    def verdict_line(self) -> str:
        """One line: whether the run passes, and why not."""
        cases = counted(len(self.cases), "case")
        failing = ", ".join(
            f"{self.counts[verdict]} {verdict}" for verdict in reversed(Verdict) if self._fails_by(verdict)
        )
        if failing:
            return f"FAILS: {failing} in {cases}" if self.fails else f"PASSES: nothing new; {failing} in {cases}"
        if not self.ran:
            return f"FAILS: none of {cases} ran"
        if self.fails:
            return f"FAILS with exit status {self.exit_code}: no case does, something else did"
        return f"PASSES: nothing to act on in {cases}"

    def _fails_by(self, verdict: Verdict) -> bool:
        return verdict.fails and bool(self.counts[verdict])

    @cached_property
    def counts(self) -> Counter[str]:
        """How many cases came to each verdict, and how many declared differences are `unexplained`."""
        return counts_of(self.cases)

    @property
    def triage(self) -> str:
        """`triage: 2 new · 1 flaky`; empty where nothing was triaged."""
        counts = Counter(case.get("triage") for case in self.cases)
        told = [f"{counts[label]} {label}" for label in Triage if counts[label]]
        return f"triage: {' · '.join(told)}" if told else ""

    @cached_property
    def areas(self) -> dict[str, Counter[str]]:
        """The same for every area, a file of the suites."""
        by_area = sorted(self.cases, key=_area)
        return {area: counts_of(list(members)) for area, members in groupby(by_area, key=_area)}

    @property
    def columns(self) -> list[str]:
        """The verdicts that any case came to, best first, and `unexplained` where there are any."""
        return [name for name in [*Verdict, UNEXPLAINED] if self.counts[name]]

    @property
    def summary(self) -> str:
        """`41 identical · 3 declared · 0 regression · 6 not_run · 0 unexplained · evidence 44 of 44`."""
        return summary_line(self.cases)


def read_run(
    records: Records, sources: Mapping[str, Source] | None = None, clones: Mapping[str, Path] | None = None
) -> RunView:
    """Read a run.

    Args:
        sources: where distributions are developed, for links.
        clones: local clones, in which commits between two pins are counted.

    Raises:
        RecordsError: as `Records.read`.
    """
    start, cases = records.start, latest_cases(records)
    options = start["options"] if isinstance(start.get("options"), dict) else {}
    finished = next(records.read("run_finished"), None)
    imports: dict[str, float] = {}
    for event in records.read("imported"):
        imports[event["stack"]] = imports.get(event["stack"], 0.0) + event["seconds"]
    pins = tuple(_pins(start[side], side, cases) for side in ("old", "new"))
    return RunView(
        folder=records.folder,
        started=float(start["time"]),
        seconds=finished["time"] - start["time"] if finished else None,
        exit_code=finished["exit_code"] if finished else None,
        sides=(start["old"]["name"], start["new"]["name"]),
        pins=(pins[0], pins[1]),
        moved=tuple(moved_pins(pins[0], pins[1], sources or {}, clones or {})),
        lane=start.get("lane", {}).get("name", "cpu"),
        filters=tuple(start.get("filters", ())),
        golden=golden_line(start["old"]),
        cases=tuple(cases),
        imports=imports,
        only_new=bool(options.get("only_new")),
        strict_goldens=bool(options.get("strict_goldens")),
    )


def golden_line(old: Mapping[str, Any]) -> str:
    """What to say of the old side where its goldens stood in for it; empty where it ran."""
    return f"old = golden: {old['name']} was not run; {old['golden']}" if old["golden"] else ""


def summary_line(cases: Iterable[CaseRecord]) -> str:
    """See `RunView.summary`."""
    cases = list(cases)
    counts = counts_of(cases)
    shown = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict] or verdict in _ALWAYS_SHOWN]
    ran = [case for case in cases if case["verdict"] != Verdict.NOT_RUN]
    if any(case.get("declared_by") for case in cases):
        shown.append(f"{counts[UNEXPLAINED]} {UNEXPLAINED}")
    return " · ".join([*shown, f"evidence {sum(case['evidence'] for case in ran)} of {len(ran)}"])


def counts_of(cases: Sequence[CaseRecord]) -> Counter[str]:
    """Cases by verdict, and declared differences that are `unexplained`."""
    counts = Counter(str(case["verdict"]) for case in cases)
    counts[UNEXPLAINED] = sum(
        change["class_"] == UNEXPLAINED for case in cases for change in case.get("declared_by", ())
    )
    return counts


def _area(case: CaseRecord) -> str:
    return str(case["area"])


def _pins(side: Mapping[str, Any], role: str, cases: Sequence[CaseRecord]) -> dict[str, RecordedPin]:
    """The pins of a side; where its goldens stood in for it, the versions that they were recorded with."""
    if side["pins"]:
        return {pin["distribution"]: pin for pin in side["pins"]}
    recorded = (found for case in cases for found in case.get("sides", ()) if found["side"] == role)
    versions: Mapping[str, str] = next((found["versions"] for found in recorded), {})
    return {name: {"distribution": name, "kind": "release", "version": version} for name, version in versions.items()}
