"""Two engines from the same config objects: is the second like the first, and are the objects as they were?"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes.registry import consistency_probe

PRELOAD = _engine.PRELOAD


@consistency_probe(
    enters=("verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",),
    returns=("expected.resolved.num_layers", "expected.given.hf_config"),
)
def engines_in_turn(
    run: Run, *, hf_config: str = "qwen3", branch: str = "bridge", overrides: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Verl's engine, resolved twice from the same model and engine config, as actor and reference policy are.

    Returns:
        `resolved`: every field of the second engine's config, expected to be as the first one's. `given`: the Hugging
        Face config and the fields of verl's engine config, expected to be after both as they were before.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        branch: `bridge` or `vanilla`.
        overrides: what the user writes into `override_transformer_config`.
    """
    vanilla = choice("branch", branch, {"bridge": False, "vanilla": True})
    chosen = {"vanilla_mbridge": vanilla, "override_transformer_config": dict(overrides or {})}
    first = _engine.construct_engine(run, hf_config, engine=chosen)
    before = _given(first)
    first._build_tf_config()
    expected = copy.deepcopy(_fields(_engine.resolved_config(first)))
    second = type(first)(
        model_config=first.model_config,
        engine_config=first.engine_config,
        optimizer_config=first.optimizer_config,
        checkpoint_config=first.checkpoint_config,
    )
    second._build_tf_config()
    return {
        "expected": {"resolved": expected, "given": before},
        "actual": {"resolved": _fields(_engine.resolved_config(second)), "given": _given(second)},
    }


def _given(engine: Any) -> dict[str, Any]:
    """A copy of what an engine was given to build from."""
    return copy.deepcopy(
        {"hf_config": engine.model_config.hf_config.to_dict(), "engine_config": _fields(engine.engine_config)}
    )


def _fields(config: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(config) if not field.name.startswith("_")]
    return {name: getattr(config, name) for name in names}
