"""Faults seeded into upstream's code, each of which turns one check of one stack red.

A fault replaces a function or an attribute of upstream in the forked rank, before the check runs there. None of them is
a known regression: they stand for the next one of a check's kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.observe import Run
from harness.observe.fault import Change, seed_fault
from harness.probes import consistency_probe
from harness.probes._models import choice
from harness.probes.registry import find_probe, registered_probes

PRELOAD = tuple(sorted({name for probe in registered_probes().values() if probe.one_stack for name in probe.preload}))


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: of the fault.
        check: the check that must find it.
        shows: glob over the violations, one of which must be met.
        change: what it does to a rank, before the check.
        parameters: of the check.
        layout: of the check.
    """

    name: str
    check: str
    shows: str
    change: Callable[[Run], None]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "single"


@consistency_probe(returns=())
def faulty_check(run: Run, *, fault: str) -> Mapping[str, Any]:
    """The check that a fault names, with that fault."""
    known = {entry.name: entry for entry in FAULTS}
    chosen: Fault = choice("fault", fault, known)
    chosen.change(run)
    return find_probe(chosen.check).function(run, **chosen.parameters)


@consistency_probe(returns=(), reads="checkpoint_written")
def faulty_read(run: Run, *, fault: str) -> Mapping[str, Any]:
    """The same of a check that reads files."""
    return faulty_check(run, fault=fault)


def _around(place: str, faulty: Change) -> Callable[[Run], None]:
    return lambda run: seed_fault(run, place, faulty, disguised=False)


