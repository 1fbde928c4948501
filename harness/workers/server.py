"""A worker: imports a stack once, then forks a child for each rank of each case.

One thread, one loop: the listening socket, the controllers' connections, the ranks' output pipes and their process
descriptors are all watched by one selector, so that nothing is ever forked from a process with a second thread of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from harness.observe.patches import foreign_functions, imported_versions
from harness.probes.registry import ProbeError, find_probe
from harness.workers.case import CaseRun, RankProcess
from harness.workers.identity import misplaced_import, verify_pins
from harness.workers.importing import importing
from harness.workers.lanes import lane_named
from harness.workers.protocol import Imported, Preload, RankReport, Ready, Reply, Request, WorkerSpec, receive, send

_TICK = 0.02
_PR_SET_CHILD_SUBREAPER = 36


class Stopped(BaseException):
    """The worker was asked to end; nothing that upstream catches while it is imported."""


def main(spec_file: str) -> int:
    """Serve the stack that the spec describes until SIGTERM, or until the owner is gone."""
    spec = WorkerSpec.loads(Path(spec_file).read_text())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, _raise_stopped)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(Stopped):
        _Server(spec).serve()
    return 0


def _raise_stopped(*_: Any) -> None:
    raise Stopped


class _Server:
    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._lane = lane_named(spec.lane, deterministic=spec.deterministic)
        self._selector = selectors.DefaultSelector()
        self._cases: list[CaseRun] = []
        self._pending: list[tuple[Request, Connection]] = []
        self._own_children: set[int] = set()
        self._fault: str | None = None
        self._preloaded: set[str] = set()
        self._verified: set[tuple[str, str]] = set()
        self._wanted: set[str] = set()
        self._failed: dict[str, str] = {}
        self._late: set[str] = set()
        self._surroundings: dict[str, Any] = {}

    def serve(self) -> None:
        """Announce readiness, then answer until SIGTERM or the owner's end."""
        started = time.perf_counter()
        self._lane.prepare()
        versions, fault = verify_pins(self._spec)
        self._surroundings = {"versions": versions}
        with Listener(self._spec.socket, family="AF_UNIX") as listener:
            self._announce(Ready(fault, time.perf_counter() - started, versions))
            if fault:
                return
            owner = os.pidfd_open(self._spec.owner_pid)
            self._watch(owner, self._owner_gone)
            self._watch(listener._listener._socket, lambda: self._accept(listener))  # type: ignore[attr-defined]
            try:
                self._loop()
            finally:
                for case in self._cases:
                    case.abort()
                self._reap_orphans()
                shutil.rmtree(Path(self._spec.socket).parent, ignore_errors=True)

    def _announce(self, ready: Ready) -> None:
        path = Path(self._spec.ready)
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps(asdict(ready)))
        unfinished.replace(path)

    def _watch(self, file: Any, action: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, action)

    def _loop(self) -> None:
        while True:
            for key, _ in self._selector.select(_TICK if self._cases else 1.0):
                key.data()
            for case in list(self._cases):
                case.tick()
                if case.finished:
                    self._finish(case)
            self._start_pending()

    def _owner_gone(self) -> None:
        raise Stopped

    def _accept(self, listener: Listener) -> None:
        connection = listener.accept()
        self._watch(connection, lambda: self._serve_one(connection))

    def _serve_one(self, connection: Connection) -> None:
        try:
            message = receive(connection)
        except (EOFError, OSError, ValueError, TypeError):
            self._selector.unregister(connection)
            connection.close()
            self._forget(connection)
            return
        match message:
            case Preload():
                send(connection, self._import_for(()) or self._imported(0.0, ()))
            case Request():
                self._pending.append((message, connection))

    def _forget(self, connection: Connection) -> None:
        """A controller is gone: nobody waits for its cases."""
        self._pending = [(request, owner) for request, owner in self._pending if owner is not connection]
        for case in [case for case in self._cases if case.connection is connection]:
            case.abort()
            self._release(case)

    def _start_pending(self) -> None:
        """Start what waits; an import waits for the cases that run, so that it never delays cutting them."""
        waiting, self._pending = self._pending, []
        for request, connection in waiting:
            try:
                find_probe(request.probe)
            except ProbeError as error:
                send(connection, _broken(f"{ProbeError.__name__}: {error}"))
                continue
            if self._cases and self._to_import((request.probe,)):
                self._pending.append((request, connection))
                continue
            imported = None if self._cases else self._import_for((request.probe,))
            if self._fault:
                send(connection, _broken(self._fault, imported))
                continue
            if not self._cases:
                self._own_children = set(_children())
            self._start(request, connection, imported)

    def _start(self, request: Request, connection: Connection, imported: Imported | None) -> None:
        case = CaseRun(request, connection, imported, self._lane, self._spec, self._surroundings)
        case.start(self._close_in_child)
        for rank in case.ranks:
            self._watch(rank.output, partial(self._read, rank))
        self._cases.append(case)

    def _close_in_child(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
            else:
                key.fileobj.close()  # type: ignore[attr-defined]
        self._selector.close()

    def _read(self, rank: RankProcess) -> None:
        if not rank.read():
            self._selector.unregister(rank.output)

    def _finish(self, case: CaseRun) -> None:
        self._wanted |= case.imported_by_children()
        reply = case.reply()
        self._release(case)
        with contextlib.suppress(BrokenPipeError):
            send(case.connection, reply)

    def _release(self, case: CaseRun) -> None:
        for rank in case.ranks:
            with contextlib.suppress(KeyError):
                self._selector.unregister(rank.output)
            os.close(rank.output)
        self._cases.remove(case)
        if not self._cases:
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        """End and wait for processes that a rank left to us."""
        for pid in set(_children()) - self._own_children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _to_import(self, probes: tuple[str, ...]) -> set[str]:
        wanted = (*self._spec.preload, *probes)
        return {name for reference in wanted for name in find_probe(reference).preload} - self._preloaded

    def _import_for(self, probes: tuple[str, ...]) -> Imported | None:
        """Import for the spec's probes, for these, and what ranks had to import; None if there was nothing new."""
        late = {name for name in self._wanted if name not in sys.modules} - set(self._failed)
        asked = self._to_import(probes)
        if not asked and not late:
            return None
        started = time.perf_counter()
        with importing(self._lane):
            for name in [*sorted(asked, reverse=self._spec.reverse_imports), *sorted(late)]:
                self._import(name)
        self._preloaded |= asked
        self._wanted.clear()
        self._fault = misplaced_import(self._spec, self._verified)
        self._lane.warm()
        if "patched" not in self._surroundings:
            # As the first import left them: which side has come to later modules already is a matter of time.
            self._surroundings |= {"packages": imported_versions(), "patched": foreign_functions()}
        gc.collect()
        gc.freeze()
        return self._imported(time.perf_counter() - started, tuple(sorted(late)))

    def _import(self, name: str) -> None:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a pin may lack a module, or fail in any way on import
            self._failed[name] = f"{type(error).__name__}: {error}"

    def _imported(self, seconds: float, late: tuple[str, ...]) -> Imported:
        threads = sum(1 for _ in Path("/proc/self/task").iterdir())
        return Imported(
            seconds, len(sys.modules), dict(self._failed), threads, late, initialised_by=self._lane.initialised_by
        )


def _broken(fault: str, imported: Imported | None = None) -> Reply:
    return Reply((RankReport(0, fault, "", time.monotonic()),), 0.0, imported)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()]
