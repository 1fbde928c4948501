"""A resolved config against the process groups that were really created, and against the model built on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _wrap
from harness.probes._models import choice
from harness.probes._weights import placed_parameters
from harness.probes.registry import consistency_probe

PRELOAD = _engine.PRELOAD

_SIZES = {
    "tensor_model_parallel_size": "get_tensor_model_parallel_world_size",
    "pipeline_model_parallel_size": "get_pipeline_model_parallel_world_size",
    "virtual_pipeline_model_parallel_size": "get_virtual_pipeline_model_parallel_world_size",
    "context_parallel_size": "get_context_parallel_world_size",
    "expert_model_parallel_size": "get_expert_model_parallel_world_size",
    "expert_tensor_parallel_size": "get_expert_tensor_parallel_world_size",
}
"""Field of a config → function of `parallel_state` that says what was created."""

_GROUPS = {
    "tp": "get_tensor_model_parallel_group",
    "pp": "get_pipeline_model_parallel_group",
    "cp": "get_context_parallel_group",
    "ep": "get_expert_model_parallel_group",
    "expt_tp": "get_expert_tensor_parallel_group",
}
"""Name of a group in Megatron-Core's collection → function of `parallel_state` that returns it."""

_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")


@consistency_probe(
    enters=(
        "megatron.core.parallel_state:initialize_model_parallel",
        "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",
        "verl.utils.megatron_utils:make_megatron_module",
    ),
    returns=("expected.resolved_config.expert_tensor_parallel_size", "expected.shapes.*", "expected.groups.*"),
)
def process_groups(run: Run, *, hf_config: str = "qwen3_moe", layers: int = 2) -> Mapping[str, Any]:
    """Every parallel size of the config, before and after the build, against the groups and the model.

    The layout's sizes are what the user asked verl's engine for; a size that he left out may be anything, as long as
    config, groups and model agree on it.

    Returns:
        Under `expected` what the created groups say, under `actual` what is said elsewhere:
        `asked`: sizes of verl's engine config that are not None; `resolved_config`: sizes of the config that
        `_build_tf_config` made; `built_config`: the same of the built model's config; `layers` and `experts`: how many
        there are over all pipeline stages and expert parallel ranks; `shapes`: of whole parameters, put together from
        this rank's shard and the size of its group, against the Hugging Face config; `groups`: global ranks of the
        groups that modules of the model hold.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        layers: number of layers, at least one for each chunk of the model.
    """
    engine = _engine.construct_engine(run, hf_config, fields={"num_hidden_layers": layers})
    engine._build_tf_config()
    resolved = _sizes(_engine.resolved_config(engine))
    modules = _engine.build_module(run, engine)
    hf = engine.model_config.hf_config
    state = run.upstream("megatron.core.parallel_state")
    shapes, held = _whole_shapes(modules), dict(_held_groups(modules))
    groups = _config_sizes(run, engine, resolved)
    created = groups["expected"]["resolved_config"]
    return {
        "expected": groups["expected"]
        | {
            "built_config": [created for _ in modules],
            "layers": hf.num_hidden_layers,
            "experts": getattr(hf, "num_experts", 0),
            "shapes": {name: _shape_by_config(hf, name) for name in shapes},
            "groups": {name: _ranks(getattr(state, _GROUPS[kind])()) for name, (kind, _) in held.items()},
        },
        "actual": groups["actual"]
        | {
            "built_config": [_sizes(_wrap.unwrapped(module).config) for module in modules],
            "layers": _over_ranks(state.get_pipeline_model_parallel_group(), _layers(modules)),
            "experts": _over_ranks(state.get_expert_model_parallel_group(), _experts_of_a_layer(modules)),
            "shapes": shapes,
            "groups": {name: ranks for name, (_, ranks) in held.items()},
        },
    }


@consistency_probe(
    enters=(
        "megatron.core.parallel_state:initialize_model_parallel",
        "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",
    ),
    returns=("expected.resolved_config.expert_tensor_parallel_size",),
)
def process_group_sizes(run: Run, *, hf_config: str = "qwen3_moe", branch: str = "bridge") -> Mapping[str, Any]:
    """The parallel sizes of the config alone, for layouts and branches of which this host can build no model.

    Returns:
        `asked` and `resolved_config`, as `process_groups`.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        branch: `bridge` or `vanilla`.
    """
    vanilla = choice("branch", branch, {"bridge": False, "vanilla": True})
    engine = _engine.construct_engine(run, hf_config, engine={"vanilla_mbridge": vanilla})
    engine._build_tf_config()
    return _config_sizes(run, engine, _sizes(_engine.resolved_config(engine)))


