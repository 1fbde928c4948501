"""The controllers' end: one worker per stack and run, shared by every process of the run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import filelock
import psutil

from harness.stacks import BuiltStack
from harness.workers.protocol import Imported, Pin, Preload, Ready, Reply, Request, WorkerSpec, receive, send

_START_SECONDS = 120.0
_IMPORT_SECONDS = 600.0
"""What a worker may need before a case starts: to import, and to end cases that came before."""
_STOP_SECONDS = 10.0
_RESTARTS = 1
_LONGEST_SOCKET_FOLDER = 80

Event = Callable[[str, dict[str, Any]], None]
"""Called with the name of something that happened to a worker, and its data."""


class WorkerLost(RuntimeError):
    """A worker could not be started, or died twice."""


@dataclass(frozen=True)
class _State:
    """What the run's processes share about one worker."""

    pid: int
    socket: str
    starts: int


class Pool:
    """Workers of one run.

    Every process of a run makes its own pool over the same folder; whoever needs a worker first starts it, and the
    owner (the run's main process) stops them all.
    """

    def __init__(
        self,
        folder: Path,
        lane: str,
        owner_pid: int,
        event: Event,
        *,
        other_order: bool = False,
        deterministic: bool = True,
        preload: Iterable[str] = (),
    ) -> None:
        """Workers in `folder`; with `other_order` they import in reverse and have another hash seed.

        Args:
            deterministic: of the lane, see `lane_named`.
            preload: the probes that a worker imports for before its first case, whichever case that is and however
                often the worker is started, so that what a case finds imported depends on neither.
        """
        self._preload = tuple(preload)
        self._other_order = other_order
        self._deterministic = deterministic
        self._folder = folder
        self._lane = lane
        self._owner_pid = owner_pid
        self._event = event
        self._connections: dict[tuple[str, int], Connection] = {}
        self._stopping = False
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, stack: BuiltStack, request: Request) -> Reply:
        """Run one case on a stack, restarting its worker once if it dies.

        Raises:
            WorkerLost: the worker cannot start, or died again.
        """
        while True:
            state = self._ensure(stack)
            try:
                reply: Reply = self._ask(stack, state, request)
            except (EOFError, ConnectionError) as error:
                self._drop(stack)
                self._bury(stack, state, error)
                continue
            if reply.imported:
                self._imported(stack, reply.imported)
            return reply

    def preload(self, stack: BuiltStack) -> Imported:
        """Import what the pool's probes need now, so that the first case does not wait for it.

        Raises:
            WorkerLost: the worker cannot start, or died.
        """
        state = self._ensure(stack)
        try:
            imported: Imported = self._ask(stack, state, Preload())
        except (EOFError, ConnectionError) as error:
            raise WorkerLost(f"{self._describe(stack)} died while importing: {self._last_line(stack)}") from error
        self._imported(stack, imported)
        return imported

    def release(self, stack: BuiltStack) -> None:
        """Stop the worker of one stack, which a later request starts anew; nobody may be waiting for it."""
        with self._lock(stack):
            file = self._file(stack, "state")
            _end([process for process in [_process(_read_state(file))] if process])
            file.unlink(missing_ok=True)
        for key in [key for key in self._connections if key[0] == _worker_name(stack)]:
            self._connections.pop(key).close()

    def stop(self) -> None:
        """Stop every worker of the run, and everything they started; whoever waits for one gets `WorkerLost`."""
        self._stopping = True
        states = [state for file in self._folder.glob("*.state") if (state := _read_state(file))]
        _end([process for state in states if (process := _process(state))])
        for state in states:
            shutil.rmtree(Path(state.socket).parent, ignore_errors=True)  # of a worker that was killed

    def _ask(self, stack: BuiltStack, state: _State, message: Any) -> Any:
        key = (_worker_name(stack), threading.get_ident())
        if key not in self._connections:
            self._connections[key] = Client(state.socket, family="AF_UNIX")
        connection = self._connections[key]
        send(connection, message)
        allowed = _IMPORT_SECONDS + (message.limits.seconds if isinstance(message, Request) else 0.0)
        if not connection.poll(allowed):
            _kill(state)
            raise ConnectionAbortedError(f"gave no answer within {allowed:g} s and was killed")
        return receive(connection)

    def _drop(self, stack: BuiltStack) -> None:
        connection = self._connections.pop((_worker_name(stack), threading.get_ident()), None)
        if connection is not None:
            connection.close()

    def _ensure(self, stack: BuiltStack) -> _State:
        """The state of a worker that serves, started here if no process of the run has done so."""
        with self._lock(stack):
            if self._stopping:
                raise WorkerLost("the run was stopped")
            state = _read_state(self._file(stack, "state"))
            if state and _process(state):
                return state
            starts = state.starts if state else 0
            if starts > _RESTARTS:
                raise WorkerLost(f"{self._describe(stack)} died {starts} times: {self._last_line(stack)}")
            return self._start(stack, starts + 1)

    def _bury(self, stack: BuiltStack, state: _State, error: BaseException) -> None:
        """Record that a worker died, once for all processes, and wait until it is really gone."""
        with self._lock(stack):
            current = _read_state(self._file(stack, "state"))
            if current and current.pid == state.pid and (process := _process(current)):
                with contextlib.suppress(psutil.TimeoutExpired):
                    process.wait(_STOP_SECONDS)
            if current and current.pid == state.pid:
                self._event(
                    "worker_died",
                    {"stack": stack.name, "starts": state.starts, "why": f"{error!r}", "log": self._last_line(stack)},
                )

    def _start(self, stack: BuiltStack, starts: int) -> _State:
        ready_file = self._file(stack, f"ready{starts}")
        ready_file.unlink(missing_ok=True)  # of a worker that was released
        temporary = _short_folder()
        socket = str(Path(temporary) / "worker")
        spec = WorkerSpec(
            stack=stack.name,
            lane=self._lane,
            overlay=str(stack.overlay),
            pins=tuple(Pin(pin.distribution, pin.version, pin.commit, pin.tree_hash) for pin in stack.pins),
            socket=socket,
            ready=str(ready_file),
            owner_pid=self._owner_pid,
            reverse_imports=self._other_order,
            deterministic=self._deterministic,
            preload=self._preload,
        )
        spec_file = self._file(stack, "spec")
        spec_file.write_text(spec.dumps())
        with self._file(stack, "log").open("ab") as log:
            process = subprocess.Popen(
                [str(stack.python), "-P", "-m", "harness.workers", str(spec_file)],
                # Upstream's own temporary files go where the socket is, and with it.
                env={**self._environment(stack), "TMPDIR": temporary},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        state = _State(process.pid, socket, starts)
        self._file(stack, "state").write_text(json.dumps(state.__dict__))
        ready = self._await(stack, process, ready_file)
        if ready.fault:
            process.wait(_STOP_SECONDS)
            raise WorkerLost(f"{self._describe(stack)}: {ready.fault}")
        self._event(
            "worker_started", {"stack": stack.name, "starts": starts, "pid": process.pid, "pins": ready.versions}
        )
        return state

    def _await(self, stack: BuiltStack, process: subprocess.Popen[bytes], ready_file: Path) -> Ready:
        deadline = time.monotonic() + _START_SECONDS
        while not ready_file.exists():
            if process.poll() is not None:
                raise WorkerLost(f"{self._describe(stack)} did not start: {self._last_line(stack)}")
            if time.monotonic() > deadline:
                process.kill()
                raise WorkerLost(f"{self._describe(stack)} did not start within {_START_SECONDS:g} s")
            time.sleep(0.02)
        return Ready(**json.loads(ready_file.read_text()))

    def _environment(self, stack: BuiltStack) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_", "PYTEST_"))}
        cache = stack.overlay.parent.parent
        site = [str(stack.site)] if stack.site else []
        environment = {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(stack.overlay), *site, str(_code(cache))]),
            "PYTHONHASHSEED": "4242" if self._other_order else "0",
            "PYTHONUNBUFFERED": "1",
        }
        if not site:
            # Kept beside the overlays, which nobody writes to: compiling is half of an import's time. A bundle was
            # compiled when it was unpacked, and the interpreter under it has its own.
            environment["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
        return environment

    def _imported(self, stack: BuiltStack, imported: Imported) -> None:
        if imported.seconds:
            self._event("imported", {"stack": stack.name, **imported.__dict__})

    def _lock(self, stack: BuiltStack) -> filelock.FileLock:
        return filelock.FileLock(self._file(stack, "lock"))

    def _file(self, stack: BuiltStack, ending: str) -> Path:
        return self._folder / f"{_worker_name(stack)}.{ending}"

    def _describe(self, stack: BuiltStack) -> str:
        return f"the worker of stack {stack.name}"

    def _last_line(self, stack: BuiltStack) -> str:
        file = self._file(stack, "log")
        lines = file.read_text(errors="replace").split("\n") if file.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return f"{last} ({file})"


def _short_folder() -> str:
    """A new folder whose path leaves room for a socket's name: the system allows 107 bytes."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="parity-", dir=usual if len(usual) < _LONGEST_SOCKET_FOLDER else "/tmp")


def _worker_name(stack: BuiltStack) -> str:
    return f"{stack.name}-{stack.key[:8]}"


def _code(cache: Path) -> Path:
    """A folder that holds the harness package and nothing else of the controller's environment."""
    package = Path(__file__).resolve().parents[1]
    code = (cache / "code").resolve() / hashlib.sha256(str(package).encode()).hexdigest()[:16]
    code.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (code / "harness").symlink_to(package)
    return code


def _end(processes: list[psutil.Process]) -> None:
    """Ask workers to end, and make sure that they and all they started do."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=_STOP_SECONDS)
    for process in alive:
        _kill_all(process)


def _kill(state: _State) -> None:
    process = _process(state)
    if process is not None:
        _kill_all(process)


def _kill_all(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


def _read_state(file: Path) -> _State | None:
    return _State(**json.loads(file.read_text())) if file.exists() else None


def _process(state: _State | None) -> psutil.Process | None:
    """The live process of a state; a recycled pid or a zombie is none."""
    if state is None:
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(state.pid)
        if process.status() != psutil.STATUS_ZOMBIE and "harness.workers" in process.cmdline():
            return process
    return None
