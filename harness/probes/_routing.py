"""What the routers of a mixture of experts decide, and what keeps their experts balanced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from harness.observe.run import Run
from harness.probes._weights import named_modules

_ROUTER = "megatron.core.transformer.moe.router:TopKRouter"
_LOSSES = "megatron.core.transformer.moe.moe_utils:get_moe_layer_wise_logging_tracker"


@contextmanager
def watched_routing(run: Run, chunks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Within the context, keep what each router decided last, by the global name of its module.

    Yields:
        bool tensors, this rank's part of the sequence x sequences x experts: who gets which token. Filled as the model
        runs.
    """
    decided: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def hook(_router: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
            decided[name] = output[1].detach().reshape(*inputs[0].shape[:2], -1).clone()

        return hook

    handles = [router.register_forward_hook(keep(name)) for name, router in _routers(run, chunks)]
    try:
        yield decided
    finally:
        for handle in handles:
            handle.remove()


def tokens_per_expert(decided: Mapping[str, Any]) -> dict[str, list[int]]:
    """How many of this rank's tokens each expert got, by router."""
    return {name: [int(count) for count in chosen.sum((0, 1))] for name, chosen in decided.items()}


def balancing(run: Run, chunks: Sequence[Any]) -> dict[str, Any]:
    """What Megatron-Core keeps to balance experts.

    Returns:
        Auxiliary losses by their name (float32, one element a layer, summed over the steps so far, not reduced over
        ranks), and the buffers of routers, such as `expert_bias` (one element an expert), by global name.
    """
    losses = {name: kept["values"].clone() for name, kept in run.upstream(_LOSSES)().items()}
    buffers = {
        f"{name}.{buffer}": value.clone()
        for name, router in _routers(run, chunks)
        for buffer, value in router.named_buffers()
    }
    return losses | buffers


def _routers(run: Run, chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    kind = run.upstream(_ROUTER)
    return ((name, module) for name, module in named_modules(chunks) if isinstance(module, kind))
