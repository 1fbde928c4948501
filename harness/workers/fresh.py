"""A rank in a process of its own, where its worker cannot fork one: it imports everything again.

`become_fresh_rank` replaces the forked process, so that its id, its output and its limits stay what the worker knows.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.observe.shapes import shaped
from harness.probes.registry import find_probe
from harness.workers.importing import importing
from harness.workers.lanes import lane_named
from harness.workers.protocol import Request, WorkerSpec
from harness.workers.rank import run_rank


def become_fresh_rank(spec: WorkerSpec, request: Request, rank: int, surroundings: Mapping[str, Any]) -> None:
    """Replace this process by a fresh one that runs `rank` of the request; it does not return."""
    folder = Path(request.folder) / f"rank{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    order = folder / "order.json"
    order.write_text(
        json.dumps({"spec": spec.dumps(), "request": asdict(request), "rank": rank, "surroundings": dict(surroundings)})
    )
    os.execv(sys.executable, [sys.executable, "-P", "-m", "harness.workers.fresh", str(order)])


def main(order_file: str) -> None:
    """Run the rank that the file describes."""
    order = json.loads(Path(order_file).read_text())
    spec, request = WorkerSpec.loads(order["spec"]), shaped(Request, order["request"])
    lane = lane_named(spec.lane, deterministic=spec.deterministic, fresh=True)
    lane.prepare()
    with importing(lane):
        for name in find_probe(request.probe).preload:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - as in the worker: a pin may lack a module; the probe will say so
                print(f"{name} cannot be imported: {error!r}", flush=True)  # noqa: T201 - to the rank's output
    run_rank(request, order["rank"], lane, Path(spec.overlay), order["surroundings"])


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # as a forked rank does: tearing CUDA down takes seconds, and the results are on disk
