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


@probe(returns=("equal",), tensors=("gradient",))
def traced_layers(run: Run) -> Mapping[str, Any]:
    """Two linear layers, one used twice, and an activation that changes its input in place; traced and not."""
    import torch

    from harness.probes._trace import traced

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.relu = torch.nn.ReLU(inplace=True)

        def forward(self, value: Any) -> Any:
            return self.second(self.second(self.relu(self.first(value)))) + value

    torch.manual_seed(run.seed)
    model, value = Model(), torch.randn(2, 4, requires_grad=True)
    model(value).sum().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with traced(run, [model]):
        model(value).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    return {"equal": all(map(torch.equal, plain, found)), "gradient": found[0]}
