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
    returns=("order", "parameters", "wrappers", "peft.fields"),
    tensors=("adapters/*",),
)
def peft_hook(
    run: Run,
    *,
    hf_config: str = "qwen3",
    peft: str = "lora",
    alpha: int | str = "absent",
    dtype: str = "absent",
    init_method: str = "absent",
) -> Mapping[str, Any]:
    """The model after the stack's own PEFT object and pre-wrap hooks have been through it.

    verl's engine makes the PEFT object (`get_peft_cls`) and the model (`make_megatron_module`, DDP included) from the
    same `lora` section on both sides. Where each registered hook comes from is part of the provenance.

    Returns:
        order: names of all parameters, in the model's own order, without wrapper prefixes.
        parameters: shape, dtype, `requires_grad` and Megatron-Core's flags of each, by name.
        wrappers: classes around each model chunk, from the outside in.
        peft: class and public fields of the PEFT object, among them `params_to_save`.
        adapters: initial adapter weights by name, tensors of this rank's shape and of the adapter's dtype, drawn under
            the run's seed.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: `lora`, `dora` or `canonical_lora`.
        alpha: the section's `alpha`; `absent` leaves it to the stack's default, `none` sets None.
        dtype: the section's `dtype`; `absent` leaves it out, `none` sets None.
        init_method: the section's `lora_A_init_method` (`xavier`, `normal`, `kaiming`, `zero`); `absent` leaves it out.
    """
    section = _peft.lora_section(peft, alpha=alpha, dtype=dtype, lora_A_init_method=init_method)
    engine = _engine.construct_engine(run, hf_config, model={"lora": section})
    engine._build_tf_config()
    run.comes_from("peft", type(engine.peft_cls))
    modules = _engine.build_module(run, engine)
    parameters = _wrap.described_parameters(modules)
    return {
        "order": list(parameters),
        "parameters": parameters,
        "wrappers": [_wrap.wrappers(chunk) for chunk in modules],
        "peft": _peft.described_peft(engine.peft_cls),
        "adapters": _peft.adapters(modules),
    }


@probe(enters=(_GET_PEFT_CLS,), returns=("peft",))
def peft_object(
    run: Run,
    *,
    hf_config: str = "qwen3",
    peft: str = "lora",
    rank: int = _peft.RANK,
    alpha: int | str = "absent",
    dtype: str = "absent",
) -> Mapping[str, Any]:
    """The PEFT object that verl's engine makes of a `lora` section; no model is built.

    Returns:
        peft: class and public fields of the object; None where the stack makes none.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: the section's `type`; an unknown one is worth asking about.
        rank: the section's `rank`; 0 switches PEFT off.
        alpha: the section's `alpha`; `absent` leaves it to the stack's default, `none` sets None.
        dtype: the section's `dtype`; `absent` leaves it out, `none` sets None.
    """
    section = _peft.lora_section(peft, rank=rank, alpha=alpha, dtype=dtype)
    engine = _engine.construct_engine(run, hf_config, model={"lora": section})
    engine._build_tf_config()
    run.comes_from("peft", type(engine.peft_cls))
    return {"peft": _peft.described_peft(engine.peft_cls)}
