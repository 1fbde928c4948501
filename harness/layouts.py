"""Layouts: the parallelism of a run, as data.

A layout is the set of Megatron parallel sizes that differ from one; the world size is the smallest that
holds it. A new layout is one entry in `LAYOUTS`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


class UnknownLayoutError(ValueError):
    """A layout name that `LAYOUTS` does not hold."""


@dataclass(frozen=True)
class Layout:
    """Parallel sizes of one run; every size is a number of ranks and at least one.

    Without a size of its own, expert tensor parallelism is left to Megatron-Core, which takes that of the rest.
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


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("single"),
        Layout("dp2", data_parallel_size=2),
        Layout("tp2", tensor_model_parallel_size=2),
        Layout("tp2_sp", tensor_model_parallel_size=2, sequence_parallel=True),
        Layout("pp2", pipeline_model_parallel_size=2),
        Layout("vpp2", pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2),
        Layout("ep2", expert_model_parallel_size=2),
        Layout("cp2", context_parallel_size=2),
        Layout("tp2_pp2", tensor_model_parallel_size=2, pipeline_model_parallel_size=2),
        Layout("tp2_cp2", tensor_model_parallel_size=2, context_parallel_size=2, sequence_parallel=True),
        Layout("tp2_ep2", tensor_model_parallel_size=2, expert_model_parallel_size=2, sequence_parallel=True),
        Layout(
            "tp2_etp1",
            tensor_model_parallel_size=2,
            expert_model_parallel_size=2,
            expert_tensor_parallel_size=1,
            sequence_parallel=True,
        ),
        Layout("etp2", expert_model_parallel_size=2, expert_tensor_parallel_size=2),
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
