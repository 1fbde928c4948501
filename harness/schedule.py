"""Who runs where: each run of a case holds as many places as it needs, and no place is held twice.

A place is a GPU on the cuda lane and a processor on the cpu lane. All processes of a run share the places through the
run's folder, threads included. Whoever came first is served first, so that a case of many GPUs is not passed over for
ever by cases of one.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import psutil

from harness.devices import Gpu, gpus
from harness.layouts import layout_named

_TICK = 0.02
_SIDES = 2


class LaneError(ValueError):
    """A lane that the options describe and this host does not have."""


class TooFewError(Exception):
    """A case needs more places than the run has."""


class ScheduleStopped(Exception):
    """The run was stopped while a case waited for its places."""


@dataclass(frozen=True)
class LaneChoice:
    """The lane of a run.

    Attributes:
        gpus: ids of the GPUs it may use; none on the cpu lane.
        deterministic: False for production settings, judged by the noise floor; goldens are not compared then.
        architecture: of the GPUs, e.g. `sm90`.
    """

    name: str = "cpu"
    gpus: tuple[str, ...] = ()
    deterministic: bool = True
    architecture: str = ""

    @property
    def golden_folder(self) -> str:
        """Where below `golden/` its goldens are."""
        return self.name if self.name == "cpu" else f"{self.name}-{self.architecture or 'none'}"

    @property
    def places(self) -> tuple[str, ...]:
        """What a run of a case can hold."""
        return self.gpus if self.name == "cuda" else tuple(map(str, range(max(_SIDES, os.cpu_count() or 1))))

    @property
    def options(self) -> str:
        """The command-line options that choose it again."""
        if self.name == "cpu":
            return ""
        chosen = f"--lane {self.name} --gpus {','.join(self.gpus)}"
        return chosen if self.deterministic else f"{chosen} --nondeterministic"

    def lacking(self, layouts: Iterable[str]) -> str | None:
        """What a case lacks that runs in these layouts, one after another; None if it can run."""
        return _lacking(max(map(self.needed, layouts)), self.places)

    def needed(self, layout: str) -> int:
        """Places that one run of a case holds: a GPU for each rank; one processor, which its ranks share."""
        return layout_named(layout).world_size if self.name == "cuda" else 1


def choose_lane(name: str, chosen: str | None = None, *, deterministic: bool = True) -> LaneChoice:
    """The lane that the options `--lane`, `--gpus` and `--nondeterministic` describe on this host.

    Raises:
        LaneError: no such lane, or GPUs that this host does not have.
    """
    if name == "cpu":
        if chosen or not deterministic:
            raise LaneError("--gpus and --nondeterministic go with --lane cuda")
        return LaneChoice()
    if name != "cuda":
        raise LaneError(f"unknown lane {name!r}; known: cpu, cuda")
    found = {gpu.id: gpu for gpu in gpus()}
    ids = tuple(found) if chosen is None else tuple(part.strip() for part in chosen.split(","))
    missing = [gpu for gpu in ids if gpu not in found]
    if missing or len(set(ids)) < len(ids):
        raise LaneError(f"--gpus {chosen}: this host has {', '.join(found) or 'no GPU'}; name each once")
    return LaneChoice(name, ids, deterministic, _architecture([found[gpu] for gpu in ids]))


class Schedule:
    """The places of one run."""

    def __init__(self, folder: Path, places: Sequence[str]) -> None:
        """`folder` is the same in every process of the run; the places too."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "schedule.json"
        self._places = tuple(places)
        self._stopped = threading.Event()

    @contextmanager
    def hold(self, count: int) -> Iterator[tuple[str, ...]]:
        """Hold `count` places within the context, once everybody who asked before has theirs.

        Raises:
            TooFewError: the run does not have so many.
            ScheduleStopped: the run ended in the meantime.
        """
        if lacking := _lacking(count, self._places):
            raise TooFewError(lacking)
        ticket = uuid.uuid4().hex
        try:
            yield self._wait_for(ticket, count)
        finally:
            with self._shared() as state:
                state[:] = [entry for entry in state if entry["ticket"] != ticket]

    def stop(self) -> None:
        """Let nobody of this process wait any longer."""
        self._stopped.set()

    def _wait_for(self, ticket: str, count: int) -> tuple[str, ...]:
        with self._shared() as state:
            state.append({"ticket": ticket, "pid": os.getpid(), "places": []})
        while not self._stopped.is_set():
            with self._shared() as state:
                held = {place for entry in state for place in entry["places"]}
                free = [place for place in self._places if place not in held]
                first = next(entry for entry in state if not entry["places"])
                if first["ticket"] == ticket and len(free) >= count:
                    first["places"] = free[:count]
                    return tuple(free[:count])
            time.sleep(_TICK)
        raise ScheduleStopped("the run was stopped")

    @contextmanager
    def _shared(self) -> Iterator[list[dict[str, Any]]]:
        """Who waits and who holds what, in the order in which they came; what a dead process held is free."""
        with filelock.FileLock(self._file.with_suffix(".lock")):
            state = json.loads(self._file.read_text()) if self._file.exists() else []
            state = [entry for entry in state if psutil.pid_exists(entry["pid"])]
            yield state
            partial = self._file.with_suffix(".partial")
            partial.write_text(json.dumps(state))
            partial.replace(self._file)


def _lacking(count: int, places: Sequence[str]) -> str | None:
    return f"needs {count} GPU(s); this run has {', '.join(places) or 'none'}" if count > len(places) else None


def _architecture(chosen: Sequence[Gpu]) -> str:
    kinds = sorted({gpu.capability for gpu in chosen})
    if len(kinds) > 1:
        raise LaneError(f"GPUs of {' and '.join(kinds)} cannot be compared bit for bit; choose with --gpus")
    return f"sm{kinds[0].replace('.', '')}" if kinds else ""
