"""Faults seeded into what verl and Megatron-Bridge do with adapters, inside a worker, on the new side alone.

With each fault every adapter probe runs once, one after the other in one rank; exactly those that the fault names must
differ. What a probe reads was written by its own side, without a fault.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.observe import Run
from harness.observe.fault import Change, is_new, seed_fault
from harness.probes import probe
from harness.probes._models import choice
from harness.probes.registry import find_probe

CASES: dict[str, Mapping[str, Any]] = {
    "peft_fields": {"peft": "lora"},
    "adapter_path": {"given": "dictconfig"},
    "adapter_load": {},
    "adapter_checkpoint": {},
    "adapter_resume": {},
    "adapter_export": {},
    "exported_adapter": {},
    "peft_hook": {"hf_config": "qwen3_moe", "value_model": True},
}
"""A shipped probe → parameters of a case. Where its hooks come from the last one says for all."""

PRELOAD = tuple(dict.fromkeys(name for shipped in CASES for name in find_probe(shipped).preload))

_CREATE_PEFT = "megatron.bridge.peft.utils:create_peft"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        place: the upstream function that is replaced, `module:name`.
        change: what stands there.
        shows: globs over differences, each of which must be met. They begin with the cases that must differ, and no
            other case may.
    """

    name: str
    place: str
    change: Change
    shows: tuple[str, ...]


