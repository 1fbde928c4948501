"""Dynamic context parallelism: what verl's flag does to configs and process groups, on either branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes.registry import probe

PRELOAD = _engine.PRELOAD

_ENGINE = "verl.workers.engine.megatron.transformer_impl:MegatronEngine"
_STATE = "megatron.core.parallel_state"
BRANCHES = {"bridge": False, "vanilla": True}
_TOKENS_OF_A_RANK = 64

_FIELDS = (
    "calculate_per_token_loss",
    "context_parallel_size",
    "cp_comm_type",
    "cp_partition_mode",
    "dynamic_context_parallel",
    "hierarchical_context_parallel_sizes",
    "hybrid_context_parallel",
    "max_seqlen_per_dp_cp_rank",
    "min_dynamic_context_parallel_size",
    "sequence_packing_scheduler",
    "variable_seq_lengths",
)
"""Fields of any pin that have to do with context parallelism."""


@probe(enters=(f"{_ENGINE}._build_tf_config",), returns=("fields.context_parallel_size", "groups.data_parallel"))
def dynamic_context_parallel(
    run: Run, *, enabled: bool = True, branch: str = "bridge", colocated: bool = False
) -> Mapping[str, Any]:
    """One engine, through its constructor, which creates the process groups, and `_build_tf_config`.

    Args:
        enabled: verl's `dynamic_context_parallel`, with 64 tokens for `max_seqlen_per_dp_cp_rank`; otherwise neither
            is given, which every pin understands.
        branch: `bridge` or `vanilla`.
        colocated: another engine without the flag is constructed first, as a reference model beside an actor.

    Returns:
        `fields`: the fields of the resolved config that have to do with context parallelism, as far as the pin has
        them. `groups`: the ranks of this rank's process groups.
    """
    if colocated:
        construct(run, branch, enabled=False)
    engine = construct(run, branch, enabled=enabled)
    engine._build_tf_config()
    return {"fields": fields_of(engine), "groups": _groups(run)}


def construct(run: Run, branch: str, *, enabled: bool) -> Any:
    """An engine of `branch`, with or without verl's flag."""
    chosen: dict[str, Any] = {"vanilla_mbridge": choice("branch", branch, BRANCHES)}
    if enabled:
        chosen |= {"dynamic_context_parallel": True, "max_seqlen_per_dp_cp_rank": _TOKENS_OF_A_RANK}
    return _engine.construct_engine(run, "qwen3", engine=chosen)


def fields_of(engine: Any) -> dict[str, Any]:
    """The fields of an engine's config that have to do with context parallelism, as far as the pin has them."""
    config = _engine.resolved_config(engine)
    return {name: getattr(config, name) for name in _FIELDS if hasattr(config, name)}


def _groups(run: Run) -> dict[str, Any]:
    """Ranks by group: data parallel, context parallel, both, and by size those that dynamic context parallelism has."""
    state = run.upstream(_STATE)
    ranks = run.upstream("torch.distributed:get_process_group_ranks")
    groups = {
        "data_parallel": ranks(state.get_data_parallel_group()),
        "context_parallel": ranks(state.get_context_parallel_group()),
        "data_and_context_parallel": ranks(state.get_data_parallel_group(with_context_parallel=True)),
    }
    # Its getter takes one size and knows no way to ask for all.
    dynamic = getattr(state, "_DYNAMIC_DP_CP_GROUPS", {})
    return groups | {"dynamic": {size: ranks(group) for size, group in dynamic.items()}}
