"""Answers that are kept: what a case gave on a set of pins, on this class of host, with this harness.

A bisection and an explanation ask the same again after Ctrl-C, after a crash, or for another case of the same stacks;
whatever was observed before is read back.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.cases import OWN, Case
from harness.compare import Side
from harness.observe import ObservationError
from harness.observe.codec import Encoded
from harness.observe.host import host_class
from harness.observe.observation import load
from harness.observe.shapes import ShapeError, shaped
from harness.observer import Observer
from harness.schedule import LaneChoice
from harness.stacks import BuiltStack
from harness.stacks.cache import build_once

_FILE = "answer.json"
_OUTPUT = 4000
_PASSED = (
    "answers.py",
    "cases.py",
    "devices.py",
    "layouts.py",
    "observer.py",
    "observe",
    "probes",
    "stacks",
    "workers",
)
"""What of this package makes an observation; what judges and reports it may change without making it again."""


@dataclass(frozen=True)
class _Answer:
    """What a kept answer says besides its observations."""

    stack: str
    versions: Mapping[str, str]
    ranks: int
    unavailable: str | None
    output: str
    seconds: float
    layout: str


class Answers:
    """Observes a case on stacks, each once.

    Attributes:
        case: the case.
        made: how many answers were observed, not read back.
    """

    def __init__(
        self, folder: Path, case: Case, observer: Observer, writer: Callable[[str], BuiltStack] | None = None
    ) -> None:
        """Answers are kept in `folder`; `writer` gives the stack (`old`, or a name) that writes for a case."""
        self.case = case
        self.made = 0
        self._folder = folder
        self._observer = observer
        self._writer = writer
        self._busy: dict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def lane(self) -> LaneChoice:
        """The lane of every answer."""
        return self._observer.lane

    def side(
        self,
        stack: BuiltStack,
        sample: int = 0,
        restored: Mapping[str, Encoded] | None = None,
        watched: str | None = None,
        told: Callable[[str], None] = lambda _line: None,
    ) -> Side:
        """What the case gave on a stack. A fault of the harness is not kept.

        Args:
            sample: tells repeated runs on one stack apart.
            restored: see `Request`; likewise `watched`.
        """
        asked = [restored, watched]
        name = f"answer-{stack.key[:12]}-{sample}" + (f"-{_hash(asked)[:12]}" if restored or watched else "")
        folder = self._folder / _hash([self._about(stack), sample, *asked])
        with self._busy[name]:
            found = _read(folder, name)
            if found is not None:
                return found
            side = self._observed(name, stack, restored, watched)
            self.made += 1
            if side.fault is None:
                build_once(folder, lambda target: _keep(side, target), told)
            return side

    def release(self, stack: BuiltStack) -> None:
        """Let the worker of a stack end, which takes about a gigabyte of memory."""
        self._observer.release(stack)

    def _observed(
        self, name: str, stack: BuiltStack, restored: Mapping[str, Encoded] | None, watched: str | None
    ) -> Side:
        def stack_of(who: str) -> BuiltStack:
            if self._writer is None or self.case.written_by == OWN:
                return stack
            return self._writer(who)

        reads = self._observer.written(self.case, name, stack_of)
        return self._observer.side(name, stack, self.case, reads=reads, restored=restored, watched=watched)

    def _about(self, stack: BuiltStack) -> list[Any]:
        writer = None
        if self._writer is not None and self.case.writer("new") and self.case.written_by != OWN:
            writer = self._writer(self.case.written_by).key
        return [self._code, self.case.id, stack.key, stack.base_key, writer, asdict(self.lane), host_class()]

    @cached_property
    def _code(self) -> str:
        """Hash of the harness's own code that an answer passes through, and of the probe where it lies elsewhere."""
        package = Path(__file__).resolve().parent
        folders = (package / name for name in _PASSED)
        own = {file for folder in folders for file in ([folder] if folder.is_file() else folder.rglob("*.py"))}
        files = sorted({*own, self.case.probe.source.resolve()})
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _keep(side: Side, target: Path) -> None:
    for number, rank in enumerate(side.ranks):
        assert rank.folder is not None
        shutil.copytree(rank.folder, target / f"rank{number}")
    answer = _Answer(
        side.stack,
        dict(side.versions),
        len(side.ranks),
        side.unavailable,
        side.output[-_OUTPUT:],
        side.seconds,
        side.layout,
    )
    (target / _FILE).write_text(json.dumps(asdict(answer)))


def _read(folder: Path, name: str) -> Side | None:
    """A kept answer; None if there is none, or one that cannot be read, which is then dropped."""
    if not (folder / _FILE).is_file():
        return None
    try:
        answer = shaped(_Answer, json.loads((folder / _FILE).read_text()))
        ranks = [load(folder / f"rank{number}") for number in range(answer.ranks)]
    except (ValueError, ShapeError, ObservationError):
        shutil.rmtree(folder)
        return None
    return Side(
        name,
        answer.stack,
        answer.versions,
        ranks=ranks,
        unavailable=answer.unavailable,
        output=answer.output,
        seconds=answer.seconds,
        layout=answer.layout,
    )


def _hash(about: Any) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
