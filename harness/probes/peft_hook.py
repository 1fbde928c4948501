"""What PEFT does to a model between its construction and its DDP wrapper, and the object that does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _peft, _wrap
from harness.probes.registry import probe

PRELOAD = _peft.PRELOAD

_GET_PEFT_CLS = "verl.workers.config.megatron_peft:get_peft_cls"


@probe(
    enters=(
        _GET_PEFT_CLS,
        _wrap.MAKE_MEGATRON_MODULE,
        "megatron.bridge.peft.base:PEFT.__call__",
        "megatron.bridge.peft.base:PEFT.set_params_to_save",
    ),
    returns=("order", "trained", "parameters", "wrappers", "peft.fields"),
    tensors=("adapters/*",),
)
def peft_hook(
    run: Run,
    *,
    hf_config: str = "qwen3",
    peft: str = "lora",
    fields: str = "",
    value_model: bool = False,
    freeze_router: bool = False,
) -> Mapping[str, Any]:
    """The model after the stack's own PEFT object and pre-wrap hooks have been through it.

    verl's engine makes the PEFT object (`get_peft_cls`), and `make_megatron_module` the model, DDP included, from the
    same `lora` section on both sides. Where each registered hook comes from, in their order, is part of the provenance.

    Returns:
        order: names of all parameters, in the model's own order, without wrapper prefixes.
        trained: names of those that are trained, and so have a gradient buffer.
        parameters: shape, dtype, `requires_grad` and Megatron-Core's flags of each, by name.
        wrappers: classes around each model chunk, from the outside in.
        peft: class and public fields of the PEFT object, among them `params_to_save`.
        adapters: initial adapter weights by name, tensors of this rank's shape and of the adapter's dtype, drawn under
            the run's seed.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: `lora`, `dora` or `canonical_lora`.
        fields: further fields of the section, as in `peft_object`.
        value_model: the model also gets a value head, as a critic's does.
        freeze_router: the model's routers are frozen too (`moe_config.freeze_moe_router`).
    """
    section = _peft.lora_section(peft, fields)
    engine = _engine.construct_engine(run, hf_config, model={"lora": section})
    engine._build_tf_config()
    run.comes_from("peft", type(engine.peft_cls))
    modules = _wrap.make_module(
        run,
        engine,
        is_value_model=value_model,
        override_model_config={"moe_config": {"freeze_moe_router": freeze_router}},
        peft_config=section,
    )
    parameters = _wrap.described_parameters(modules)
    return {
        "order": list(parameters),
        "trained": [name for name, parameter in _wrap.named_parameters(modules) if hasattr(parameter, "main_grad")],
        "parameters": parameters,
        "wrappers": [_wrap.wrappers(chunk) for chunk in modules],
        "peft": _peft.described_peft(engine.peft_cls),
        "adapters": _peft.adapters(modules),
    }
