"""Two engines in one process: the first must leave no mark on what the second is built from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes.registry import consistency_probe

PRELOAD = _engine.PRELOAD

_MODEL = "verl.workers.config:HFModelConfig"


@consistency_probe(
    enters=("verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",),
    returns=("expected.config", "actual.config"),
)
def second_engine(
    run: Run, *, hf_config: str = "glm4_moe", shared: str = "model", first: str = "policy", branch: str = "bridge"
) -> Mapping[str, Any]:
    """An engine resolves its config; then a second one does, from config objects that the first one had before.

    All are verl's own engines, through constructor and `_build_tf_config`.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        shared: what the second has from the first: `model` (`HFModelConfig`, as policy and reference of one worker may
            have it), `engine` (`McoreEngineConfig`), or `both`.
        first: `policy`, as the second is, or `critic`.
        branch: `bridge` or `vanilla`.

    Returns:
        `config`: expected is what an engine resolves from config objects of its own, actual what the second one does.
        `mtp_num_layers`: layers of multi-token prediction, which nobody asked for; what both have.
    """
    kept = choice("shared", shared, {"model": ("model",), "engine": ("engine",), "both": ("model", "engine")})
    kind = choice("first", first, {"policy": {}, "critic": {"model_type": "value_model"}})
    chosen = {"vanilla_mbridge": choice("branch", branch, {"bridge": False, "vanilla": True})}
    earlier = _engine.construct_engine(run, hf_config, model=kind, engine=chosen)
    earlier._build_tf_config()
    if kind:
        earlier.model_config.model_type = run.by_hand("HFModelConfig.model_type", "language_model")
    second, fresh = (_another(run, earlier, same, chosen) for same in (kept, ()))
    second._build_tf_config()
    fresh._build_tf_config()
    _engine.record_provenance(run, second)
    resolved = _engine.resolved_config(second)
    return {
        "expected": {"config": _engine.resolved_config(fresh), "mtp_num_layers": 0},
        "actual": {"config": resolved, "mtp_num_layers": resolved.mtp_num_layers or 0},
    }


def _another(run: Run, earlier: Any, kept: tuple[str, ...], chosen: Mapping[str, Any]) -> Any:
    """An engine of the same class, with config objects of the earlier one where they are kept, else with new ones."""
    path = earlier.model_config.path
    return type(earlier)(
        model_config=earlier.model_config if "model" in kept else run.call(_MODEL, path=path, load_tokenizer=False),
        engine_config=earlier.engine_config if "engine" in kept else _engine.engine_config(run, **chosen),
        optimizer_config=earlier.optimizer_config,
        checkpoint_config=earlier.checkpoint_config,
    )
