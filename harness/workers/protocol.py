"""What controller and worker say to each other: JSON messages over a local socket, as dataclasses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.observe.run import WRITTEN
from harness.observe.shapes import shaped

SCRATCH = "scratch"
"""The folder that the ranks of a case share, `run.folder`, below the one of its request."""

EXPECTED = "expected"
"""Folder, inside a rank's own, of what a check of one stack expects."""


def hand_over(written: Path, reading: Path) -> None:
    """Give a case a copy of the files that another's ranks left; both are folders of a `Request`."""
    shutil.copytree(written / SCRATCH, reading / SCRATCH / WRITTEN, symlinks=True)


@dataclass(frozen=True)
class Limits:
    """What one rank of a case may use.

    Attributes:
        seconds: wall time of the case.
        memory: bytes of anonymous memory a rank may add to what it shares with the worker.
        output: bytes a rank may print.
        grace: seconds the other ranks get once one has died or raised.
    """

    seconds: float = 120.0
    memory: int = 6 << 30
    output: int = 64 << 20
    grace: float = 5.0


@dataclass(frozen=True)
class Pin:
    """What a worker must find of a pinned distribution."""

    distribution: str
    version: str | None
    commit: str | None
    tree_hash: str | None


@dataclass(frozen=True)
class WorkerSpec:
    """Everything a worker needs to start; written as JSON beside its log.

    Attributes:
        preload: the probes for which a worker imports before anything else.
    """

    stack: str
    lane: str
    overlay: str
    pins: tuple[Pin, ...]
    socket: str
    ready: str
    owner_pid: int
    reverse_imports: bool = False
    deterministic: bool = True
    preload: tuple[str, ...] = ()

    @classmethod
    def loads(cls, text: str) -> WorkerSpec:
        """The spec that `dumps` wrote."""
        return shaped(cls, json.loads(text))

    def dumps(self) -> str:
        """The spec as JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Ready:
    """What a worker says once it listens.

    Attributes:
        fault: why it can't serve, in one line; then nothing else counts.
        seconds: until it listened.
        versions: distribution → version, as installed in the overlay.
    """

    fault: str | None
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """Run one case.

    Attributes:
        probe: reference of the probe, see `Probe.reference`.
        folder: where the ranks put their observations (`rank0`, `rank1`, …) and output.
        perturbed: see `Run`.
        devices: see `Run`.
        restored: fields of resolved configs, `config.field`, → what to set them to, encoded. The observation keeps the
            configs then. None: neither.
        watched: see `Run`; the observation keeps the module's source files then.
    """

    probe: str
    parameters: Mapping[str, Any]
    layout: str
    folder: str
    limits: Limits
    perturbed: int = 0
    devices: tuple[str, ...] = ()
    restored: Mapping[str, Any] | None = None
    watched: str | None = None


@dataclass(frozen=True)
class Preload:
    """Import what the spec's probes need, before the first case asks for it."""


@dataclass(frozen=True)
class RankReport:
    """How one rank ended.

    Attributes:
        fault: why there is no observation, in one line, or None.
        unavailable: what the host or lane lacks for this case, in one line, or None.
        output: the last lines it printed.
        ended_at: when it ended, in seconds of the worker's monotonic clock.
    """

    rank: int
    fault: str | None
    output: str
    ended_at: float
    unavailable: str | None = None


@dataclass(frozen=True)
class Imported:
    """What a worker imported.

    Attributes:
        seconds: wall time; zero if there was nothing to import.
        modules: number of modules loaded so far.
        failed: module → why it cannot be imported in this stack.
        threads: native threads alive afterwards; one unless an import started some.
        late: modules that ranks had had to import themselves and that are preloaded now.
        initialised_by: the module whose import initialised the CUDA driver, so that ranks are fresh processes.
    """

    seconds: float
    modules: int
    failed: Mapping[str, str]
    threads: int
    late: tuple[str, ...] = ()
    initialised_by: str | None = None


@dataclass(frozen=True)
class Reply:
    """The answer to a `Request`.

    Attributes:
        seconds: from the fork to the end of the last rank; imports are not in it.
        imported: set if the worker had to import something before it could fork.
    """

    ranks: tuple[RankReport, ...]
    seconds: float
    imported: Imported | None


_KINDS: dict[str, Any] = {"request": Request, "preload": Preload, "reply": Reply, "imported": Imported}


def send(connection: Connection, message: Any) -> None:
    """Send one message."""
    kind = next(name for name, known in _KINDS.items() if type(message) is known)
    connection.send_bytes(json.dumps({"kind": kind, **asdict(message)}).encode())


def receive(connection: Connection) -> Any:
    """Wait for one message.

    Raises:
        EOFError: the other end is gone.
        ValueError: what came is no message.
    """
    data = connection.recv_bytes()
    try:
        raw = json.loads(data)
    except RecursionError as error:
        raise ValueError("not a message of this protocol") from error
    kind = raw.pop("kind", None) if isinstance(raw, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError("not a message of this protocol")
    return shaped(_KINDS[kind], raw)
