"""LoRA sections of a model config, and the adapters they leave in a model."""

from __future__ import annotations

from typing import Any

from harness.probes import _wrap

PRELOAD = (
    *_wrap.PRELOAD,
    "megatron.bridge.peft.canonical_lora",
    "megatron.bridge.peft.dora",
    "megatron.bridge.peft.lora",
    "verl.utils.megatron_peft_utils",
)

RANK = 8
"""Small enough for the tiny models, and divisible by any tensor parallel size used here."""


def lora_section(peft: str, **fields: Any) -> dict[str, Any]:
    """What a user writes under `model.lora`. A field given as `absent` is left out, one given as `none` is None."""
    given = {"type": peft, "rank": RANK} | fields
    return {name: None if value == "none" else value for name, value in given.items() if value != "absent"}


def adapters(modules: list[Any]) -> dict[str, Any]:
    """A copy of every adapter parameter by name: those Megatron-Bridge puts below a module called `adapter`."""
    return {
        name: parameter.detach().clone()
        for name, parameter in _wrap.named_parameters(modules)
        if ".adapter." in name or name.endswith(".weight_magnitude")
    }


def described_peft(peft: Any) -> dict[str, Any] | None:
    """Class and public fields of a PEFT object; None where the stack made no object."""
    from dataclasses import fields

    if peft is None:
        return None
    public = [field.name for field in fields(peft) if not field.name.startswith("_")]
    return {"class": type(peft).__qualname__, "fields": {name: getattr(peft, name) for name in public}}
