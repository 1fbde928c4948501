"""LoRA sections of a model config, and the adapters they leave in a model."""

from __future__ import annotations

import json
from typing import Any

from harness.probes import _wrap
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import ProbeError

PRELOAD = (
    *_wrap.PRELOAD,
    "megatron.bridge.peft.canonical_lora",
    "megatron.bridge.peft.dora",
    "megatron.bridge.peft.lora",
    "verl.utils.megatron_peft_utils",
)

SAVE_HF_ADAPTER = "megatron.bridge.models.conversion.auto_bridge:AutoBridge.save_hf_adapter"

MODULES = {
    "all": (),
    "attention": ("*self_attention.linear_qkv", "*self_attention.linear_proj"),
    "dense_mlp": ("*mlp.linear_fc1", "*mlp.linear_fc2"),
    "experts": ("*experts.local_experts.*.linear_fc1", "*experts.local_experts.*.linear_fc2"),
    "shared_experts": ("*shared_experts.linear_fc1", "*shared_experts.linear_fc2"),
    "router": ("*router",),
}
"""Kind of module → target modules, where query, key and value, and gate and up, have one adapter; `all` is verl's."""

_SPLIT = {"linear_qkv": ("linear_q", "linear_k", "linear_v"), "linear_fc1": ("linear_fc1_gate", "linear_fc1_up")}
"""What the fused ones are called where each has its own."""

RANK = 8
"""Small enough for the tiny models, and divisible by any tensor parallel size used here."""


def lora_section(peft: str, fields: str = "") -> dict[str, Any]:
    """What a user writes under `model.lora`: type and rank, and `fields`, as `NAME=VALUE;NAME=VALUE`.

    Values are JSON where they can be (`null` is None) and text otherwise; a field that is `absent` is left out. As a
    whole, `absent` is no further fields.

    Raises:
        ProbeError: `fields` is not of that form.
    """
    further = [] if fields == "absent" else fields.split(";")
    given = {"type": peft, "rank": RANK} | dict(_field(text) for text in further if text)
    return {name: value for name, value in given.items() if value != "absent"}


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ProbeError(f"{text!r} is no field of a lora section: write NAME=VALUE;NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def section_on(peft: str, on: str, **fields: Any) -> dict[str, Any]:
    """A `lora` section with adapters on one kind of module.

    Raises:
        ProbeError: there is no kind `on`.
    """
    fused: tuple[str, ...] = choice("on", on, MODULES)
    names = [name for target in fused for name in (_split(target) if peft == "canonical_lora" else [target])]
    return {"type": peft, "rank": RANK} | ({"target_modules": names} if names else {}) | fields


def _split(target: str) -> list[str]:
    start, _, name = target.rpartition(".")
    return [f"{start}.{part}" if start else part for part in _SPLIT.get(name, (name,))]


def shipped_section() -> dict[str, Any]:
    """The `lora` section that a Megatron trainer of this verl has where nobody sets anything."""
    from importlib.resources import files

    from omegaconf import OmegaConf

    text = files("verl.trainer.config").joinpath("_generated_ppo_megatron_trainer.yaml").read_text()
    return dict(OmegaConf.to_container(OmegaConf.create(text).actor_rollout_ref.model.lora))


def adapters(modules: list[Any]) -> dict[str, Any]:
    """A copy of every adapter parameter by name: those Megatron-Bridge puts below a module called `adapter`."""
    return {
        name: parameter.detach().clone()
        for name, parameter in _wrap.named_parameters(modules)
        if ".adapter." in name or name.endswith(".weight_magnitude")
    }


def perturbed(modules: list[Any]) -> dict[str, Any]:
    """Give every parameter its distinct value, then one more; return what each was before that, by name."""
    import torch

    fill_parameters(modules)
    distinct = {name: parameter.detach().clone() for name, parameter in _wrap.named_parameters(modules)}
    with torch.no_grad():
        for _, parameter in _wrap.named_parameters(modules):
            parameter.add_(1)
    return distinct


def loaded(modules: list[Any], distinct: dict[str, Any]) -> dict[str, Any]:
    """What a load made of parameters that were `perturbed`.

    Returns:
        adapter: name → `restored` (bit for bit), `untouched` or `else`, for the adapter's parameters.
        frozen: names of all other parameters that are no longer what they were perturbed to.
        adapters: the adapter's weights by name.
    """
    found = adapters(modules)
    frozen = [
        name
        for name, parameter in _wrap.named_parameters(modules)
        if name not in found and not bool((parameter == distinct[name] + 1).all())
    ]
    return {
        "adapter": {name: _outcome(value, distinct[name]) for name, value in found.items()},
        "frozen": frozen,
        "adapters": found,
    }


def _outcome(value: Any, distinct: Any) -> str:
    if bool((value == distinct).all()):
        return "restored"
    return "untouched" if bool((value == distinct + 1).all()) else "else"


def described_peft(peft: Any) -> dict[str, Any] | None:
    """Class and public fields of a PEFT object; None where the stack made no object."""
    from dataclasses import fields

    if peft is None:
        return None
    public = [field.name for field in fields(peft) if not field.name.startswith("_")]
    return {"class": type(peft).__qualname__, "fields": {name: getattr(peft, name) for name in public}}