def _afterwards(change: Callable[[Any], object]) -> Callable[..., Any]:
    """Run a method, then change its object."""

    def method(original: Callable[..., Any], owner: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = original(owner, *arguments, **keywords)
        change(owner)
        return answer

    return method


def _answering(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda original, *arguments, **keywords: change(original(*arguments, **keywords))


def _set(name: str, value: Any) -> Callable[[Any], object]:
    return lambda owner: setattr(owner, name, value)


def _another_group(layer: Any) -> None:
    from megatron.core import parallel_state

    layer.tp_group = parallel_state.get_pipeline_model_parallel_group()


def _asks_for_more(run: Run) -> None:
    """The overridden method takes one argument more, as after a release of the other package."""
    model = run.upstream("megatron.core.models.gpt.gpt_model:GPTModel")
    own = model.forward

    def forward(self: Any, *arguments: Any, token_weights: Any = None, **keywords: Any) -> Any:
        return own(self, *arguments, **keywords)

    model.forward = forward


def _takes_less(run: Run) -> None:
    """A method no longer takes what its caller in the same class passes."""
    layer = run.upstream("megatron.core.transformer.transformer_layer:TransformerLayer")

    def _forward_mlp(self: Any, hidden_states: Any) -> Any:
        raise NotImplementedError

    layer._forward_mlp = _forward_mlp


def _removed(run: Run) -> None:
    """A function that verl asks for by name is gone."""
    del run.upstream("megatron.core.dist_checkpointing").load_content_metadata


def _foreign_function(run: Run) -> None:
    state = run.upstream("megatron.core.parallel_state")
    state.get_tensor_model_parallel_rank = run.upstream("verl.utils.megatron_utils:unwrap_model")


def _without_key(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda answer: {key: value for key, value in answer.items() if key != name}


def _one_of_two(original: Callable[..., Any], bridge: Any, config: Any, *arguments: Any) -> Any:
    """The number of experts of a token is left at its default where the loss of balancing is not."""
    answer, plain = original(bridge, config, *arguments), type(config)()
    if getattr(config, "router_aux_loss_coef", None) != getattr(plain, "router_aux_loss_coef", None):
        answer["moe_router_topk"] = plain.num_experts_per_tok
    return answer


def _clips_at_one(config: Any) -> Any:
    config.clip_grad = 1.0
    return config


def _forgets_override(original: Callable[..., Any], provider: Any, *arguments: Any, **keywords: Any) -> Any:
    kept = {name: value for name, value in keywords["overrides"].items() if name != "attention_dropout"}
    return original(provider, *arguments, **(keywords | {"overrides": kept}))


def _one_left_out(original: Callable[..., Any], states: Any, folder: str, *_: Any) -> Any:
    """A load that leaves a parameter as it is."""
    asked = {
        chunk: {name: part for name, part in state.items() if not name.endswith("linear_proj.weight")}
        for chunk, state in states.items()
    }
    loaded = original(asked, folder)
    for chunk, state in states.items():
        loaded[chunk] |= {name: part.data for name, part in state.items() if name not in asked[chunk]}
    return loaded


def _swapped(parts: dict[str, Any]) -> dict[str, Any]:
    return parts | {"k_proj": parts["v_proj"], "v_proj": parts["k_proj"]}


def _as_it_is(original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    return original(*arguments, **keywords)


def _first_engine_leaves_a_mark(engine: Any) -> None:
    engine.engine_config.override_transformer_config["layernorm_epsilon"] = 0.5


_PEFT_BRIDGE = "megatron.bridge.models.conversion.peft_bridge:MegatronPeftBridge"
_MODEL_BRIDGE = "megatron.bridge.models.conversion.model_bridge:MegatronModelBridge"
_BUILD = "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config"

FAULTS = (
    Fault(
        "expert parallel size lost",
        "process_group_sizes",
        "*resolved_config.expert_model_parallel_size",
        _around(_BUILD, _afterwards(lambda engine: _set("expert_model_parallel_size", 1)(engine.provider))),
        layout="ep2",
    ),
    Fault(
        "a layer with another group",
        "process_groups",
        "*groups.0.decoder.layers.0.self_attention.linear_proj.tp_group*",
        _around("megatron.core.tensor_parallel.layers:RowParallelLinear.__init__", _afterwards(_another_group)),
        {"hf_config": "qwen3"},
        layout="tp2_sp",
    ),
    Fault(
        "a method takes less",
        "call_arguments",
        "megatron.core.transformer.transformer_layer:TransformerLayer.forward → self._forward_mlp",
        _takes_less,
        {"package": "megatron.core"},
    ),
    Fault(
        "an overridden method takes more",
        "overridden_methods",
        "megatron.bridge.models.qwen_vl.*forward",
        _asks_for_more,
        {"package": "megatron.bridge"},
    ),
    Fault(
        "a function that is asked for is gone",
        "feature_tests",
        "load_content_metadata in verl.utils.checkpoint.megatron_checkpoint_manager:*",
        _removed,
        {"package": "verl"},
    ),
    Fault("a function of another package", "import_order", "megatron.core.parallel_state:*", _foreign_function),
    Fault(
        "a field of the HF config not read",
        "hf_round_trip",
        "LlamaForCausalLM.rms_norm_eps",
        _around(f"{_MODEL_BRIDGE}.hf_config_to_provider_kwargs", _answering(_without_key("layernorm_epsilon"))),
        {"fields": "plain"},
    ),
    Fault(
        "an option of routing lost beside another",
        "hf_round_trip",
        "OlmoeForCausalLM.routing",
        _around(f"{_MODEL_BRIDGE}.hf_config_to_provider_kwargs", _one_of_two),
        {"fields": "routing"},
    ),
    Fault(
        "an optimizer setting overwritten",
        "user_settings",
        "clip_grad",
        _around("verl.utils.megatron.optimizer:init_megatron_optim_config", _answering(_clips_at_one)),
        {"of": "optimizer_overrides"},
    ),
    Fault(
        "an override of the model filtered",
        "user_settings",
        "attention_dropout",
        _around(
            "megatron.bridge.models.model_provider:ModelProviderMixin.apply_overrides_and_finalize", _forgets_override
        ),
        {"of": "transformer_overrides"},
    ),
    Fault(
        "a parameter not loaded",
        "checkpoint_read",
        "parameters.decoder.layers.*.self_attention.linear_proj.weight",
        _around("megatron.core.dist_checkpointing:load", _one_left_out),
    ),
    Fault(
        "keys and values of an adapter swapped",
        "adapter_merge",
        "merged/model.layers.*.self_attn.k_proj.weight",
        _around(f"{_PEFT_BRIDGE}._split_qkv_linear_out_weight", _answering(_swapped)),
    ),
    Fault(
        "the first engine leaves a mark",
        "engines_in_turn",
        "given.engine_config.override_transformer_config*",
        _around(_BUILD, _afterwards(_first_engine_leaves_a_mark)),
    ),
    Fault(
        "another hook without the package",
        "without_package",
        "plain.hooks.create_ddp_config",
        _around("megatron.bridge.training.utils.config_utils:create_ddp_config", _as_it_is),
        {"package": "energon"},
    ),
)
