"""The two branches of verl's engine, Megatron-Bridge's provider and mbridge's config, against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, dynamic_context_parallel
from harness.probes._weights import placed_parameters
from harness.probes.registry import consistency_probe

PRELOAD = _engine.PRELOAD


@consistency_probe(
    enters=("verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",),
    returns=("expected.context_parallel_size", "actual.context_parallel_size"),
)
def context_parallel_fields(run: Run, *, enabled: bool = True) -> Mapping[str, Any]:
    """Every field that has to do with context parallelism: the Bridge branch's, expected of the vanilla branch.

    Args:
        enabled: verl's `dynamic_context_parallel`.
    """
    found = {}
    for branch in dynamic_context_parallel.BRANCHES:
        engine = dynamic_context_parallel.construct(run, branch, enabled=enabled)
        engine._build_tf_config()
        found[branch] = dynamic_context_parallel.fields_of(engine)
    return {"expected": found["bridge"], "actual": found["vanilla"]}


@consistency_probe(
    enters=("verl.utils.megatron_utils:make_megatron_module", "mbridge.core.bridge:Bridge.get_model"),
    returns=("expected.parameters.*", "actual.parameters.*", "actual.wrappers"),
)
def vanilla_model(run: Run, *, hf_config: str = "qwen3") -> Mapping[str, Any]:
    """The model that the Bridge branch builds and wraps, expected of the vanilla branch.

    Returns:
        `parameters`: by global name, shape, dtype and whether it is trained. `wrappers`: classes around the model, from
        the outside.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
    """
    found = {}
    for branch, vanilla in dynamic_context_parallel.BRANCHES.items():
        engine = _engine.construct_engine(run, hf_config, engine={"vanilla_mbridge": vanilla})
        engine._build_tf_config()
        chunks = _engine.build_module(run, engine)
        found[branch] = {"parameters": _parameters(chunks), "wrappers": [list(_wrappers(chunk)) for chunk in chunks]}
    return {"expected": found["bridge"], "actual": found["vanilla"]}


def _parameters(chunks: list[Any]) -> dict[str, Any]:
    found = {placed.name: placed.parameter for placed in placed_parameters(chunks)}
    return {name: (tuple(value.shape), value.dtype, value.requires_grad) for name, value in found.items()}


def _wrappers(chunk: Any) -> Any:
    while hasattr(chunk, "module"):
        yield type(chunk)
        chunk = chunk.module
