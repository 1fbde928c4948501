"""What verl and the bridge choose for experts and attention where the user says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes.registry import probe

PRELOAD = _engine.PRELOAD

BRANCHES = {"bridge": False, "vanilla": True, "default": None}
"""`vanilla_mbridge` by name; `default` leaves it to the pin."""

FIELDS = (
    "attention_backend",
    "moe_aux_loss_coeff",
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_router_dtype",
    "moe_router_load_balancing_type",
    "moe_token_dispatcher_type",
    "num_moe_experts",
    "variable_seq_lengths",
)


@probe(
    enters=("verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",),
    returns=tuple(f"fields.{name}" for name in FIELDS),
)
def moe_defaults(run: Run, *, hf_config: str = "qwen3_moe", branch: str = "bridge") -> Mapping[str, Any]:
    """The fields of the resolved config that decide how experts and attention run.

    Args:
        hf_config: a shipped model name, the path of a `config.json`, or a transformers model class.
        branch: `bridge`, `vanilla`, or `default`, whichever of the two the pin takes when the user does not say.

    Returns:
        `fields`: those of `FIELDS`, by name.
    """
    chosen = {"vanilla_mbridge": choice("branch", branch, BRANCHES)}
    engine = _engine.construct_engine(run, hf_config, engine=chosen)
    engine._build_tf_config()
    _engine.record_provenance(run, engine)
    config = _engine.resolved_config(engine)
    return {"fields": {name: getattr(config, name) for name in FIELDS}}
