"""Layouts: the parallelism of a run, as data.

A layout is the set of Megatron parallel sizes that differ from one; the world size is the smallest that
holds it. A new layout is one entry in `LAYOUTS`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


class UnknownLayoutError(ValueError):
    """A layout name that `LAYOUTS` does not hold."""


@dataclass(frozen=True)
class Layout:
    """Parallel sizes of one run; every size is a number of ranks and at least one.

    Without a size of its own, expert tensor parallelism is left to Megatron-Core, which takes that of the rest.
    `fully_sharded`: data parallel ranks share parameters, gradients and optimizer state (Megatron-FSDP).
    """

    name: str
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    data_parallel_size: int = 1
    sequence_parallel: bool = False
    fully_sharded: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks: for each pipeline stage the fewest that both the dense layers and the experts divide."""
        dense = self.tensor_model_parallel_size * self.context_parallel_size * self.data_parallel_size
        expert_tensor = self.expert_tensor_parallel_size or self.tensor_model_parallel_size
        experts = expert_tensor * self.expert_model_parallel_size
        return self.pipeline_model_parallel_size * math.lcm(dense, experts)

    @property
    def model_parallel_sizes(self) -> dict[str, int | None]:
        """Keyword arguments of Megatron-Core's `initialize_model_parallel` that this layout sets."""
        return {
            "tensor_model_parallel_size": self.tensor_model_parallel_size,
            "pipeline_model_parallel_size": self.pipeline_model_parallel_size,
            "virtual_pipeline_model_parallel_size": self.virtual_pipeline_model_parallel_size,
            "context_parallel_size": self.context_parallel_size,
            "expert_model_parallel_size": self.expert_model_parallel_size,
            "expert_tensor_parallel_size": self.expert_tensor_parallel_size,
        }


def _layout(name: str, **sizes: Any) -> Layout:
    short = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "vpp": "virtual_pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "etp": "expert_tensor_parallel_size",
        "dp": "data_parallel_size",
        "sp": "sequence_parallel",
        "fsdp": "fully_sharded",
    }
    return Layout(name, **{short[key]: size for key, size in sizes.items()})


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("single"),
        _layout("dp2", dp=2),
        _layout("tp2", tp=2),
        _layout("tp2_sp", tp=2, sp=True),
        _layout("pp2", pp=2),
        _layout("vpp2", pp=2, vpp=2),
        _layout("ep2", ep=2),
        _layout("cp2", cp=2),
        _layout("fsdp2", dp=2, fsdp=True),
        _layout("tp2_etp1", tp=2, ep=2, etp=1, sp=True),
        # Four ranks. Experts beside tensor parallelism need sequence parallelism to train.
        _layout("tp2_pp2", tp=2, pp=2),
        _layout("tp2_dp2", tp=2, dp=2),
        _layout("tp2_ep2", tp=2, ep=2, sp=True),
        _layout("tp2_sp_cp2", tp=2, cp=2, sp=True),
        _layout("pp2_ep2", pp=2, ep=2),
        _layout("pp2_vpp2_dp2", pp=2, vpp=2, dp=2),
        _layout("etp2", ep=2, etp=2),
        _layout("ep4", ep=4),
        _layout("cp4", cp=4),
        _layout("fsdp4", dp=4, fsdp=True),
        # Eight ranks.
        _layout("tp4_pp2_ep4", tp=4, pp=2, ep=4, etp=1, sp=True),
        _layout("pp4_dp2", pp=4, dp=2),
        _layout("fsdp8", dp=8, fsdp=True),
        _layout("tp2_pp2_vpp2_dp2", tp=2, pp=2, vpp=2, dp=2),
        _layout("tp2_cp2_ep2_dp2", tp=2, cp=2, ep=2, dp=2, sp=True),
    )
}


def layout_named(name: str) -> Layout:
    """The layout called `name`.

    Raises:
        UnknownLayoutError: with the names that exist.
    """
    try:
        return LAYOUTS[name]
    except KeyError:
        raise UnknownLayoutError(f"unknown layout {name!r}; known: {', '.join(LAYOUTS)}") from None
