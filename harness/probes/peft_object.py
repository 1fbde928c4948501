"""The PEFT object that a `lora` section makes: `get_peft_cls` before, Megatron-Bridge's `create_peft` after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _peft
from harness.probes._models import choice
from harness.probes.registry import probe

PRELOAD = _peft.PRELOAD

_GET_PEFT_CLS = "verl.workers.config.megatron_peft:get_peft_cls"

_EVERY_TYPE = (
    "rank=16",
    "alpha=16",
    "alpha=null",
    "dropout=0.25",
    "lora_A_init_method=kaiming",
    "lora_B_init_method=normal",
    "dtype=bf16",
    "dtype=fp32",
    "dtype=null",
    "lora_dtype=float32",
    "a2a_experimental=true",
    'target_modules=["linear_proj"]',
    'exclude_modules=["linear_fc2"]',
    "normalize_moe_lora=true",
    "share_expert_adapters=false",
    "no_such_field=1",
)
_POST, _NULL = "dropout_position=post", "target_modules=null"
_FREEZE = ("freeze_vision_model=false", "freeze_vision_projection=false", "freeze_language_model=false")
FIELDS = {
    "lora": (*_EVERY_TYPE, _POST, _NULL, *_FREEZE),
    "vlm_lora": (*_EVERY_TYPE, _POST, _NULL, *_FREEZE),
    "canonical_lora": (*_EVERY_TYPE, _POST),
    "dora": (*_EVERY_TYPE, _NULL),
}
"""Type → its optional keys, each with a value that is not the default. What a type refuses is asked for alone."""


@probe(enters=(_GET_PEFT_CLS,), returns=("peft",))
def peft_object(
    run: Run, *, peft: str, fields: str = "", shipped: bool = False, hf_config: str = "qwen3"
) -> Mapping[str, Any]:
    """The PEFT object that verl's engine makes of a `lora` section; no model is built.

    Returns:
        peft: class and public fields of the object; None where the stack makes none.

    Args:
        peft: the section's `type`; an unknown one is worth asking about.
        fields: further fields of the section, as `alpha=16;dropout=0.5`: JSON or text; `absent` leaves one out that it
            would have. Rank 0 switches PEFT off.
        shipped: start from the section of the trainer config that this verl ships, which names every field.
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
    """
    section = _peft.shipped_section() if shipped else {}
    return {"peft": _described(run, hf_config, section | _peft.lora_section(peft, fields))}


@probe(enters=(_GET_PEFT_CLS,), returns=("by_field.*.class", "by_field.*.fields"))
def peft_fields(run: Run, *, peft: str, hf_config: str = "qwen3") -> Mapping[str, Any]:
    """What `peft_object` gives for each optional key of the section, one at a time: does it arrive, and nothing else?

    Returns:
        by_field: the entry of `FIELDS` → class and public fields of the object.

    Args:
        peft: the section's `type`: `lora`, `vlm_lora`, `canonical_lora` or `dora`.
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
    """
    keys: tuple[str, ...] = choice("peft", peft, FIELDS)
    return {"by_field": {key: _described(run, hf_config, _peft.lora_section(peft, key)) for key in keys}}


def _described(run: Run, hf_config: str, section: dict[str, Any]) -> dict[str, Any] | None:
    engine = _engine.construct_engine(run, hf_config, model={"lora": section})
    engine._build_tf_config()
    run.comes_from("peft", type(engine.peft_cls))
    return _peft.described_peft(engine.peft_cls)
