"""A conversation with a rank of a stack: batches of questions go in, answers come back, and the rank stays.

The worker's protocol knows nothing of it: to the worker it is one request, whose probe listens on a socket.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from harness.observe.observation import load
from harness.selection import Selection
from harness.stacks import BuiltStack
from harness.workers.pool import Pool
from harness.workers.protocol import Limits, Reply, Request

PROBES = ("config_dumps", f"{Path(__file__).with_name('reader_probes.py')}::adapter_paths")
"""Probes that preload all that those of the fuzzers do."""

_START_SECONDS = 100.0
_ANSWER_SECONDS = 120.0


class ConversationEnded(AssertionError):
    """The rank is gone or silent; the message says what the worker knows."""


class Conversation:
    """One rank of a stack, which runs a probe that takes `listen`."""

    def __init__(self, pool: Pool, stack: BuiltStack, probe: str, parameters: dict[str, Any], folder: Path) -> None:
        self.stack = stack
        self.seconds = 0.0
        self._reply: Reply | BaseException | None = None
        self._short = tempfile.TemporaryDirectory(prefix="parity-")
        socket = str(Path(self._short.name) / "rank")
        request = Request(probe, {**parameters, "listen": socket}, "single", str(folder), Limits(seconds=24 * 3600.0))
        self._thread = threading.Thread(target=self._run, args=(pool, request), daemon=True)
        self._thread.start()
        self._connection = self._connect(socket)

    def put(self, questions: Sequence[Any]) -> None:
        """Ask a batch; `take` gets its answers."""
        self.send(encoded(questions))

    def take(self) -> list[dict[str, Any]]:
        """The answers to the batch that was put.

        Raises:
            ConversationEnded: there will be none.
        """
        answers: list[dict[str, Any]] = json.loads(self.receive())
        return answers

    def send(self, batch: bytes) -> None:
        """Ask a batch that is encoded already."""
        try:
            self._connection.send_bytes(batch)
        except OSError:
            raise self._ended("is gone") from None

    def receive(self) -> bytes:
        """The answers to a batch, not yet decoded.

        Raises:
            ConversationEnded: there will be none.
        """
        try:
            if self._connection.poll(_ANSWER_SECONDS):
                return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise self._ended("ended") from None
        raise self._ended(f"gave no answer within {_ANSWER_SECONDS:g} s")

    def ask(self, questions: Sequence[Any]) -> list[dict[str, Any]]:
        """Put a batch and take its answers."""
        self.put(questions)
        return self.take()

    def close(self) -> None:
        """Hang up, and wait for the rank to end."""
        self._connection.close()
        self._thread.join()
        self._short.cleanup()

    def _run(self, pool: Pool, request: Request) -> None:
        try:
            self._reply = pool.run(self.stack, request)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asks
            self._reply = error

    def _connect(self, socket: str) -> Connection:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._thread.is_alive():
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return Client(socket, family="AF_UNIX")
            time.sleep(0.02)
        raise self._ended("never listened")

    def _ended(self, how: str) -> ConversationEnded:
        self._thread.join(5.0)
        told = [f"the rank of {self.stack.name} {how}"]
        if isinstance(self._reply, Reply):
            told += [f"{rank.fault or rank.unavailable or ''}\n{rank.output}".strip() for rank in self._reply.ranks]
        elif self._reply is not None:
            told.append(str(self._reply))
        return ConversationEnded("; ".join(told))


def encoded(questions: Sequence[Any]) -> bytes:
    """A batch as it travels."""
    return json.dumps(list(questions)).encode()


def ask_all(conversations: Sequence[Conversation], questions: Sequence[Any]) -> Iterator[list[dict[str, Any]]]:
    """Ask several stacks the same at the same time; their answers in the same order, the same list for equal ones."""
    batch = encoded(questions)
    for conversation in conversations:
        conversation.send(batch)
    decoded: dict[bytes, list[dict[str, Any]]] = {}
    for conversation in conversations:
        answers = conversation.receive()
        if answers not in decoded:
            decoded[answers] = json.loads(answers)
        yield decoded[answers]


class Stacks:
    """Conversations with stacks, one for each probe and its parameters."""

    def __init__(self, pool: Pool, folder: Path) -> None:
        """`pool` preloads `PROBES`."""
        self._pool = pool
        self._folder = folder
        self._built: dict[str, BuiltStack] = {}
        self._open: dict[tuple[str, ...], Conversation] = {}

    def stack(self, name: str) -> BuiltStack:
        """The stack, built if need be."""
        if name not in self._built:
            self._built[name] = Selection(old=name).build_old(lambda _line: None)
            # At once: a worker imports nothing while a conversation goes on.
            self._pool.preload(self._built[name])
        return self._built[name]

    def start(self, names: Sequence[str]) -> None:
        """Build stacks and let their workers import, all at the same time."""
        with ThreadPoolExecutor(len(names)) as executor:
            list(executor.map(self.stack, names))

    def talks(self, names: Sequence[str], probe: str, **parameters: str) -> list[Conversation]:
        """Conversations with a probe in several stacks."""
        self.start(names)
        return [self.talk(name, probe, **parameters) for name in names]

    def talk(self, name: str, probe: str, **parameters: str) -> Conversation:
        """A conversation with a probe in a stack."""
        key = (name, probe, *parameters.values())
        if key not in self._open:
            folder = self._folder / str(len(self._open))
            self._open[key] = Conversation(self._pool, self.stack(name), probe, parameters, folder)
        return self._open[key]

    def observe(self, name: str, probe: str, **parameters: Any) -> Any:
        """The tree of what a probe observes in a stack."""
        folder = self._folder / f"observed{len(list(self._folder.iterdir()))}"
        reply = self._pool.run(self.stack(name), Request(probe, parameters, "single", str(folder), Limits()))
        assert [rank.fault for rank in reply.ranks] == [None], reply.ranks[0]
        observation = load(folder / "rank0")
        assert observation.exception is None, observation.exception
        assert not observation.missing, observation.missing
        return observation.tree

    def close(self) -> None:
        """End every conversation."""
        for conversation in self._open.values():
            conversation.close()
