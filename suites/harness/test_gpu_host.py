"""What goes wrong on real GPUs, on a toy stack with this interpreter's own torch: a failure stays in its own case."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from toy_project import Project

from harness.devices import gpus

COUNT = len(gpus())
PROBES = '''
import time
from harness.probes import probe

PRELOAD = ("torch", "toy")


@probe(enters=("toy:build",), tensors=("total",))
def on_gpu(run, *, do: str = "nothing", again: int = 0):
    """A sum on a GPU, over all ranks, and what may go wrong before it."""
    import torch
    run.upstream("toy:build")()
    run.lane.start_distributed(run)
    ones = torch.ones(1 << 20, device="cuda")
    if do == "exhaust":
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    if do == "assert":
        ones[torch.tensor([1 << 30], device="cuda")]
        torch.cuda.synchronize()
    if do == "leave" and run.rank:
        raise SystemExit(3)
    total = ones.sum()
    torch.distributed.all_reduce(total)
    return {"total": total}
'''

pytestmark = [
    pytest.mark.skipif(not COUNT, reason="needs a GPU"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs a torch in this interpreter"),
]
two_gpus = pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")


def records(project: Project, *calls: str) -> list[dict[str, Any]]:
    """Run cases one after another on the same workers, and return what was recorded of each."""
    project.write("gpu_probes.py", PROBES)
    tests = [
        f"def test_{number}(parity):\n    parity('gpu_probes.py::on_gpu', {call})\n"
        for number, call in enumerate(calls)
    ]
    project.write("test_them.py", "\n".join(tests))
    done = project.pytest("test_them.py", "--lane", "cuda")
    found = project.records("case")
    assert len(found) == len(calls), done.stdout + done.stderr
    return found


def test_the_case_after_one_that_is_out_of_memory_or_asserts_is_as_before(project: Project) -> None:
    before, exhausted, asserted, after = records(project, "", "do='exhaust'", "do='assert'", "again=1")
    assert before["verdict"] == "identical", before["why"]
    assert (exhausted["verdict"], asserted["verdict"]) == ("broken", "broken")
    assert "out of GPU memory, peak 0." in exhausted["why"]
    assert "GPU fault: CUDA error: device-side assert triggered" in asserted["why"]
    assert after["verdict"] == "identical", after["why"]
    [old, _] = before["sides"]
    assert old["settings"]["use_deterministic_algorithms"] is True
    assert old["gpu_memory"][0]["peak_allocated"] >= 4 << 20


@two_gpus
def test_a_rank_that_waits_for_one_that_left_is_cut_with_its_stack(project: Project) -> None:
    together, left = records(project, "layout='dp2'", "layout='dp2', do='leave'")
    assert together["verdict"] == "identical", together["why"]
    assert left["verdict"] == "broken"
    assert "rank 1 left by SystemExit: 3" in left["why"]
    assert "all_reduce" in str(left["sides"])
