"""Probes that need torch: what the codec must hold, and collectives that one rank leaves."""

import os
from collections.abc import Mapping
from typing import Any

from harness.observe import Run
from harness.probes import probe

PRELOAD = ("torch", "torch.distributed")


@probe(returns=("answer",))
def torch_values(run: Run) -> Mapping[str, Any]:
    import torch

    return {
        "answer": torch.bfloat16,
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "weights": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
        "parameter": torch.nn.Parameter(torch.tensor(float("nan"))),
        "empty": torch.zeros(0, 3),
        "function": torch.nn.functional.silu,
    }


@probe(returns=("answer",))
def returns_a_module(run: Run) -> Mapping[str, Any]:
    import torch

    return {"answer": torch.nn.Linear(1, 1)}


@probe(returns=("total",))
def waits_in_a_collective(run: Run, *, leave: bool = False) -> Mapping[str, Any]:
    import torch

    run.lane.start_distributed(run)
    if leave and run.rank == 1:
        os._exit(5)
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    return {"total": total}
