"""A probe of the fuzzers: the PEFT object that verl makes of any `lora` section, in any form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes._field_types import described_fields
from harness.probes._readings import attempt, same, text_of
from harness.probes._values import Built
from harness.probes.adapter_load import PRELOAD as PRELOAD
from harness.probes.config_values import converse
from harness.probes.registry import probe

_GET_PEFT_CLS = "verl.workers.config.megatron_peft:get_peft_cls"
_CLASSES = ("lora:LoRA", "dora:DoRA", "canonical_lora:CanonicalLoRA", "lora:VLMLoRA")
_RENAMED = {"dim": "rank", "lora_dtype": "dtype"}
"""Field of a PEFT object → the key of a section that it is read from, where that is called otherwise."""

Reader = Callable[..., Any]


@probe(enters=(_GET_PEFT_CLS,), returns=("ended",))
def peft_sections(run: Run, *, listen: str) -> Mapping[str, Any]:
    """Answers a described model config with the PEFT object that `get_peft_cls` makes of its `lora` section.

    A question is `{"config": description, "fault": None or one of FAULTS}`; see `harness.probes._readings.attempt`.
    Fates are the `class` and its fields, `as given` or as they are. None is answered with the `fields` of the classes.
    """
    import torch

    get_peft_cls = run.upstream(_GET_PEFT_CLS)
    classes = [run.upstream(f"megatron.bridge.peft.{name}") for name in _CLASSES]
    run.stand_in("bridge and provider", "objects", "get_peft_cls asks only whether they are there")
    there = object()

    def read(reader: Reader, built: Built) -> dict[str, str]:
        config = built.value
        made = reader(config, bridge=there, provider=there, dtype=torch.bfloat16)
        kind = type(made).__name__
        fields = _fields(made, config.lora) if dataclasses.is_dataclass(made) else {}
        return {"class": kind, **{f"{kind}.{name}": fate for name, fate in fields.items()}}

    def answer(question: Mapping[str, Any] | None) -> dict[str, Any]:
        if question is None:
            return {"fields": [described_fields(kind) for kind in classes]}
        reader = FAULTS[question["fault"]](get_peft_cls) if question["fault"] else get_peft_cls
        return attempt(lambda built: read(reader, built), question["config"])

    converse(listen, answer)
    return {"ended": True}


def _fields(made: Any, section: Any) -> dict[str, str]:
    given = _given(section)
    names = [field.name for field in dataclasses.fields(made) if field.init]
    return {name: _fate(getattr(made, name), given, _RENAMED.get(name, name)) for name in names}


def _given(section: Any) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf

    if not isinstance(section, DictConfig):
        return dict(section)
    # What is missing, or refers to nothing, is no matter of ours.
    return {str(name): OmegaConf.select(section, name, throw_on_resolution_failure=False) for name in section}


def _fate(found: Any, given: Mapping[str, Any], name: str) -> str:
    return "as given" if name in given and same(found, given[name]) else text_of(found)


# Faults: from verl's reader to one that goes wrong. -------------------------------------------------------------------


def _without_alpha(read: Reader) -> Reader:
    def faulty(config: Any, **more: Any) -> Any:
        made = read(config, **more)
        if made is not None:
            made.alpha = 1
        return made

    return faulty


def _any_form(read: Reader) -> Reader:
    def faulty(config: Any, **more: Any) -> Any:
        return read(config, **more) if hasattr(getattr(config, "lora", None), "get") else None

    return faulty


def _plain_dicts_alone(read: Reader) -> Reader:
    def faulty(config: Any, **more: Any) -> Any:
        if not isinstance(getattr(config, "lora", {}), dict):
            raise TypeError("a section is a dict")
        return read(config, **more)

    return faulty


def _never_missing(read: Reader) -> Reader:
    def faulty(config: Any, **more: Any) -> Any:
        if not hasattr(config, "lora"):
            raise KeyError("lora")
        return read(config, **more)

    return faulty


def _any_type(read: Reader) -> Reader:
    def faulty(config: Any, **more: Any) -> Any:
        try:
            return read(config, **more)
        except ValueError:
            return None

    return faulty


def _takes_out(read: Reader) -> Reader:
    def faulty(config: Any, **more: Any) -> Any:
        made = read(config, **more)
        if isinstance(config.lora, dict):
            config.lora.pop("type", None)
        return made

    return faulty


FAULTS: Mapping[str, Callable[[Reader], Reader]] = {
    "alpha is not read": _without_alpha,
    "a section of no form is none": _any_form,
    "a DictConfig is refused": _plain_dicts_alone,
    "a model without a section is refused": _never_missing,
    "an unknown type is no PEFT": _any_type,
    "a key is taken out of the section": _takes_out,
}
