"""Training steps of tiny models, as verl's Megatron engine builds and wraps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _peft, _routing, _training
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = _peft.PRELOAD

_STEP = (
    "verl.utils.megatron_utils:make_megatron_module",
    "megatron.core.distributed.distributed_data_parallel:DistributedDataParallel.__init__",
    "megatron.core.distributed.finalize_model_grads:finalize_model_grads",
)
_CHANGED = ("gradients/*", "updated/*")

_MTP_LAYER = "megatron.core.transformer.multi_token_prediction:MultiTokenPredictionLayer"

_COEFFICIENT = {"moe_aux_loss_coeff": 0.01}
_BALANCING: dict[str, dict[str, Any]] = {
    "aux_loss": {"moe_router_load_balancing_type": "aux_loss", **_COEFFICIENT},
    "seq_aux_loss": {"moe_router_load_balancing_type": "seq_aux_loss", **_COEFFICIENT},
    "global_aux_loss": {"moe_router_load_balancing_type": "global_aux_loss", **_COEFFICIENT},
    "z_loss": {"moe_z_loss_coeff": 0.01},
    "mixed": {
        "moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"],
        "moe_aux_loss_coeff": [0.01, 0.02],
        "moe_z_loss_coeff": 0.01,
    },
    "expert_bias": {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.01,
    },
}
"""What a user would set in `override_transformer_config`."""

_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
}


@probe(enters=_STEP, returns=("grad_norm",), tensors=("parameters/*", *_CHANGED))
def training_step(
    run: Run,
    *,
    hf_config: str = "qwen3",
    dtype: str = "float32",
    distributed_optimizer: bool = True,
    seeded_init: bool = False,
    spec: str = "local",
    attention: str = "auto",
    steps: int = 1,
    recompute: str = "none",
    branch: str = "bridge",
    override_ddp_config: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    """Forward, loss, backward, gradient reduction and optimizer steps of a tiny model.

    The engine is verl's own, through its constructor, `_build_tf_config`, `_build_megatron_module` (which calls
    `make_megatron_module`), `_build_optimizer` and `optimizer_step`; the schedule is Megatron-Core's. The data is four
    sequences of sixteen tokens, split over the data parallel ranks.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        dtype: parameter dtype: `float32`, `bfloat16`, or `float16`, whose optimizer needs Transformer Engine.
        distributed_optimizer: verl's `use_distributed_optimizer`: gradients are reduce-scattered, not all-reduced.
        seeded_init: start from the parameters the stack itself initialises under the run's seed. Otherwise parameters
            are a function of their global name and index (see `harness.probes._weights`), so that stacks and layouts
            compare.
        spec: whose layers: Megatron-Core's `local` ones, or those of `transformer_engine`, the choice of verl and
            Megatron-Bridge, which run on the cuda lane where it is installed.
        attention: what the user sets as `attention_backend` for the layers of `transformer_engine`: `auto`, `flash`,
            `fused` or `unfused`; verl's own choice, `flash`, needs a package of its own.
        steps: how many optimizer steps, on the same batch.
        recompute: `none`, `full` or `selective`: activations that are computed again in the backward pass.
        branch: `bridge` (Megatron-Bridge builds the model) or `vanilla` (mbridge does).
        override_ddp_config: verl's setting of that name.

    Returns:
        By global parameter name, this rank's shards: `parameters` before the first step, `gradients` of the last
        (reduced, of the buffer's dtype) and `updated` parameters after it. `grad_norm`: a number. On the last pipeline
        stage `loss` (float32, no dimension: the mean over this rank's tokens) and `logits` (float32, this rank's
        sequences x tokens x its part of the vocabulary). After several steps also `grad_norms`, `losses`,
        `learning_rate` (as the scheduler last said), and `optimizer`, its main parameters and moments.
    """
    choice("dtype", dtype, ("float32", "bfloat16", "float16"))
    choice("attention", attention, ("auto", "flash", "fused", "unfused"))
    overrides = choice("spec", spec, {"local": {}, "transformer_engine": {"attention_backend": attention}})
    chosen = {
        "use_distributed_optimizer": distributed_optimizer,
        "override_transformer_config": overrides | choice("recompute", recompute, _RECOMPUTE),
        "vanilla_mbridge": choice("branch", branch, {"bridge": False, "vanilla": True}),
        "override_ddp_config": dict(override_ddp_config or {}),
    }
    engine = _engine.construct_engine(run, hf_config, dtype=dtype, engine=chosen)
    engine._build_tf_config()
    _engine.build_module(run, engine, spec=spec)
    if not seeded_init:
        fill_parameters(engine.module, perturbed=run.perturbed)
    tree = _training.take_steps(run, engine, steps=steps)
    if steps == 1:
        _training.record_placement(run, engine.module, tree)
    return tree


@probe(
    enters=(*_STEP, "megatron.core.transformer.moe.router:TopKRouter.routing"),
    returns=("grad_norm", "tokens_per_expert"),
    tensors=(*_CHANGED, "routing/*", "balancing/*"),
)
def moe_step(
    run: Run, *, hf_config: str = "qwen3_moe", balancing: str = "aux_loss", dtype: str = "float32", steps: int = 1
) -> Mapping[str, Any]:
    """`training_step` of a mixture of experts that is balanced, which verl switches off unless the user says otherwise.

    Args:
        hf_config: as `training_step`.
        balancing: what the user sets in `override_transformer_config`: `aux_loss`, `seq_aux_loss`, `global_aux_loss`,
            `z_loss`, `mixed` (two of them as lists, and the z-loss), or `expert_bias` (no loss: a bias that is moved
            after each step).
        dtype: as `training_step`.
        steps: as `training_step`.

    Returns:
        What `training_step` returns but for `parameters`, and `routing` (which token goes to which expert: bool, this
        rank's part of the sequence x sequences x experts, by router, in the last step), `tokens_per_expert` (counts of
        it), and `balancing` (auxiliary losses, one element a layer; routers' buffers, one element an expert).
    """
    overrides = choice("balancing", balancing, _BALANCING)
    engine = _engine.construct_engine(run, hf_config, dtype=dtype, engine={"override_transformer_config": overrides})
    engine._build_tf_config()
    _engine.build_module(run, engine)
    fill_parameters(engine.module, perturbed=run.perturbed)
    with _routing.watched_routing(run, engine.module) as routing:
        tree = _training.take_steps(run, engine, steps=steps)
    del tree["parameters"]
    return tree | {
        "routing": routing,
        "tokens_per_expert": _routing.tokens_per_expert(routing),
        "balancing": _routing.balancing(run, engine.module),
    }


@probe(
    enters=(*_STEP, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("grad_norm", "frozen", "moved"),
    tensors=("gradients/*adapter*", "updated/*adapter*"),
)
def lora_step(
    run: Run,
    *,
    hf_config: str = "qwen3",
    peft: str = "lora",
    alpha: int | str = "absent",
    dtype: str = "float32",
    steps: int = 1,
) -> Mapping[str, Any]:
    """`training_step` of a model with adapters, put there by the stack's own PEFT hooks.

    Args:
        hf_config: as `training_step`.
        peft: `lora`, `dora` or `canonical_lora`.
        alpha: the section's `alpha`; `absent` leaves it to the stack's default.
        dtype: as `training_step`.
        steps: as `training_step`.

    Returns:
        What `training_step` returns but for `parameters`; `gradients` and `updated` hold what has a gradient. `frozen`:
        how many other parameters there are; `moved`: those of them that are not bit for bit what they were.
    """
    choice("peft", peft, ("lora", "dora", "canonical_lora"))
    engine = _engine.construct_engine(
        run, hf_config, dtype=dtype, model={"lora": _peft.lora_section(peft, f"alpha={alpha}")}
    )
    engine._build_tf_config()
    _engine.build_module(run, engine)
    fill_parameters(engine.module, perturbed=run.perturbed)
    tree = _training.take_steps(run, engine, steps=steps)
    before, after = tree.pop("parameters"), tree["updated"]
    frozen = before.keys() - tree["gradients"].keys()
    return tree | {
        "updated": {name: after[name] for name in tree["gradients"]},
        "frozen": len(frozen),
        "moved": {name for name in frozen if not (before[name] == after[name]).all()},
    }


@probe(
    enters=(*_STEP, f"{_MTP_LAYER}.forward"),
    returns=("grad_norm", "mtp_losses.*"),
    tensors=(*_CHANGED, "gradients/mtp.*"),
)
def mtp_step(
    run: Run, *, hf_config: str = "glm4_moe", recompute: str = "none", detach_encoder: bool = False
) -> Mapping[str, Any]:
    """`training_step` of a model that also predicts the token after the next, patched by verl's `patch_engine_mtp`.

    Args:
        hf_config: as `training_step`; the model must have such a layer.
        recompute: as `training_step`.
        detach_encoder: verl's `mtp.detach_encoder`: the extra layer does not train what is below it.

    Returns:
        What `training_step` returns but for `parameters`, and `mtp_losses`, as verl's `get_megatron_mtp_loss` reports
        them.
    """
    mtp = run.call("verl.workers.config:MtpConfig", enable=True, enable_train=True, detach_encoder=detach_encoder)
    chosen = {"override_transformer_config": choice("recompute", recompute, _RECOMPUTE)}
    engine = _engine.construct_engine(run, hf_config, dtype="float32", model={"mtp": mtp}, engine=chosen)
    engine._build_tf_config()
    _engine.build_module(run, engine)
    run.call("verl.utils.megatron_utils:patch_engine_mtp", engine.module, engine.model_config)
    for method in ("forward", "_checkpointed_forward", "_get_embeddings"):
        run.comes_from(f"MultiTokenPredictionLayer.{method}", run.upstream(f"{_MTP_LAYER}.{method}"))
    fill_parameters(engine.module, perturbed=run.perturbed)
    tree = _training.take_steps(run, engine, label_the_model=True)
    del tree["parameters"]
    return tree | {"mtp_losses": run.call("verl.utils.megatron_utils:get_megatron_mtp_loss", 1)}
