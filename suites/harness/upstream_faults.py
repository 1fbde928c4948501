"""Faults seeded into upstream's code inside a worker, and the probes that run a step or a config with one of them.

A fault replaces a function of Megatron-Core or verl in the forked rank, before anything is built, and on the new side
alone unless it says otherwise. Everything after that is the harness's own way: the shipped probe, the codec, the
comparison with its noise floor, the verdict. Nothing has to be put back: the rank ends with the case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harness.observe import Run
from harness.observe.fault import is_new, seed_fault
from harness.probes import probe
from harness.probes._models import choice
from harness.probes.registry import find_probe
from harness.workers.lanes import CpuLane

STEP, CONFIG = find_probe("training_step"), find_probe("provider_config")
PRELOAD = (*STEP.preload, *CONFIG.preload)

Original = Callable[..., Any]
Faulty = Callable[..., Any]
"""Stands in the place of an upstream function: it is given the run, that function, and the arguments of the call."""


@dataclass(frozen=True)
class Fault:
    """One fault and how it must be taken.

    Attributes:
        name: of the fault.
        place: the upstream function, or the part of the lane, that is replaced.
        change: what it does to a rank, before the probe.
        shows: globs over differences, each of which must be met; with a verdict that has none, a part of its reason.
        first: what the reason says of the first divergence, where modules were traced.
        also: globs over the differences that may come with those, by way of loss or clipping; there may be no others.
        verdict: what the case must come to.
        parameters: of the probe.
        probe: `faulty_step` or `faulty_config`.
        both: whether both sides have the fault.
    """

    name: str
    place: str
    change: Callable[[Run], None]
    shows: tuple[str, ...]
    first: str = ""
    also: tuple[str, ...] = ()
    verdict: str = "regression"
    layout: str = "single"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    probe: str = "faulty_step"
    both: bool = False


@probe(enters=STEP.evidence.enters, returns=STEP.evidence.returns, tensors=STEP.evidence.tensors)
def faulty_step(
    run: Run,
    *,
    fault: str = "none",
    hf_config: str = "qwen3",
    distributed_optimizer: bool = True,
    seeded_init: bool = False,
    aux_loss: bool = False,
) -> Mapping[str, Any]:
    """`training_step` with a fault in upstream's code.

    Args:
        fault: name of one of `FAULTS`, or `none`.
        hf_config: as `training_step`.
        distributed_optimizer: as `training_step`.
        seeded_init: as `training_step`.
        aux_loss: on both sides, experts are balanced by an auxiliary loss, which verl switches off.
    """
    if aux_loss:
        _around(f"{_ROUTER}:TopKRouter.__init__", _with_aux_loss)(run)
    _apply(run, fault)
    return STEP.function(run, hf_config=hf_config, distributed_optimizer=distributed_optimizer, seeded_init=seeded_init)


@probe(returns=("*",))
def faulty_config(
    run: Run, *, fault: str = "none", probe: str = "provider_config", given: Sequence[tuple[str, Any]] = ()
) -> Mapping[str, Any]:
    """A config probe with a fault in upstream's code.

    Args:
        fault: name of one of `FAULTS`, or `none`.
        probe: name of the config probe.
        given: its parameters, each with its value.
    """
    _apply(run, fault)
    return find_probe(probe).function(run, **dict(given))


def _apply(run: Run, name: str) -> None:
    fault: Fault | None = choice("fault", name, {"none": None} | {fault.name: fault for fault in FAULTS})
    if fault and (fault.both or is_new(run)):
        fault.change(run)


def _around(place: str, faulty: Faulty) -> Callable[[Run], None]:
    """Replace an upstream function by one that gets the run first."""
    return lambda run: seed_fault(run, place, partial(faulty, run), disguised=False)


def _seeded(name: str, place: str, faulty: Faulty, *shows: str, **how: Any) -> Fault:
    return Fault(name, place, _around(place, faulty), shows, **how)


# What the faults do ---------------------------------------------------------------------------------------------------


def _result(change: Callable[[Any], Any]) -> Faulty:
    return lambda _run, original, *arguments, **keywords: change(original(*arguments, **keywords))


def _after(change: Callable[[Any], object]) -> Faulty:
    """Run a method, then change its object."""

    def method(_run: Run, original: Original, owner: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = original(owner, *arguments, **keywords)
        change(owner)
        return answer

    return method


def _before(change: Callable[[Any], object]) -> Faulty:
    """Change a method's object, then run the method."""

    def method(_run: Run, original: Original, owner: Any, *arguments: Any, **keywords: Any) -> Any:
        change(owner)
        return original(owner, *arguments, **keywords)

    return method


