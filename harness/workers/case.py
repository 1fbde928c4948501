"""One case inside a worker: its forked ranks, what they print, and when they are cut."""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing.util
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.layouts import layout_named
from harness.observe.run import Lane
from harness.workers.fresh import become_fresh_rank
from harness.workers.protocol import Imported, Limits, RankReport, Reply, Request, WorkerSpec
from harness.workers.rank import FAULT_FILE, STACKS_SIGNAL, UNAVAILABLE_FILE, run_rank

_KEPT_OUTPUT = 64 << 10
_CHUNK = 1 << 20
_MEMORY_TICK = 0.1
_STACKS_WAIT = 1.0
_PR_SET_PDEATHSIG = 1
_EXTENSION_MODULES = re.compile(r"^Extension modules: .*$\n?", re.MULTILINE)


class RankProcess:
    """A forked rank: its process, the end of its output, and why it was cut, if it was."""

    def __init__(self, number: int, pid: int, output: int) -> None:
        self.number = number
        self.pid = pid
        self.output = output
        self.cut: str | None = None
        self.status: int | None = None
        self.ended_at: float | None = None
        self._tail = b""
        self._printed = 0
        self._shared = _anonymous_memory(pid)

    @property
    def alive(self) -> bool:
        """Whether the process has not ended, as far as `poll` has seen."""
        return self.status is None

    @property
    def printed(self) -> int:
        """Bytes printed so far."""
        return self._printed

    @property
    def tail(self) -> str:
        """The end of what the rank printed, without the loaded modules that end a fatal error's report."""
        return _EXTENSION_MODULES.sub("", self._tail.decode(errors="replace"))

    @property
    def own_memory(self) -> int:
        """Bytes of anonymous memory beyond what the rank shared with the worker at its start."""
        return max(0, _anonymous_memory(self.pid) - self._shared)

    def read(self) -> bool:
        """Take what the rank has printed, of which only the end is kept; False once it can print no more."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.output, _CHUNK):
                self._printed += len(chunk)
                self._tail = (self._tail + chunk)[-_KEPT_OUTPUT:]
            return False
        return True

    def poll(self) -> None:
        """Notice the end of the process."""
        if self.alive:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
                self.ended_at = time.monotonic()

    def signal(self, number: int) -> None:
        """Send a signal to the rank alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the rank and everything it started."""
        for pid in [self.pid, *_descendants(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class CaseRun:
    """The ranks of one request, from the fork to the reply."""

    def __init__(
        self,
        request: Request,
        connection: Connection,
        imported: Imported | None,
        lane: Lane,
        spec: WorkerSpec,
        surroundings: Mapping[str, Any],
    ) -> None:
        self.connection = connection
        self.ranks: list[RankProcess] = []
        self._request = request
        self._imported = imported
        self._lane = lane
        self._spec = spec
        self._surroundings = surroundings
        self._started = time.monotonic()
        self._stacks_asked: float | None = None
        self._next_memory_check = 0.0
        self._seconds = 0.0

    def start(self, close_inherited: Callable[[], None]) -> None:
        """Fork the ranks; `close_inherited` runs first in each child and closes the worker's own descriptors."""
        Path(self._request.folder).mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        for number in range(layout_named(self._request.layout).world_size):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                self._become_rank(number, writing, close_inherited)
            os.close(writing)
            os.set_blocking(reading, False)
            self.ranks.append(RankProcess(number, pid, reading))

    @property
    def finished(self) -> bool:
        """Whether every rank has ended."""
        return all(not rank.alive for rank in self.ranks)

    def tick(self) -> None:
        """Notice what has ended, and cut what went over a limit or waits for a rank that is gone."""
        for rank in self.ranks:
            rank.poll()
        living = [rank for rank in self.ranks if rank.alive]
        if not living:
            self._seconds = time.monotonic() - self._started
            return
        self._cut_greedy(living)
        reason = self._reason_to_end()
        if reason:
            self._end(living, reason)

    def abort(self) -> None:
        """End every rank at once; nobody waits for the answer."""
        for rank in self.ranks:
            if rank.alive:
                rank.kill()
                os.waitpid(rank.pid, 0)
                rank.status = 0

    def reply(self) -> Reply:
        """What the controller is told."""
        for rank in self.ranks:
            rank.read()
            (self._folder(rank) / "output.log").write_text(rank.tail)
        return Reply(tuple(self._report(rank) for rank in self.ranks), self._seconds, self._imported)

    def imported_by_children(self) -> set[str]:
        """Names of the modules that the ranks had to import themselves."""
        found: set[str] = set()
        for rank in self.ranks:
            file = self._folder(rank) / "observation.json"
            if file.exists():
                found.update(json.loads(file.read_text())["imported"])
        return {name for name in found if not name.startswith(("harness.", "parity_probe_file_"))}

    def _become_rank(self, number: int, output: int, close_inherited: Callable[[], None]) -> None:
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(output, 2)
            close_inherited()
            if self._lane.initialised_by:
                become_fresh_rank(self._spec, self._request, number, self._surroundings)
            multiprocessing.util._run_after_forkers()  # type: ignore[attr-defined]  # as its own forks do
            run_rank(self._request, number, self._lane, Path(self._spec.overlay), self._surroundings)
        finally:
            os._exit(0)

    def _folder(self, rank: RankProcess) -> Path:
        folder = Path(self._request.folder) / f"rank{rank.number}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _cut_greedy(self, living: list[RankProcess]) -> None:
        limits = self._request.limits
        for rank in living:
            if rank.printed > limits.output:
                rank.cut = f"printed more than {_size(limits.output)}"
                rank.kill()
        if time.monotonic() < self._next_memory_check:
            return
        self._next_memory_check = time.monotonic() + _MEMORY_TICK
        for rank in living:
            if rank.own_memory > limits.memory:
                rank.cut = f"used more memory than its limit of {_size(limits.memory)}"
                rank.kill()

    def _reason_to_end(self) -> str | None:
        limits: Limits = self._request.limits
        if time.monotonic() - self._started > limits.seconds:
            return f"did not end within {limits.seconds:g} s"
        for rank in self.ranks:
            gone = rank.ended_at is not None and time.monotonic() - rank.ended_at > limits.grace
            if gone and self._left_early(rank):
                return f"was still waiting {limits.grace:g} s after rank {rank.number} had ended"
        return None

    def _left_early(self, rank: RankProcess) -> bool:
        """Whether a rank ended in a way that leaves others waiting: it died, or raised."""
        if self._fault(rank) or self._read(rank, UNAVAILABLE_FILE):
            return True
        return json.loads((self._folder(rank) / "observation.json").read_text())["exception"] is not None

    def _end(self, living: list[RankProcess], reason: str) -> None:
        """Ask for the Python stacks, give them a moment to be printed, then kill."""
        now = time.monotonic()
        if self._stacks_asked is None:
            self._stacks_asked = now
            for rank in living:
                rank.signal(STACKS_SIGNAL)
        elif now - self._stacks_asked > _STACKS_WAIT:
            for rank in living:
                rank.cut = reason
                rank.kill()

    def _report(self, rank: RankProcess) -> RankReport:
        fault = self._fault(rank)
        if fault and rank.cut and (place := _waiting_place(rank.tail)):
            fault = f"{fault}, in {place}"
        unavailable = self._read(rank, UNAVAILABLE_FILE)
        return RankReport(rank.number, fault, rank.tail, rank.ended_at or time.monotonic(), unavailable)

    def _read(self, rank: RankProcess, name: str) -> str | None:
        file = self._folder(rank) / name
        return file.read_text() if file.exists() else None

    def _fault(self, rank: RankProcess) -> str | None:
        if rank.cut:
            return rank.cut
        if self._read(rank, UNAVAILABLE_FILE):
            return None
        told = self._read(rank, FAULT_FILE)
        if told:
            return told
        assert rank.status is not None
        if os.WIFSIGNALED(rank.status):
            return f"was killed by {signal.Signals(os.WTERMSIG(rank.status)).name}"
        if not (self._folder(rank) / "observation.json").exists():
            return f"exited with status {os.waitstatus_to_exitcode(rank.status)} without an observation"
        return None


def _waiting_place(tail: str) -> str | None:
    """`function (file:line)` of the innermost Python frame in the stacks that faulthandler printed last."""
    _, found, stacks = tail.rpartition("(most recent call first):\n")
    first = stacks.splitlines()[0].strip() if found and stacks else ""
    if not first.startswith("File "):
        return None
    file, _, rest = first.removeprefix('File "').partition('", line ')
    line, _, function = rest.partition(" in ")
    return f"{function} ({Path(file).name}:{line})"


def _anonymous_memory(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("RssAnon:")), "RssAnon: 0 kB")
    return int(line.split()[1]) << 10


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    frontier = [pid]
    while frontier:
        try:
            listed = Path(f"/proc/{frontier[-1]}/task/{frontier[-1]}/children").read_text()
        except OSError:
            listed = ""
        frontier.pop()
        children = [int(child) for child in listed.split()]
        found += children
        frontier += children
    return found


def _size(count: int) -> str:
    return f"{count / (1 << 30):g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):g} MiB"