@probe(returns=tuple(CASES), reads="adapter_checkpoint")
def every_case(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """What each of `CASES` gives, with a fault in upstream's code on the new side.

    Args:
        fault: name of one of `FAULTS`, or `none`.
    """
    seeded: Fault | None = choice("fault", fault, {"none": None} | {item.name: item for item in FAULTS})
    if seeded and is_new(run):
        seed_fault(run, seeded.place, seeded.change)
    return {shipped: find_probe(shipped).function(run, **given) for shipped, given in CASES.items()}


@probe(returns=("refusal",), reads="adapter_checkpoint")
def export_alone(run: Run, *, refused: bool = True) -> Mapping[str, Any]:
    """Whether a resume from an export alone is refused by name; the new side has lost the refusal if not `refused`."""
    if not refused and is_new(run):
        name = "MegatronCheckpointManager._raise_for_unsupported_peft_checkpoint_layout"
        seed_fault(run, f"{_MANAGER}:{name}", _skipped)
    return {"refusal": find_probe("adapter_resume").function(run, without="dist_ckpt")}


@probe(returns=("changed.*",))
def each_field_changed(run: Run, *, peft: str) -> Mapping[str, Any]:
    """A PEFT object as often as it has fields: on the new side `create_peft` gives that one another value."""
    create = run.upstream(_CREATE_PEFT)
    made = find_probe("peft_object").function
    changed = {}
    for name, value in made(run, peft=peft)["peft"]["fields"].items():
        run.upstream("megatron.bridge.peft.utils").create_peft = create
        if is_new(run):
            seed_fault(run, _CREATE_PEFT, _with(name, _other(value)))
        changed[name] = made(run, peft=peft)["peft"]["fields"]
    return {"changed": changed}


def _with(name: str, value: Any) -> Change:
    def change(create: Change, *arguments: Any, **keywords: Any) -> Any:
        made = create(*arguments, **keywords)
        setattr(made, name, value)
        return made

    return change


def _other(value: Any) -> Any:
    import torch

    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case torch.dtype():
            return torch.float64
        case list():
            return [*value, "other"]
        case set():
            return value | {"other"}
        case dict() | enum.Enum() | None:
            return "other"
    return f"{value}?"


# What the faults do ---------------------------------------------------------------------------------------------------


def _skipped(_original: Change, *_arguments: Any, **_keywords: Any) -> None:
    return None


def _result(change: Callable[[Any], Any]) -> Change:
    return lambda original, *arguments, **keywords: change(original(*arguments, **keywords))


def _without_exclusions(create: Change, config: Mapping[str, Any], *arguments: Any, **keywords: Any) -> Any:
    kept = {name: value for name, value in config.items() if name != "exclude_modules"}
    return create(kept, *arguments, **keywords)


def _twice_as_large(init: Change, adapter: Any, *arguments: Any, **keywords: Any) -> None:
    init(adapter, *arguments, **keywords)
    adapter.linear_in.weight.data.mul_(2)


def _value_head_first(register: Change, provider: Any, hook: Any, *arguments: Any, **keywords: Any) -> None:
    if "value_head" in hook.__qualname__:
        keywords["prepend"] = True
    register(provider, hook, *arguments, **keywords)


def _rows_swapped(state: dict[str, Any]) -> dict[str, Any]:
    """Two rows of one adapter matrix change places: same shapes, same sums."""
    weight = state["model"][_IN_LAYER_1]
    weight[[0, 1]] = weight[[1, 0]]
    return state


def _one_left_out(save: Change, sharded_state_dict: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
    model = sharded_state_dict["model"]
    kept = {name: entry for name, entry in model.items() if not name.endswith(_MATRIX)}
    return save({**sharded_state_dict, "model": kept}, *arguments, **keywords)


def _without_first(weights: Any) -> Any:
    remaining = iter(weights)
    next(remaining)
    return remaining


def _alpha_doubled(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "lora_alpha": config["lora_alpha"] * 2}


_BRIDGE = "megatron.bridge.models.conversion"
_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager"
_MATRIX = ".mlp.linear_fc2.adapter.linear_in.weight"
_IN_LAYER_1 = f"decoder.layers.1{_MATRIX}"

FAULTS = (
    Fault(
        "excluded modules are forgotten",
        _CREATE_PEFT,
        _without_exclusions,
        ("peft_fields.by_field.exclude_modules=*.exclude_modules*",),
    ),
    Fault(
        "adapters of another scale of initial weights",
        "megatron.bridge.peft.utils:ParallelLinearAdapter.__init__",
        _twice_as_large,
        ("peft_hook/adapters/*.linear_in.weight",),
    ),
    Fault(
        "the value head comes before the adapters",
        "megatron.bridge.models.model_provider:ModelProviderMixin.register_pre_wrap_hook",
        _value_head_first,
        ("provenance.pre_wrap_hook.*", "peft_hook.trained*", "peft_hook.parameters.output_layer.*.requires_grad"),
    ),
    Fault(
        "no adapter is loaded",
        "megatron.bridge.peft.utils:load_peft_adapter_checkpoint",
        _skipped,
        ("adapter_path/adapters/*", "adapter_path.restored", "adapter_load/adapters/*", "adapter_load.adapter.*"),
    ),
    Fault(
        "two rows swapped in a resumed adapter",
        f"{_MANAGER}:load_dist_checkpointing",
        _result(_rows_swapped),
        (f"adapter_resume.adapter.{_IN_LAYER_1}", f"adapter_resume/adapters/{_IN_LAYER_1}"),
    ),
    Fault(
        "an adapter matrix left out of the checkpoint",
        f"{_MANAGER}:save_dist_checkpointing",
        _one_left_out,
        (f"adapter_checkpoint.stored.dist_ckpt.*{_MATRIX}*",),
    ),
    Fault(
        "an adapter matrix left out of the export",
        f"{_BRIDGE}.auto_bridge:AutoBridge.export_adapter_weights",
        _result(_without_first),
        (
            "adapter_checkpoint.stored.huggingface.*",
            "adapter_export.stored.huggingface.*",
            "adapter_export/exported/*",
            "exported_adapter.actual.exported",
        ),
    ),
    Fault(
        "another alpha in the config of the export",
        f"{_BRIDGE}.peft_bridge:build_adapter_config_dict",
        _result(_alpha_doubled),
        ("adapter_export.config.lora_alpha", "exported_adapter.actual.exported"),
    ),
)