def _on_rank_1(faulty: Faulty) -> Faulty:
    def either(run: Run, original: Original, *arguments: Any, **keywords: Any) -> Any:
        return faulty(run, original, *arguments, **keywords) if run.rank == 1 else original(*arguments, **keywords)

    return either


def _skipped(_run: Run, _original: Original, *_arguments: Any, **_keywords: Any) -> None:
    return None


def _argument(_run: Run, _original: Original, value: Any, *_arguments: Any, **_keywords: Any) -> Any:
    return value


def _own_part(_run: Run, original: Original, part: Any, *arguments: Any, **keywords: Any) -> Any:
    """Take part in a reduction, which works in place, and keep one's own part."""
    own = part.clone()
    original(part, *arguments, **keywords)
    return own


def _output(module: str, change: Callable[[Any], Any]) -> Faulty:
    """Change what a module below the constructed one gives."""

    def hook(owner: Any) -> None:
        owner.get_submodule(module).register_forward_hook(lambda _module, _inputs, output: change(output))

    return _after(hook)


def _row_lost(output: tuple[Any, Any]) -> tuple[Any, Any]:
    kept = output[0].new_ones((*output[0].shape[:2], 1))
    kept[3, 1] = 0
    return output[0] * kept, output[1]


def _heads_swapped(context: Any) -> Any:
    return context.unflatten(-1, (4, -1))[..., [2, 1, 0, 3], :].flatten(-2)


def _transposed(_run: Run, original: Original, layer: Any, *, weight: Any, **keywords: Any) -> Any:
    square = weight.shape[0] == weight.shape[1]
    return original(layer, weight=weight.t() if square else weight, **keywords)