def _config_sizes(run: Run, engine: Any, resolved: dict[str, int | None]) -> dict[str, dict[str, Any]]:
    state = run.upstream("megatron.core.parallel_state")
    created = {name: getattr(state, function)() for name, function in _SIZES.items()}
    asked = {name: size for name, size in _sizes(engine.engine_config).items() if size is not None}
    return {
        "expected": {"asked": {name: created[name] for name in asked}, "resolved_config": created},
        "actual": {"asked": asked, "resolved_config": resolved},
    }


def _sizes(config: Any) -> dict[str, int | None]:
    return {name: getattr(config, name) for name in _SIZES}


def _whole_shapes(modules: Sequence[Any]) -> dict[str, list[int]]:
    """Shape of each known kind of parameter: this rank's shard times the size of its group."""
    placed = {entry.name.rpartition("layers.")[2]: entry for entry in placed_parameters(modules)}
    kinds = {re.sub(r"(^|\.)\d+", "", name).lstrip("."): list(entry.global_shape) for name, entry in placed.items()}
    return {name: shape for name, shape in kinds.items() if name in _DIMENSIONS}


def _shape_by_config(hf: Any, name: str) -> list[int]:
    return [int(size) for size in _DIMENSIONS[name](hf)]


_DIMENSIONS: dict[str, Callable[[Any], tuple[int, int]]] = {
    "embedding.word_embeddings.weight": lambda hf: (hf.vocab_size, hf.hidden_size),
    "output_layer.weight": lambda hf: (hf.vocab_size, hf.hidden_size),
    "self_attention.linear_qkv.weight": lambda hf: (
        (hf.num_attention_heads + 2 * hf.num_key_value_heads) * hf.head_dim,
        hf.hidden_size,
    ),
    "self_attention.linear_proj.weight": lambda hf: (hf.hidden_size, hf.num_attention_heads * hf.head_dim),
    "mlp.linear_fc1.weight": lambda hf: (2 * hf.intermediate_size, hf.hidden_size),
    "mlp.linear_fc2.weight": lambda hf: (hf.hidden_size, hf.intermediate_size),
    "mlp.experts.local_experts.linear_fc1.weight": lambda hf: (2 * hf.moe_intermediate_size, hf.hidden_size),
    "mlp.experts.local_experts.linear_fc2.weight": lambda hf: (hf.hidden_size, hf.moe_intermediate_size),
}
"""Parameter of a gated model, without its numbers → its whole shape, by the Hugging Face config."""


def _held_groups(modules: Sequence[Any]) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    """What each module of the model calls one of the known groups: its kind, and the ranks of the group it holds."""
    import torch

    for index, module in enumerate(modules):
        for name, part in _wrap.unwrapped(module).named_modules():
            for attribute, value in _groups_of(part):
                kind = attribute.removesuffix("_group")
                if kind == "tp" and "." not in attribute and _EXPERTS.search(name):
                    kind = "expt_tp"
                if kind in _GROUPS and isinstance(value, torch.distributed.ProcessGroup):
                    yield f"{index}.{name or '(model)'}.{attribute}", (kind, _ranks(value))


def _groups_of(part: Any) -> Iterator[tuple[str, Any]]:
    for attribute, value in vars(part).items():
        yield attribute, value
        if attribute == "pg_collection" and value is not None:
            yield from vars(value).items()


def _ranks(group: Any) -> list[int]:
    import torch

    return list(torch.distributed.get_process_group_ranks(group))


def _layers(modules: Sequence[Any]) -> int:
    return sum(len(_wrap.unwrapped(module).decoder.layers) for module in modules)


def _experts_of_a_layer(modules: Sequence[Any]) -> int:
    """Experts that this rank holds of one layer; 0 in a dense model."""
    names = (name for name, _ in _wrap.unwrapped(modules[0]).named_modules())
    found = [match for name in names if (match := re.fullmatch(r"decoder\.layers\.0\..*local_experts\.\d+", name))]
    return len(found)


def _over_ranks(group: Any, mine: int) -> int:
    """The sum of what each rank of a group has."""
    import torch

    counts: list[Any] = [None] * group.size()
    torch.distributed.all_gather_object(counts, mine, group=group)
    return sum(counts)
