"""The PEFT object that a `lora` section makes: `get_peft_cls` before, Megatron-Bridge's `create_peft` after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _peft
from harness.probes.registry import probe

PRELOAD = _peft.PRELOAD


@probe(enters=("verl.workers.config.megatron_peft:get_peft_cls",), returns=("peft",))
def peft_object(
    run: Run, *, peft: str, fields: str = "", shipped: bool = False, hf_config: str = "qwen3"
) -> Mapping[str, Any]:
    """The PEFT object that verl's engine makes of a `lora` section; no model is built.

    Returns:
        peft: class and public fields of the object; None where the stack makes none.

    Args:
        peft: the section's `type`; an unknown one is worth asking about.
        fields: further fields of the section, as `alpha=16;dropout=0.5`: JSON or text, `none` for None, `absent` to
            leave out what it would have. Rank 0 switches PEFT off.
        shipped: start from the section of the trainer config that this verl ships, which names every field.
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
    """
    section = _peft.shipped_section() if shipped else {}
    section |= _peft.lora_section(peft, fields)
    engine = _engine.construct_engine(run, hf_config, model={"lora": section})
    engine._build_tf_config()
    run.comes_from("peft", type(engine.peft_cls))
    return {"peft": _peft.described_peft(engine.peft_cls)}