def _late_by_one(_run: Run, original: Original, rope: Any, length: int, *arguments: Any, **keywords: Any) -> Any:
    """The second half of the positions are one too high. (Were all so, nothing would change: only distances count.)"""
    rows = original(rope, length + 1, *arguments, **keywords)
    return rows[[row for row in range(length + 1) if row != length // 2]]


def _last_token_masked(log_probs: Any) -> Any:
    kept = log_probs.new_ones(log_probs.shape)
    kept[:, -1] = 0
    return log_probs * kept


def _another_epsilon(_run: Run, original: Original, model: Any, config: Any, *arguments: Any, **keywords: Any) -> None:
    config.layernorm_epsilon *= 10
    original(model, config, *arguments, **keywords)


def _gradient(change: Callable[[Any], object], name: str) -> Callable[[Any], None]:
    """Change the gradient of one parameter of a wrapped model."""

    def of(wrapped: Any) -> None:
        [found] = [parameter for full, parameter in wrapped.named_parameters() if full.endswith(name)]
        change(found.main_grad)

    return of


def _one_nan(gradient: Any) -> None:
    gradient[5, 7] = float("nan")


def _one_zero_negative(gradient: Any) -> None:
    """The embedding of a token that no sequence holds has gradients of zero."""
    row, column = (gradient == 0).nonzero()[0].tolist()
    gradient[row, column] = -0.0


def _scaled_slightly(gradient: Any) -> None:
    gradient.mul_(_SLIGHTLY)


def _halved(wrapped: Any) -> None:
    for buffer in wrapped.buffers:
        buffer.grad_data /= 2


def _stale(optimizer: Any) -> None:
    """Without a gradient, the optimizer leaves a parameter as it is."""
    optimizer.optimizer.param_groups[0]["params"][0].grad = None


def _faster(optimizer: Any) -> None:
    for group in optimizer.optimizer.param_groups:
        group["lr"] *= _SLIGHTLY


def _kept(_run: Run, original: Original, group: Any, *arguments: Any, **keywords: Any) -> None:
    """Take part in gathering parameters, and keep one's own."""
    own = [bucket.param_data.clone() for bucket in group.buckets]
    original(group, *arguments, **keywords)
    for bucket, data in zip(group.buckets, own, strict=True):
        bucket.param_data.copy_(data)


def _drawn_once_more(run: Run, original: Original, *arguments: Any, **keywords: Any) -> None:
    import torch

    original(*arguments, **keywords)
    with run.upstream("megatron.core.tensor_parallel.random:get_cuda_rng_tracker")().fork():
        torch.rand(1)


def _balanced(router: Any) -> None:
    router.routing_type = "aux_loss"


_with_aux_loss = _after(_balanced)


def _twice(_run: Run, original: Original, router: Any, probs: Any, *arguments: Any, **keywords: Any) -> Any:
    return original(router, original(router, probs, *arguments, **keywords), *arguments, **keywords)


def _best_passed_over(_run: Run, original: Original, logits: Any, *arguments: Any, **keywords: Any) -> Any:
    changed = logits.clone()
    changed[5, logits[5].argmax()] = float("-inf")
    return original(changed, *arguments, **keywords)


def _softmax_flipped(engine: Any) -> None:
    engine.provider.attention_softmax_in_fp32 = not engine.provider.attention_softmax_in_fp32


def _three_query_groups(engine: Any) -> None:
    engine.provider.num_query_groups = 3


def _finalizer_lost(config: Any) -> Any:
    config.finalize_model_grads_func = None
    return config


class _FusingLane(CpuLane):
    """A lane that leaves a fused kernel on."""

    def force(self, run: Run, config: Any, spec: str = "local") -> None:
        super().force(run, config, spec)
        config.apply_rope_fusion = True


def _not_in_fp32(config: Any) -> Any:
    config.grad_reduce_in_fp32 = not config.grad_reduce_in_fp32
    return config


def _last_override_lost(_run: Run, original: Original, provider: Any, dtype: Any, overrides: dict[str, Any]) -> Any:
    return original(provider, dtype=dtype, overrides=dict(list(overrides.items())[:-1]))


def _renamed(_run: Run, original: Original, provider: Any, dtype: Any, overrides: dict[str, Any]) -> Any:
    return original(provider, dtype=dtype, overrides={f"moe_{name}": value for name, value in overrides.items()})


def _dispatched_to_all(provider: Any) -> None:
    provider.moe_token_dispatcher_type = "allgather"


def _one_rank_apart(_run: Run, original: Original, **sizes: Any) -> None:
    original(**sizes | {"context_parallel_size": 2})


def _one_expert_more(provider: Any) -> Any:
    provider.moe_router_topk += 1
    return provider


def _default_moved(run: Run) -> None:
    config = run.upstream("megatron.core.transformer.transformer_config:TransformerConfig")
    config.__dataclass_fields__["hidden_dropout"].default = 0.2


def _field_gone(run: Run) -> None:
    config = run.upstream("megatron.core.optimizer:OptimizerConfig")
    del config.__dataclass_fields__["adam_beta1"]


def _unregistered(names: list[str]) -> list[str]:
    return [name for name in names if name != "OlmoeForCausalLM"]


def _lane_fuses(run: Run) -> None:
    run.lane = _FusingLane()


def _device_unknown(run: Run) -> None:
    import torch

    run.lane.start_distributed(run)
    torch.cuda.current_device = lambda: "meta"


def _config(probe: str, **given: Any) -> dict[str, Any]:
    return {"probe": "faulty_config", "parameters": {"probe": probe, "given": tuple(given.items())}}


# The faults -----------------------------------------------------------------------------------------------------------

_DDP = "megatron.core.distributed.distributed_data_parallel:DistributedDataParallel.finish_grad_sync"
_PARAMETER_SYNC = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.start_param_sync"
_MODEL = "megatron.core.models.gpt.gpt_model:GPTModel.__init__"
_ATTENTION = "megatron.core.transformer.dot_product_attention:DotProductAttention"
_ROPE = "megatron.core.models.common.embeddings.rotary_pos_embedding:RotaryEmbedding.forward"
_ROUTER = "megatron.core.transformer.moe.router"
_EXPERTS = "megatron.core.transformer.moe.experts:SequentialMLP.__init__"
_LINEAR = "megatron.core.tensor_parallel.layers:RowParallelLinear._forward_impl"
_TENSOR_PARALLEL_SUM = "megatron.core.tensor_parallel.layers:reduce_from_tensor_model_parallel_region"
_NORM_SUM = "megatron.core.distributed.finalize_model_grads:_allreduce_non_tensor_model_parallel_grads"
_STEP = "megatron.core.optimizer.optimizer:MixedPrecisionOptimizer.step_with_ready_grads"
_SCHEDULE_CONFIG = "megatron.core.pipeline_parallel.schedules:get_model_config"
_SEED = "verl.workers.engine.megatron.transformer_impl:set_random_seed"
_RESOLVE = "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config"
_LOG_PROBS = "verl.utils.megatron.tensor_parallel:vocab_parallel_log_probs_from_logits"

_OVERRIDE = "megatron.bridge.models.model_provider:ModelProviderMixin.apply_overrides_and_finalize"

_SLIGHTLY = 1 + 2**-7
_PROJECTION = "decoder.layers.1.self_attention.linear_proj.weight"
_EMBEDDING = "embedding.word_embeddings.weight"
_FINAL_NORM = "decoder.final_layernorm.weight"

_STEPPED = ("grad_norm", "updated/*")
_BACKWARD = ("gradients/*", *_STEPPED)
_FORWARD = ("loss", *_BACKWARD)
_EITHER_RANK = ("logits", *_FORWARD, *(f"rank{rank}: {path}" for rank in (0, 1) for path in _FORWARD))
_MOE = {"hf_config": "qwen3_moe"}
_ALL_REDUCED = {"distributed_optimizer": False}
_NO_MODULE = "every module agrees"

FAULTS = (
    _seeded(
        "norm scaled by 0.1 %",
        _MODEL,
        _output("decoder.final_layernorm", lambda output: output * 1.001),
        "logits",
        f"gradients/{_FINAL_NORM}",
        first="decoder.final_layernorm (forward)",
        also=_FORWARD,
    ),
    _seeded(
        "one row of an output lost",
        _MODEL,
        _output("decoder.layers.1.mlp", _row_lost),
        "logits",
        first="decoder.layers.1.mlp (forward)",
        also=_FORWARD,
    ),
    _seeded(
        "heads swapped",
        f"{_ATTENTION}.forward",
        _result(_heads_swapped),
        "logits",
        first="decoder.layers.0.self_attention.core_attention (forward)",
        also=_FORWARD,
    ),
    _seeded(
        "weight transposed",
        _LINEAR,
        _transposed,
        "logits",
        first="decoder.layers.0.self_attention.linear_proj (forward)",
        also=_FORWARD,
    ),
    _seeded("position ids off by one", _ROPE, _late_by_one, "logits", first="rotary_pos_emb (forward)", also=_FORWARD),
    _seeded(
        "attention dropout left on",
        f"{_ATTENTION}.__init__",
        _after(lambda attention: setattr(attention.attention_dropout, "p", 0.1)),
        "logits",
        first="decoder.layers.0.self_attention.core_attention.attention_dropout (forward)",
        also=_FORWARD,
    ),
    _seeded(
        "another epsilon at the build",
        _MODEL,
        _another_epsilon,
        "logits",
        first="decoder.layers.0.input_layernorm (forward)",
        also=_FORWARD,
    ),
    _seeded(
        "last token masked out of the loss",
        _LOG_PROBS,
        _result(_last_token_masked),
        "loss",
        "gradients/*",
        first="(backward) from outside",
        also=_STEPPED,
    ),
    _seeded(
        "a parameter frozen",
        _MODEL,
        _after(lambda model: model.decoder.final_layernorm.weight.requires_grad_(False)),
        f"gradients/{_FINAL_NORM}",
        f"updated/{_FINAL_NORM}",
        first="decoder.final_layernorm (backward)",
        also=_STEPPED,
    ),
    _seeded(
        "one NaN in a gradient",
        _DDP,
        _after(_gradient(_one_nan, _PROJECTION)),
        f"gradients/{_PROJECTION}",
        first=_NO_MODULE,
        also=_STEPPED,
    ),
    _seeded(
        "sign of a gradient's zero",
        _DDP,
        _after(_gradient(_one_zero_negative, _EMBEDDING)),
        f"gradients/{_EMBEDDING}",
        first=_NO_MODULE,
    ),
    _seeded("a parameter not stepped", _STEP, _before(_stale), "updated/output_layer.weight", first=_NO_MODULE),
    _seeded("learning rate scaled by 1 + 2^-7", _STEP, _before(_faster), "updated/*", first=_NO_MODULE),
    _seeded(
        "RNG drawn from once more",
        _SEED,
        _drawn_once_more,
        "parameters/*",
        "logits",
        first="embedding.word_embeddings (forward), whose own parameters differ",
        also=_FORWARD,
        parameters={"seeded_init": True},
    ),
    _seeded(
        "an expert skipped",
        _EXPERTS,
        _output("local_experts.2", lambda output: (output[0] * 0, output[1])),
        "logits",
        first="decoder.layers.0.mlp.experts.local_experts.2 (forward)",
        also=_FORWARD,
        parameters=_MOE,
    ),
    _seeded(
        "second best expert for a token",
        f"{_ROUTER}:topk_routing_with_score_function",
        _best_passed_over,
        "logits",
        first="decoder.layers.0.mlp.router (forward)",
        also=_FORWARD,
        parameters=_MOE,
    ),
    _seeded(
        "auxiliary loss left on",
        f"{_ROUTER}:TopKRouter.__init__",
        _after(_balanced),
        "gradients/*.router.weight",
        first="decoder.layers.1.mlp.router (backward)",
        also=_BACKWARD,
        parameters=_MOE,
    ),
    _seeded(
        "auxiliary loss added twice",
        f"{_ROUTER}:TopKRouter._apply_aux_loss",
        _twice,
        "gradients/*.router.weight",
        first="decoder.layers.1.mlp.router (backward)",
        also=_BACKWARD,
        parameters={**_MOE, "aux_loss": True},
    ),
    _seeded(
        "gradient dropped on rank 1, then reduced",
        _DDP,
        _on_rank_1(_before(_gradient(lambda gradient: gradient.zero_(), _PROJECTION))),
        f"gradients/{_PROJECTION}",
        first=_NO_MODULE,
        also=_STEPPED,
        layout="dp2",
    ),
    _seeded(
        "gradient scaled by 1 + 2^-7 on rank 1, then reduced",
        _DDP,
        _on_rank_1(_before(_gradient(_scaled_slightly, _PROJECTION))),
        f"gradients/{_PROJECTION}",
        first=_NO_MODULE,
        also=_STEPPED,
        layout="dp2",
    ),
    _seeded(
        "gradients divided by the ranks twice",
        _DDP,
        _after(_halved),
        "grad_norm",
        "gradients/*",
        first=_NO_MODULE,
        also=_STEPPED,
        layout="dp2",
    ),
    _seeded(
        "updated parameters not gathered on rank 1",
        _PARAMETER_SYNC,
        _on_rank_1(_kept),
        "rank1: updated/*",
        first=_NO_MODULE,
        layout="dp2",
    ),
    _seeded(
        "reduced gradient scaled by 1 + 2^-7 on rank 1",
        _DDP,
        _on_rank_1(_after(_gradient(_scaled_slightly, _PROJECTION))),
        f"rank1: gradients/{_PROJECTION}",
        first=_NO_MODULE,
        also=tuple(f"rank1: {path}" for path in _STEPPED),
        layout="dp2",
        parameters=_ALL_REDUCED,
    ),
    _seeded(
        "a parameter not stepped on rank 1",
        _STEP,
        _on_rank_1(_before(_stale)),
        f"rank1: updated/{_EMBEDDING}",
        first=_NO_MODULE,
        layout="dp2",
        parameters=_ALL_REDUCED,
    ),
    _seeded(
        "tensor parallel sum skipped",
        _TENSOR_PARALLEL_SUM,
        _argument,
        "rank0: logits",
        "rank1: logits",
        first="embedding.word_embeddings (forward)",
        also=_EITHER_RANK,
        layout="tp2",
    ),
    _seeded(
        "tensor parallel mean, not sum",
        _TENSOR_PARALLEL_SUM,
        _result(lambda total: total / 2),
        "rank0: logits",
        "rank1: logits",
        first="embedding.word_embeddings (forward)",
        also=_EITHER_RANK,
        layout="tp2",
    ),
    _seeded(
        "tensor parallel sum not received by rank 1",
        _TENSOR_PARALLEL_SUM,
        _on_rank_1(_own_part),
        "rank1: logits",
        first="embedding.word_embeddings (forward) on rank 1",
        also=("rank0: logits", *_EITHER_RANK),
        layout="tp2",
    ),
    _seeded(
        "norm gradients not summed over ranks",
        _NORM_SUM,
        _skipped,
        "rank0: gradients/*_layernorm.weight",
        "rank1: gradients/*_layernorm.weight",
        first=_NO_MODULE,
        also=("grad_norm", "updated/*", "rank?: updated/*"),
        layout="tp2",
    ),
    _seeded(
        "field flipped after the config was resolved",
        _RESOLVE,
        _after(_softmax_flipped),
        "config.attention_softmax_in_fp32",
        probe="faulty_config",
    ),
    _seeded(
        "gradients reduced in another dtype",
        "megatron.bridge.training.utils.config_utils:create_ddp_config",
        _result(_not_in_fp32),
        "ddp_config.grad_reduce_in_fp32",
        also=("provenance.create_ddp_config",),
        **_config("ddp_config"),
    ),
    _seeded(
        "an override lost",
        _OVERRIDE,
        _last_override_lost,
        "arrived.mtp_loss_scaling_factor",
        "changed.mtp_loss_scaling_factor",
        also=("changed.moe_router_load_balancing_type",),
        **_config("provider_overrides", variant="mtp_layers"),
    ),
    _seeded(
        "an override refused",
        _OVERRIDE,
        _renamed,
        "exception",
        **_config("provider_overrides", variant="recompute"),
    ),
    _seeded(
        "another token dispatcher",
        _RESOLVE,
        _after(lambda engine: _dispatched_to_all(engine.provider)),
        "fields.moe_token_dispatcher_type",
        **_config("moe_defaults"),
    ),
    _seeded(
        "another context parallel size in the process groups",
        "megatron.core.parallel_state:initialize_model_parallel",
        _one_rank_apart,
        "rank?: groups.*",
        **_config("dynamic_context_parallel", enabled=False),
        layout="dp2",
    ),
    _seeded(
        "an expert more in one bridge",
        "megatron.bridge.models.qwen.qwen3_moe_bridge:Qwen3MoEBridge.provider_bridge",
        _result(_one_expert_more),
        "config.moe_router_topk",
        **_config("architecture", hf_config="Qwen3MoeForCausalLM"),
    ),
    Fault(
        "a default moved",
        "TransformerConfig.hidden_dropout",
        _default_moved,
        ("defaults.hidden_dropout",),
        **_config("config_fields"),
    ),
    Fault(
        "a field gone",
        "OptimizerConfig.adam_beta1",
        _field_gone,
        ("defaults.adam_beta1",),
        **_config("config_fields", of="optimizer"),
    ),
    _seeded(
        "a class no longer registered",
        "megatron.bridge.models.conversion.auto_bridge:AutoBridge.list_supported_models",
        _result(_unregistered),
        "registered.OlmoeForCausalLM",
        **_config("architectures"),
    ),
    _seeded("raises on the new side", _RESOLVE, _after(_three_query_groups), "exception"),
    _seeded(
        "raises on both sides",
        _RESOLVE,
        _after(_three_query_groups),
        "both raise RuntimeError",
        verdict="both_raise",
        both=True,
    ),
    _seeded(
        "gradients never finished",
        _SCHEDULE_CONFIG,
        _result(_finalizer_lost),
        "new: no evidence on rank 0: never entered megatron.core.distributed.finalize_model_grads:finalize_model_grads",
        verdict="broken",
    ),
    Fault(
        "a fused kernel that the lane leaves on",
        "CpuLane.force",
        _lane_fuses,
        ("old: the harness itself raised HarnessFault",),
        verdict="broken",
        parameters=_MOE,
        both=True,
    ),
    Fault(
        "a stand-in that names a device without data",
        "torch.cuda.current_device",
        _device_unknown,
        ("both raise KeyError: 'meta'",),
        verdict="both_raise",
        both=True,
    ),
)
"""Every fault, by what it is a fault of."""


def section() -> str:
    """What DETECTION.md says of these faults; `test_upstream_faults.py` proves it."""
    heads = ["fault", "put into", "layout, model", "verdict", "first divergence", "differences, or the reason"]
    lines = [" | ".join(heads), " | ".join(["---"] * len(heads))]
    for fault in FAULTS:
        place = f"`{fault.place}`{' on both sides' if fault.both else ''}"
        case = f"{fault.layout}, {fault.parameters.get('hf_config', 'qwen3')}"
        shows = ", ".join(f"`{path}`" for path in fault.shows)
        lines.append(" | ".join([fault.name, place, case, fault.verdict, fault.first or "none", shows]))
    return _HEAD + "\n".join(f"| {line} |" for line in lines) + "\n"


_HEAD = f"""
## Faults in upstream's code

{len(FAULTS)} faults put into Megatron-Core, verl or the lane, in a worker of verl 0.8.0 (`upstream_faults.py`), on the
new side alone unless the table says both; both sides are that one stack. A training step, or the resolved config, goes
the whole way: upstream's code, probe, codec, comparison above its noise floor, verdict. `test_upstream_faults.py` fails
where a fault comes to another verdict than here, where its first divergence or one of its differences is missing, and
where a difference is neither here nor follows by way of loss, clipping and optimizer.

A rank is named where it alone differs, or differs in its own way. What was wrong on one rank before a reduction is
equally wrong on all after it, and no rank is named.

"""
