"""What a user's overrides do to the resolved config: what arrives, and what else they change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes.registry import probe

PRELOAD = _engine.PRELOAD

VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "verl_values": {
        "variable_seq_lengths": False,
        "attention_backend": "unfused",
        "moe_token_dispatcher_type": "allgather",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.25,
    },
    "other_dtype": {"fp16": True, "bf16": False},
    "two_dtypes": {"fp16": True},
    "cleared": {"kv_channels": None, "ffn_hidden_size": None, "num_query_groups": None},
    "sizes": {"hidden_size": 128, "num_attention_heads": 8},
    "parallel_sizes": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pipeline": {"pipeline_model_parallel_size": 2, "pipeline_dtype": "bfloat16"},
    "no_fusions": {
        "moe_permute_fusion": False,
        "bias_activation_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
    },
    "experts": {"moe_router_dtype": "fp64", "moe_grouped_gemm": False, "moe_shared_expert_overlap": True},
    "moe_ffn_cleared": {"moe_ffn_hidden_size": None},
    "recompute": {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]},
    "mtp_layers": {"mtp_num_layers": 2, "mtp_loss_scaling_factor": 0.5},
    "refused_value": {"moe_token_dispatcher_type": "no_such_dispatcher"},
    "method": {"finalize": None},
}
"""What a user writes into `override_transformer_config`."""


@probe(
    enters=("verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",),
    returns=("arrived", "changed"),
)
def provider_overrides(
    run: Run,
    *,
    variant: str = "none",
    hf_config: str = "qwen3",
    branch: str = "bridge",
    dtype: str = "bfloat16",
    mtp_layers: int = 0,
    mtp: bool = False,
    router_replay: str = "disabled",
) -> Mapping[str, Any]:
    """Two engines of one stack, one with the user's settings and one without, each through `_build_tf_config`.

    Args:
        variant: what the user writes into `override_transformer_config`; one of `VARIANTS`.
        hf_config: a shipped model name, the path of a `config.json`, or a transformers model class.
        branch: `bridge` or `vanilla`.
        dtype: as in `provider_config`.
        mtp_layers: multi-token prediction layers of the model, `num_nextn_predict_layers` of its config, if any.
        mtp: let the model train them (verl's `mtp.enable`).
        router_replay: verl's `router_replay.mode`: `disabled`, `R2` or `R3`.

    Returns:
        `arrived`: what each key of `variant` is in the resolved config. `changed`: fields whose value is not what it is
        without the user's settings, those that `finalize` derives included, as `{without, with}`. `other_attributes`:
        names that were set on the config beside its fields.
    """
    overrides = choice("variant", variant, VARIANTS)
    layers = {"num_nextn_predict_layers": mtp_layers} if mtp_layers else {}

    def resolve(model: dict[str, Any], engine: dict[str, Any]) -> Any:
        engine |= {"vanilla_mbridge": choice("branch", branch, {"bridge": False, "vanilla": True})}
        built = _engine.construct_engine(run, hf_config, dtype=dtype, model=model, engine=engine, fields=layers)
        built._build_tf_config()
        return _engine.resolved_config(built)

    without = resolve({}, {})
    given: dict[str, Any] = {"override_transformer_config": dict(overrides)}
    if router_replay != "disabled":
        given["router_replay"] = run.call("verl.workers.config:EngineRouterReplayConfig", mode=router_replay)
    resolved = resolve({"mtp": run.call("verl.workers.config:MtpConfig", enable=True)} if mtp else {}, given)
    names = {field.name for field in dataclasses.fields(resolved)}
    pairs = {name: (getattr(without, name), getattr(resolved, name)) for name in sorted(names)}
    return {
        "arrived": {name: getattr(resolved, name) for name in overrides},
        "changed": {name: {"without": old, "with": new} for name, (old, new) in pairs.items() if old != new},
        "other_attributes": {name: value for name, value in vars(resolved).items() if name not in names},
    }
