"""How fast the config serialiser is fuzzed: examples drawn, dumped by two stacks, examined and compared.

    nox -s bench

The loop is that of suites/fuzz. Examples per second and core are examples per second of processor time of all processes
together; where a figure is per second, it is of the clock. Nothing here passes or fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

from conversation import PROBES, Stacks
from descriptions import CONFIG_OBJECTS, CONFIG_OBJECTS_AND_DICTS, Descriptions, batches
from fuzzing import Fuzz
from jury import Jury
from real_configs import real_configs, shared_classes

from harness.workers.pool import Pool

OLD, MIDDLE, NEW = "verl-0.7.1", "verl-0.8.0", "verl-0.9.1"
WHOLE_SAVES, REQUESTS = 20, 20
BATCH = 50


class Measured(NamedTuple):
    """Examples, seconds of the clock and of all processors, and how many of the examples differ from each other."""

    examples: int
    seconds: float
    processor: float
    different: int


def main() -> None:
    with _stacks() as stacks:
        quick = CONFIG_OBJECTS_AND_DICTS
        functions = _jury(stacks, [MIDDLE, NEW], "functions")
        _show(f"functions, {MIDDLE} against {NEW}", batched := _measured(functions, quick, BATCH, 300))
        _show("the same, one message for each example", message := _measured(functions, quick, 1, 1000))
        _show("the same, one request of a worker for each", request := _requests(stacks, MIDDLE))
        real = real_configs(shared_classes(stacks, [MIDDLE, NEW]))
        _show("functions, configs of the stacks' own classes", _measured(functions, real, BATCH, 5))
        _show(f"saves of {OLD} alone", _measured(_jury(stacks, [OLD], "saves"), CONFIG_OBJECTS, 20, 50))
        _show(
            f"saves, {OLD} against {MIDDLE}", _measured(_jury(stacks, [OLD, MIDDLE], "saves"), CONFIG_OBJECTS, 20, 50)
        )
        for name in (OLD, MIDDLE):
            _show(f"whole saves of {name}, nothing replaced", _whole_saves(stacks, name))
    each = [measured.seconds / measured.examples for measured in (batched, message, request)]
    Console().print(
        f"in batches an example takes {each[1] / each[0]:.1f} times less than with a message of its own,"
        f" {each[2] / each[0]:.0f} times less than with a request of its own",
        soft_wrap=True,
    )


def _show(name: str, measured: Measured) -> None:
    count, seconds, processor, different = measured
    Console().print(
        f"{name}: {count} examples, {different} of them different, {count / seconds:.0f} per second,"
        f" {count / processor:.0f} per second and core",
        soft_wrap=True,
    )


@contextlib.contextmanager
def _stacks() -> Iterator[Stacks]:
    with tempfile.TemporaryDirectory(prefix="parity-bench-") as name:
        folder = Path(name)
        (folder / "conversations").mkdir()
        pool = Pool(folder / "workers", "cpu", os.getpid(), lambda *_: None, preload=PROBES)
        stacks = Stacks(pool, folder / "conversations")
        try:
            yield stacks
        finally:
            stacks.close()
            pool.stop()


def _jury(stacks: Stacks, names: list[str], through: str) -> Jury:
    jury = Jury([stacks.talk(name, "config_dumps", through=through) for name in names], through)
    assert jury.known
    assert jury.classes is not None
    return jury


def _measured(jury: Jury, strategy: Descriptions, size: int, count: int) -> Measured:
    """Draw batches and let a jury hear them."""
    examples: list[Any] = []

    def hear(drawn: list[Any]) -> None:
        examples.extend(drawn)
        jury.hear(drawn)

    fuzz = Fuzz("ci", seconds=0.0, database=Path(), shrink=False)
    seconds, processor = _timed(lambda: fuzz(batches(strategy, size), count, hear))
    return Measured(len(examples), seconds, processor, len({json.dumps(each) for each in examples}))


def _requests(stacks: Stacks, name: str) -> Measured:
    """One example for each request: the worker forks a rank, whose observation goes through a file."""

    def ask() -> None:
        for number in range(REQUESTS):
            stacks.observe(name, "config_dumps", configs=[["Config", number]])

    return Measured(REQUESTS, *_timed(ask), REQUESTS)


def _whole_saves(stacks: Stacks, name: str) -> Measured:
    """Saves of an engine that verl has initialized; each answer takes three: the dump, its twin, what was loaded."""
    talk = stacks.talk(name, "config_dumps", through="whole_saves")
    talk.ask([["Config", 0]])
    seconds, processor = _timed(lambda: talk.ask([["Config", number] for number in range(WHOLE_SAVES)]))
    return Measured(WHOLE_SAVES, seconds, processor, WHOLE_SAVES)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    started, before = time.perf_counter(), _processor()
    work()
    return time.perf_counter() - started, _processor() - before


def _processor() -> float:
    """Processor seconds of this process, and of all that it has started."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


if __name__ == "__main__":
    main()
