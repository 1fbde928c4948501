"""Freezing the routers of a mixture-of-experts model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _wrap
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = _wrap.PRELOAD

_FREEZE = "verl.models.mcore.bridge:freeze_moe_router"

_FIRST_LAYER: dict[str, dict[str, Any]] = {"moe": {}, "dense": {"moe_layer_freq": [0, 1]}, "without_mlp": {}}
_SHARED: dict[str, dict[str, Any]] = {
    "none": {},
    "plain": {"moe_shared_expert_intermediate_size": 32},
    "gated": {"moe_shared_expert_intermediate_size": 32, "moe_shared_expert_gate": True},
}
"""What a user would set in `override_transformer_config`."""


@probe(
    enters=(f"{_FREEZE} | megatron.bridge.training.utils.train_utils:freeze_moe_router",),
    returns=("requires_grad", "returned"),
    tensors=("output", "gradients/*"),
)
def router_freeze(
    run: Run,
    *,
    hf_config: str = "qwen3_moe",
    through: str = "make_megatron_module",
    given: str = "list",
    router_bias: str = "none",
    first_layer: str = "moe",
    shared_experts: str = "none",
    value_model: bool = False,
) -> Mapping[str, Any]:
    """Which parameters the stack's `freeze_moe_router` freezes, and the gradients of the rest.

    Weights are a function of name and index. Where each registered hook comes from is part of the provenance.

    Returns:
        requires_grad: by parameter name, in the model's own order.
        returned: the type of what the function returned; None through `make_megatron_module`.
        output: `[batch, sequence, vocabulary]`, one element of the last dimension for a value model.
        gradients: of every parameter that got one, by name, each of its parameter's shape.

    Args:
        hf_config: a shipped tiny mixture of experts or the path of a Hugging Face `config.json`.
        through: `make_megatron_module` asks for it in `override_model_config`, DDP included, as a user does;
            `function` calls the function on a finished model without DDP.
        given: what the function gets: the `list` of model chunks, or the `module`.
        router_bias: `none`, as in every released model; `present` gives each router one by hand, in a hook of its own.
        first_layer: `moe`; `dense` (no router there); `without_mlp` takes the attribute away while the function runs.
        shared_experts: `none`, `plain`, or `gated`, which have a weight that decides how much of them counts.
        value_model: also replace the output layer by a value head, as for a critic.
    """
    choice("through", through, ("make_megatron_module", "function"))
    choice("given", given, ("list", "module"))
    choice("router_bias", router_bias, ("none", "present"))
    overrides = choice("first_layer", first_layer, _FIRST_LAYER) | choice("shared_experts", shared_experts, _SHARED)
    engine = _engine.construct_engine(run, hf_config, engine={"override_transformer_config": overrides})
    engine._build_tf_config()
    if router_bias == "present":
        _register_router_biases(run, engine.provider)
    returned = None
    if through == "make_megatron_module":
        override = {"moe_config": {"freeze_moe_router": True}}
        _wrap.make_module(run, engine, is_value_model=value_model, override_model_config=override)
    else:
        _wrap.make_module(run, engine, is_value_model=value_model, wrap_with_ddp=False)
        returned = _freeze(run, engine.module, given, without_mlp=first_layer == "without_mlp")
    fill_parameters(engine.module, perturbed=run.perturbed)
    requires_grad = {name: parameter.requires_grad for name, parameter in _wrap.named_parameters(engine.module)}
    return {"requires_grad": requires_grad, "returned": returned, **_wrap.forward_backward(run, engine.module)}


def _register_router_biases(run: Run, provider: Any) -> None:
    """Give each router a bias before upstream's hooks run: `add_bias_linear`, which would, also changes the experts."""

    def add_biases(chunks: list[Any]) -> list[Any]:
        import torch

        layers = [layer for chunk in chunks for layer in chunk.decoder.layers]
        for router in [layer.mlp.router for layer in layers if hasattr(layer.mlp, "router")]:
            router.bias = torch.nn.Parameter(torch.zeros_like(router.weight[:, 0]))
        return chunks

    run.by_hand("router.bias", "a parameter of zeros, added in a pre-wrap hook before upstream's")
    provider.register_pre_wrap_hook(add_biases)


def _freeze(run: Run, modules: list[Any], given: str, *, without_mlp: bool) -> str:
    models = [_wrap.unwrapped(chunk) for chunk in modules]
    freeze_moe_router = run.upstream(_FREEZE)
    with _first_layer_without_mlp(run, models[0]) if without_mlp else contextlib.nullcontext():
        returned = freeze_moe_router(models if given == "list" else models[0])
    return type(returned).__qualname__


@contextlib.contextmanager
def _first_layer_without_mlp(run: Run, model: Any) -> Iterator[None]:
    """Let the first layer look like one of a hybrid model, which has a mixer and no `mlp`."""
    layer = model.decoder.layers[0]
    mlp = layer.mlp
    run.by_hand("decoder.layers.0.mlp", "taken away while freeze_moe_router runs")
    del layer.mlp
    yield
    layer.mlp = mlp
