"""Proof that a probe looked: which upstream functions were entered, seen by `sys.monitoring`."""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Self

from harness.observe.globs import matches

_TOOL, _FILES_TOOL = 4, 3
"""`sys.monitoring` tool ids that neither debuggers, coverage nor profilers claim (PEP 669)."""


@dataclass(frozen=True)
class Entered:
    """One upstream function that ran.

    Attributes:
        function: the name the probe's evidence gives it, `module:qualified.name`.
        file: path of its source.
        sha256: hash of that source.
    """

    function: str
    file: str
    sha256: str


class FirstEntries(ABC):
    """Context manager that is told of the first entry into each function; from then on the function runs untouched.

    Args:
        tool: a free `sys.monitoring` tool id.
    """

    def __init__(self, tool: int = _TOOL) -> None:
        self._tool = tool

    def __enter__(self) -> Self:
        sys.monitoring.use_tool_id(self._tool, type(self).__qualname__)
        sys.monitoring.restart_events()
        sys.monitoring.register_callback(self._tool, sys.monitoring.events.PY_START, self._started)
        sys.monitoring.set_events(self._tool, sys.monitoring.events.PY_START)
        return self

    def __exit__(self, *_: object) -> None:
        sys.monitoring.set_events(self._tool, sys.monitoring.events.NO_EVENTS)
        sys.monitoring.free_tool_id(self._tool)

    def _started(self, code: CodeType, _offset: int) -> object:
        self.note(code)
        return sys.monitoring.DISABLE

    @abstractmethod
    def note(self, code: CodeType) -> None:
        """Take note of a function that was entered, by its code."""


class EntryMonitor(FirstEntries):
    """Notices the first entry into each of the named functions.

    A name is `package.module:qualified.name`; it is met by the code object of that qualified name in a file whose path
    ends like the module.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._watched: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for name in names:
            module, _, qualified = name.partition(":")
            stem = module.replace(".", "/")
            self._watched.setdefault(qualified, []).append((name, (f"/{stem}.py", f"/{stem}/__init__.py")))
        self._files: dict[str, str] = {}

    @property
    def entered(self) -> list[Entered]:
        """The watched functions that ran, in the order of their first entry."""
        return [
            Entered(name, file, hashlib.sha256(Path(file).read_bytes()).hexdigest())
            for name, file in self._files.items()
        ]

    def note(self, code: CodeType) -> None:
        """Keep the file of a watched function."""
        for name, endings in self._watched.get(code.co_qualname, ()):
            if code.co_filename.endswith(endings):
                self._files.setdefault(name, code.co_filename)


class FileMonitor(FirstEntries):
    """Notices the source files whose functions are entered while it is on.

    Attributes:
        files: their paths, as code objects have them.
    """

    def __init__(self) -> None:
        super().__init__(_FILES_TOOL)
        self.files: set[str] = set()
        self._depth = 0

    def start(self) -> None:
        """Notice from now on; calls may nest."""
        self._depth += 1
        if self._depth == 1:
            self.__enter__()

    def stop(self) -> None:
        """Undo one `start`."""
        self._depth -= 1
        if self._depth == 0:
            self.__exit__()

    def note(self, code: CodeType) -> None:
        """Keep the file of a function."""
        self.files.add(code.co_filename)

    def hashes(self, below: Path) -> dict[str, str]:
        """Path, from the folder `below`, of those that lie in it → SHA-256."""
        inside = sorted(path for path in map(Path, self.files) if path.is_relative_to(below))
        return {str(path.relative_to(below)): hashlib.sha256(path.read_bytes()).hexdigest() for path in inside}


def alternatives(requirement: str) -> list[str]:
    """The function names of one `enters` entry, which separates alternatives by ` | `."""
    return [name.strip() for name in requirement.split("|")]


def missing_functions(required: Iterable[str], entered: Iterable[Entered]) -> list[str]:
    """The `enters` entries none of whose alternatives was entered."""
    seen = {entry.function for entry in entered}
    return [requirement for requirement in required if not seen.intersection(alternatives(requirement))]


def missing_fields(required: Iterable[str], tree: Any) -> list[str]:
    """The dotted paths that the encoded tree does not have."""
    return [path for path in required if not _reaches(path.split("."), tree)]


def missing_tensors(required: Iterable[str], names: Iterable[str]) -> list[str]:
    """The globs that match no tensor name."""
    known = list(names)
    return [pattern for pattern in required if not any(matches(pattern, name) for name in known)]


def _reaches(parts: list[str], node: Any) -> bool:
    if not parts:
        return True
    for inner in ("fields", "state", "value"):
        if isinstance(node, Mapping) and any(key.startswith("$") for key in node) and inner in node:
            return _reaches(parts, node[inner])
    head, *rest = parts
    if isinstance(node, list):
        node = {str(index): item for index, item in enumerate(node)}
    if not isinstance(node, Mapping):
        return False
    if head == "*":
        return any(_reaches(rest, item) for item in node.values())
    return head in node and _reaches(rest, node[head])
