"""A critic: how verl's engine knows that it is one, and the model it makes then, on every pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _training, _wrap
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = _wrap.PRELOAD

_ENGINE = "verl.workers.engine.megatron.transformer_impl:MegatronEngineWithValueHead"


@probe(
    enters=(_wrap.MAKE_MEGATRON_MODULE,),
    returns=("is_value_model", "chunks.*.head", "tied"),
    tensors=("gradients/*", "updated/*"),
)
def critic(
    run: Run,
    *,
    hf_config: str = "qwen3",
    architecture: str = "absent",
    layers: int = 2,
    model_type: str = "value_model",
    through: str = "engine",
    freeze_moe_router: bool = False,
) -> Mapping[str, Any]:
    """The model that verl's engine for critics builds, and one training step of it towards values.

    The engine is `MegatronEngineWithValueHead`, as the registry gives it for `value_model`; the model, its value head
    and what the engine takes it for come from the real `_build_megatron_module`.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        architecture: what its `architectures` say in the place of their own.
        layers: number of layers, at least one for each chunk of the model.
        model_type: the field of `HFModelConfig` that verl's worker sets; `absent` leaves it alone.
        through: `engine` leaves it to `_build_megatron_module` whether this is a value model; `make_megatron_module` is
            called for one, as the critic's worker of verl 0.7 does.
        freeze_moe_router: what the user says in `override_mcore_model_config`.

    Returns:
        is_value_model: what the engine takes the model for, as far as it asked.
        chunks: for each model chunk of this pipeline stage, `head` (classes of its output layer and, where the language
            model is a part of it, of that one's; None where there is no such layer), whether it begins (`first`) and
            ends (`last`) the model.
        tied: whether embedding and output weights are the same, as the Hugging Face config, the Megatron config and
            each chunk say after the build.
        requires_grad: by global parameter name.
        output: on the last pipeline stage, shape of what the model gives: `[sequences, tokens, 1]` for values.
        gradients, updated: as `training_step`'s. grad_norm: a number.
    """
    choice("through", through, ("engine", "make_megatron_module"))
    moe = {"moe_config": {"freeze_moe_router": True}} if freeze_moe_router else {}
    named = {} if architecture == "absent" else {"architectures": [architecture]}
    engine = _engine.construct_engine(
        run,
        hf_config,
        dtype="float32",
        engine={"override_mcore_model_config": moe},
        model={} if model_type == "absent" else {"model_type": model_type},
        fields=named if layers == 2 else named | {"num_hidden_layers": layers},
        engine_class=_ENGINE,
    )
    engine._build_tf_config()
    if through == "engine":
        chunks = _engine.build_module(run, engine)
    else:
        chunks = _wrap.make_module(run, engine, is_value_model=True, override_model_config=moe)
    fill_parameters(chunks, perturbed=run.perturbed)
    models = [_wrap.unwrapped(chunk) for chunk in chunks]
    tree = _training.take_steps(run, engine, objective="values")
    del tree["parameters"]
    values = tree.pop("values", None)
    return tree | {
        "is_value_model": getattr(engine, "is_value_model", "absent"),
        "chunks": [_described(model) for model in models],
        "tied": {
            "hf_config": _tied(engine.model_config.hf_config, "tie_word_embeddings"),
            "megatron_config": _tied(engine.tf_config, "share_embeddings_and_output_weights"),
            "models": [_tied(model, "share_embeddings_and_output_weights") for model in models],
        },
        "requires_grad": _training.requires_grad(chunks),
        "output": None if values is None else list(values.shape),
    }


def _described(model: Any) -> dict[str, Any]:
    heads = [_head(part) for part in (model, getattr(model, "language_model", None)) if part is not None]
    return {"head": heads, "first": model.pre_process, "last": model.post_process}


def _head(model: Any) -> str | None:
    layer = getattr(model, "output_layer", None)
    return None if layer is None else type(layer).__qualname__


def _tied(owner: Any, name: str) -> Any:
    return getattr(owner, name, "absent")
