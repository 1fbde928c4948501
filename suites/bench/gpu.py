"""How long a matrix of training steps takes on this host's GPUs, beside one launch for each case, side and repeat.

    nox -s bench
    python suites/bench/gpu.py [--old STACK --new STACK] [--bundle DIR] [--base PYTHON]

The matrix keeps one worker a stack, imports included in its time; a launch imports, takes one step and ends. Three
launches are measured, and the figure for the whole matrix is their mean times its runs. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from harness.cases import Case, make_case
from harness.compare import judge, load_ledger
from harness.devices import gpus
from harness.layouts import LAYOUTS
from harness.observer import Observer
from harness.schedule import LaneChoice, choose_lane
from harness.selection import Selection
from harness.stacks import BuiltStack, load_settings

MODELS = ("qwen3_wide", "qwen3_moe_wide")
SPECS = ("local", "transformer_engine")

console = Console()


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old")
    parser.add_argument("--new")
    parser.add_argument("--bundle")
    parser.add_argument("--base")
    given = parser.parse_args(words)
    if not gpus():
        console.print("GPU matrix: not run, this host has no GPU")
        return
    lane = choose_lane("cuda")
    selection = Selection(given.old, given.new, base=given.base, bundle=given.bundle, lane=lane)
    sides = selection.build(lambda line: console.print(line, style="dim", markup=False))
    assert isinstance(sides.old, BuiltStack)
    cases = _matrix(len(lane.gpus))
    started = time.perf_counter()
    _run_matrix(cases, sides.old, sides.new, lane)
    warm = time.perf_counter() - started
    launched = [_launch(cases[0], stack, lane) for stack in (sides.old, sides.old, sides.new)]
    runs = len(cases) * len(launched)
    cold = sum(launched) / len(launched) * runs
    console.print(
        f"matrix of {len(cases)} cases, old twice and new once, on {len(lane.gpus)} GPU(s): {warm:.0f} s with imports\n"
        f"a launch for each: {', '.join(f'{each:.0f}' for each in launched)} s measured for {cases[0].id},"
        f" {cold:.0f} s for {runs} runs; {cold / warm:.1f} times the matrix",
        markup=False,
        soft_wrap=True,
    )


def _matrix(count: int) -> list[Case]:
    """Steps in every layout that fits, of dense models and of experts, with both kinds of layers."""
    fitting = [name for name, layout in LAYOUTS.items() if layout.world_size <= count and not layout.fully_sharded]
    return [
        make_case("training_step", {"hf_config": model, "dtype": "bfloat16", "spec": spec}, "cuda", layout)
        for model in MODELS
        for spec in SPECS
        for layout in fitting
        if _possible(model, spec, layout)
    ]


def _possible(model: str, spec: str, layout: str) -> bool:
    """Local layers cannot share a sequence, dense models have no experts to share."""
    sizes = LAYOUTS[layout]
    shares_sequence = sizes.context_parallel_size > 1 and spec == "local"
    return not shares_sequence and (sizes.expert_model_parallel_size == 1 or "moe" in model)


@contextmanager
def _observer(lane: LaneChoice) -> Iterator[Observer]:
    with tempfile.TemporaryDirectory(prefix="parity-bench-") as name:
        observer = Observer(Path(name), os.getpid(), lambda *_: None, lane)
        try:
            yield observer
        finally:
            observer.stop()


def _run_matrix(cases: Sequence[Case], old: BuiltStack, new: BuiltStack, lane: LaneChoice) -> None:
    asked = {"old": old, "old-again": old, "new": new}
    ledger = load_ledger(load_settings().root / "golden" / "declared").on("cuda")
    with _observer(lane) as observer, ThreadPoolExecutor(len(asked)) as threads:
        for each in [threads.submit(observer.preload, stack, ("training_step",)) for stack in (old, new)]:
            each.result()
        for case in cases:
            jobs = {name: threads.submit(observer.side, name, stack, case) for name, stack in asked.items()}
            sides = {name: job.result() for name, job in jobs.items()}
            verdicts = [judge(case.id, sides["old"], sides[name], ledger).verdict for name in ("old-again", "new")]
            peak = max((rank.environment["gpu_memory"]["peak_reserved"] for rank in sides["new"].ranks), default=0)
            console.print(
                f"{case.id}: A/A {verdicts[0]}, A/B {verdicts[1]}, "
                f"{', '.join(f'{side.seconds:.1f}' for side in sides.values())} s, {peak / 1e9:.2f} GB",
                markup=False,
                soft_wrap=True,
            )


def _launch(case: Case, stack: BuiltStack, lane: LaneChoice) -> float:
    started = time.perf_counter()
    with _observer(lane) as observer:
        observer.side("new", stack, case)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1:])
