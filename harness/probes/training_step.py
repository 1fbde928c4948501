"""One training step of a tiny model, as verl's Megatron engine builds and wraps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _training
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = _engine.PRELOAD


@probe(
    enters=(
        "verl.utils.megatron_utils:make_megatron_module",
        "megatron.core.distributed.distributed_data_parallel:DistributedDataParallel.__init__",
        "megatron.core.distributed.finalize_model_grads:finalize_model_grads",
    ),
    returns=("grad_norm",),
    tensors=("parameters/*", "gradients/*", "updated/*"),
)
def training_step(
    run: Run,
    *,
    hf_config: str = "qwen3",
    dtype: str = "float32",
    distributed_optimizer: bool = True,
    seeded_init: bool = False,
    spec: str = "local",
    attention: str = "auto",
) -> Mapping[str, Any]:
    """Forward, loss, backward, gradient reduction and one optimizer step of a tiny model.

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

    Returns:
        By global parameter name, this rank's shards: `parameters` before the step, `gradients` (reduced, of the
        buffer's dtype) and `updated` parameters after the step. `grad_norm`: a number. On the last pipeline stage
        `loss` (float32, no dimension: the mean over this rank's tokens) and `logits` (float32, this rank's sequences x
        tokens x its part of the vocabulary).
    """
    choice("dtype", dtype, ("float32", "bfloat16", "float16"))
    choice("attention", attention, ("auto", "flash", "fused", "unfused"))
    overrides = choice("spec", spec, {"local": {}, "transformer_engine": {"attention_backend": attention}})
    chosen = {"use_distributed_optimizer": distributed_optimizer, "override_transformer_config": overrides}
    engine = _engine.construct_engine(run, hf_config, dtype=dtype, engine=chosen)
    engine._build_tf_config()
    chunks = _engine.build_module(run, engine, spec=spec)
    if not seeded_init:
        fill_parameters(chunks, perturbed=run.perturbed)
    before = _training.parameters(chunks)
    engine.optimizer = engine._build_optimizer()
    engine.optimizer_zero_grad()
    seen = _training.forward_backward(run, chunks)
    gradients = _training.gradients(chunks)
    grad_norm = engine.optimizer_step()
    tree = {
        **seen,
        "parameters": before,
        "gradients": gradients,
        "grad_norm": grad_norm,
        "updated": _training.parameters(chunks),
    }
    _training.record_placement(run, chunks, tree)
    return tree
