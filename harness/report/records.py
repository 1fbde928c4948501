"""The records of a run: one JSON line per event, from which every view is made."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any

from harness.compare import Verdict

FILE = "records.jsonl"

_OF_EVERY_CASE: dict[str, type | tuple[type, ...]] = {
    "case": str,
    "area": str,
    "verdict": str,
    "why": str,
    "seconds": (int, float),
    "evidence": bool,
}
_OF_AN_EVENT: dict[str, dict[str, type | tuple[type, ...]]] = {
    "run_started": {"time": (int, float), "old": dict, "new": dict},
    "run_finished": {"time": (int, float), "exit_code": (int, NoneType)},
    "imported": {"stack": str, "seconds": (int, float)},
}
_OF_A_SIDE: dict[str, type | tuple[type, ...]] = {"name": str, "pins": list, "golden": (str, NoneType)}
_OF_EVERY_ITEM = {"masked": "path", "declared_by": "class_"}
"""Lists in the record of a case, and the text that each of their items has."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


class RecordsError(ValueError):
    """A run folder without records, or with damaged ones."""


@dataclass(frozen=True)
class Records:
    """The records of one run folder; every process of the run appends to them."""

    folder: Path

    @property
    def file(self) -> Path:
        """Where the records are."""
        return self.folder / FILE

    def write(self, event: str, data: Mapping[str, Any]) -> None:
        """Append one event; a line is written by one system call, so that processes never mix theirs."""
        line = json.dumps({"event": event, "time": round(time.time(), 3), "pid": os.getpid(), **data}, default=str)
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)

    @property
    def start(self) -> dict[str, Any]:
        """The event that says what the run compares.

        Raises:
            RecordsError: the run ended before it, or there are no records.
        """
        found = next(self.read("run_started"), None)
        if found is None:
            raise RecordsError(f"{self.folder.name} ended before it compared anything: run again")
        return found

    def read(self, event: str | None = None) -> Iterator[dict[str, Any]]:
        """The events in the order they were written, or those of one name.

        Raises:
            RecordsError: there are none, or a line is no JSON.
        """
        if not self.file.is_file():
            raise RecordsError(f"{self.folder} is no run folder, it has no {FILE}: `ls -d .parity/runs/*` lists them")
        for number, line in enumerate(self.file.read_bytes().splitlines(), 1):
            try:
                record = json.loads(_encodable(line))
            except (ValueError, RecursionError) as error:
                raise RecordsError(
                    f"{self.file}, line {number} is damaged ({error}): delete it, or run again"
                ) from error
            if not isinstance(record, dict):
                raise RecordsError(f"{self.file}, line {number} is no record: delete it, or run again")
            if wrong := _wrong_in_event(record):
                raise RecordsError(f"{self.file}, line {number} has no proper {wrong}: run again")
            if event is None or record.get("event") == event:
                yield record


def latest_cases(records: Records) -> list[dict[str, Any]]:
    """The last record of every case, sorted by id.

    Raises:
        RecordsError: as `Records.read`, or a case is recorded without what every case has.
    """
    by_id: dict[str, dict[str, Any]] = {}
    for record in records.read("case"):
        if wrong := next(_wrong(record), None):
            raise RecordsError(f"{records.file}: a case has no proper {wrong!r}")
        by_id[record["case"]] = record
    return [by_id[case] for case in sorted(by_id)]


def without_controls(value: Any) -> Any:
    r"""A text, or a record, whose control characters a terminal shows instead of obeying: `\x1b`."""
    match value:
        case str():
            return value.translate(_CONTROLS)
        case dict():
            return {name: without_controls(item) for name, item in value.items()}
        case list():
            return [without_controls(item) for item in value]
        case _:
            return value


def _encodable(line: bytes) -> bytes:
    r"""A line without lone surrogates, which JSON can escape (`\ud800`) and no file or terminal can take."""
    if rb"\ud" not in line:
        return line
    return json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")


def _wrong_in_event(record: Mapping[str, Any]) -> str | None:
    """The first thing that an event of the run lacks, or has of another kind."""
    kinds = _OF_AN_EVENT.get(str(record.get("event")), {})
    wrong = (name for name, kind in kinds.items() if not isinstance(record.get(name, ...), kind))
    sides = (name for name in ("old", "new") if name in kinds and isinstance(record.get(name), dict))
    within = (
        f"{side}.{name}"
        for side in sides
        for name, kind in _OF_A_SIDE.items()
        if not isinstance(record[side].get(name, ...), kind)
    )
    return next(chain(wrong, within), None)


def _wrong(record: Mapping[str, Any]) -> Iterator[str]:
    """Names of what the record of a case lacks, or has of another kind."""
    yield from (name for name, kind in _OF_EVERY_CASE.items() if not isinstance(record.get(name), kind))
    if record["verdict"] not in set(Verdict):
        yield "verdict"
    for name, text in _OF_EVERY_ITEM.items():
        items = record.get(name, [])
        if not isinstance(items, list) or not all(
            isinstance(item, dict) and isinstance(item.get(text), str) for item in items
        ):
            yield name
