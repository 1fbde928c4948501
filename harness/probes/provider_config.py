"""What verl's engine makes of a Hugging Face config: the resolved Megatron config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes.registry import probe

PRELOAD = _engine.PRELOAD

_BRANCHES: dict[str, dict[str, Any]] = {
    "bridge": {"vanilla_mbridge": False},
    "vanilla": {"vanilla_mbridge": True},
    "default": {"vanilla_mbridge": None},
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "user": {
        "override_transformer_config": {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
            "attention_backend": "unfused",
            "moe_router_dtype": "fp32",
        }
    },
    "unknown_key": {"override_transformer_config": {"no_such_field": 1}},
    "routing_replay": {"override_transformer_config": {"enable_routing_replay": True}},
    "allgather": {"override_transformer_config": {"moe_token_dispatcher_type": "allgather"}},
}
"""Named sets of what a user may write, as fields of `McoreEngineConfig`."""


@probe(
    enters=("verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",),
    returns=("config", "other_attributes"),
)
def provider_config(
    run: Run,
    *,
    hf_config: str = "qwen3",
    branch: str = "bridge",
    dtype: str = "bfloat16",
    overrides: str | Mapping[str, Any] | None = None,
    construction: str = "constructor",
) -> Mapping[str, Any]:
    """The full config after the real `MegatronEngine._build_tf_config`, before anything is built from it.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        branch: `bridge` (Megatron-Bridge's provider), `vanilla` (mbridge's transformer config), or `default`, whichever
            of the two the pin takes when the user does not say.
        dtype: `bfloat16`, `float16` or `float32`; the last one is refused by verl's config class and set by hand.
        overrides: a dict for `override_transformer_config`, or the name of one: `user` (recomputation, attention
            backend, router dtype), `unknown_key`, `routing_replay`, `allgather` (token dispatcher).
        construction: `constructor` stops after the engine's real constructor and `_build_tf_config`; `initialize` runs
            the real `initialize` to its end (model, DDP, optimizer, scheduler, checkpoint manager).

    Returns:
        `config`: the config object, every field of it (about 300). `other_attributes`: what was set on it beside its
        fields, such as an override that no field takes. `changed_by_build` (after `initialize` only): fields that
        building changed, with both values; the lane's masks are not among them.
    """
    chosen = choice("branch", branch, _BRANCHES) | _overriding(overrides)
    choice("dtype", dtype, ("bfloat16", "float16", "float32"))
    choice("construction", construction, ("constructor", "initialize"))
    engine = _engine.construct_engine(run, hf_config, dtype=dtype, engine=chosen)
    if construction == "initialize":
        config = _engine.initialize(run, engine)
        return _engine.observed_config(config) | {
            "changed_by_build": _changes(run, config, _engine.resolved_config(engine))
        }
    engine._build_tf_config()
    config = _engine.resolved_config(engine)
    _engine.record_provenance(run, engine)
    return _engine.observed_config(config)


def _overriding(overrides: str | Mapping[str, Any] | None) -> dict[str, Any]:
    if overrides is None:
        return {}
    if isinstance(overrides, str):
        return choice("overrides", overrides, OVERRIDES)
    return {"override_transformer_config": dict(overrides)}


def _changes(run: Run, before: Any, after: Any) -> dict[str, Any]:
    masked = {mask.field.rpartition(".")[2] for mask in run.masks}
    names = [field.name for field in fields(before) if field.name not in masked and not field.name.startswith("_")]
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    return {name: {"before": old, "after": new} for name, (old, new) in pairs.items() if old != new}
