"""Faults seeded into what verl and Megatron-Bridge do with adapters, inside a worker, on the new side alone.

Each probe here is a shipped one that first replaces an upstream function. A probe that reads files reads those that its
own side wrote without a fault.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from upstream_faults import Fault, Original, _after, _is_new, _result, _seeded, _skipped

from harness.observe import Run
from harness.probes import probe
from harness.probes._models import choice
from harness.probes.registry import find_probe

HOOK, OBJECT, PATH = find_probe("peft_hook"), find_probe("peft_object"), find_probe("adapter_path")
LOAD, SAVE, RESUME = find_probe("adapter_load"), find_probe("adapter_checkpoint"), find_probe("adapter_resume")
EXPORT, AGREES = find_probe("adapter_export"), find_probe("exported_adapter")
PRELOAD = (*HOOK.preload, *RESUME.preload, *AGREES.preload)

_CREATE_PEFT = "megatron.bridge.peft.utils:create_peft"


@probe(returns=("changed.*",))
def each_field_changed(run: Run, *, peft: str) -> Mapping[str, Any]:
    """`peft_object` once for every field of the object: on the new side `create_peft` gives that one another value."""
    create = run.upstream(_CREATE_PEFT)
    fields = OBJECT.function(run, peft=peft)["peft"]["fields"]
    changed = {}
    for name, value in fields.items():
        utils = run.upstream("megatron.bridge.peft.utils")
        utils.create_peft = _with(create, name, _other(value)) if _is_new(run) else create
        changed[name] = OBJECT.function(run, peft=peft)["peft"]["fields"]
    return {"changed": changed}


def _with(create: Original, name: str, value: Any) -> Original:
    def replaced(*arguments: Any, **keywords: Any) -> Any:
        made = create(*arguments, **keywords)
        setattr(made, name, value)
        return made

    return replaced


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


def _apply(run: Run, name: str) -> None:
    fault: Fault | None = choice("fault", name, {"none": None} | {fault.name: fault for fault in FAULTS})
    if fault and _is_new(run):
        fault.change(run)


@probe(enters=HOOK.evidence.enters, returns=HOOK.evidence.returns)
def faulty_hook(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`peft_hook` with a fault."""
    _apply(run, fault)
    return HOOK.function(run)


@probe(enters=PATH.evidence.enters, returns=PATH.evidence.returns, reads=SAVE.name)
def faulty_path(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`adapter_path` with a fault."""
    _apply(run, fault)
    return PATH.function(run)


@probe(enters=LOAD.evidence.enters, returns=LOAD.evidence.returns, reads=SAVE.name)
def faulty_load(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`adapter_load` with a fault."""
    _apply(run, fault)
    return LOAD.function(run)


@probe(enters=RESUME.evidence.enters, returns=RESUME.evidence.returns, reads=SAVE.name)
def faulty_resume(run: Run, *, fault: str = "none", without: str = "absent") -> Mapping[str, Any]:
    """`adapter_resume` with a fault."""
    _apply(run, fault)
    return RESUME.function(run, without=without)


@probe(enters=SAVE.evidence.enters, returns=SAVE.evidence.returns)
def faulty_save(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`adapter_checkpoint` with a fault."""
    _apply(run, fault)
    return SAVE.function(run)


@probe(enters=EXPORT.evidence.enters, returns=EXPORT.evidence.returns)
def faulty_export(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`adapter_export` with a fault."""
    _apply(run, fault)
    return EXPORT.function(run)


@probe(returns=("actual.exported", "actual.merged"))
def faulty_agreement(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """The check `exported_adapter` with a fault, as a probe of two sides."""
    _apply(run, fault)
    return {"actual": AGREES.function(run)["actual"]}


# What the faults do ---------------------------------------------------------------------------------------------------


def _hooks_the_other_way(provider: Any) -> None:
    provider._pre_wrap_hooks.reverse()


def _rows_swapped(state: dict[str, Any]) -> dict[str, Any]:
    """Two rows of one adapter matrix change places: same shapes, same sums."""
    for name, weight in state.get("model", {}).items():
        if name.endswith("layers.1.mlp.linear_fc2.adapter.linear_in.weight"):
            weight[[0, 1]] = weight[[1, 0]]
    return state


def _last_left_out(state: dict[str, Any]) -> dict[str, Any]:
    kept = dict(list(state["model"].items())[:-1])
    return {**state, "model": kept}


def _without_one(weights: Any) -> Any:
    """All exported adapter weights but the first."""
    iterator = iter(weights)
    next(iterator)
    return iterator


def _alpha_doubled(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "lora_alpha": config["lora_alpha"] * 2}


_FILTER = "megatron.bridge.training.checkpointing:apply_peft_adapter_filter_to_state_dict"
_BRIDGE = "megatron.bridge.models.conversion.auto_bridge:AutoBridge"
_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager"
_CONFIG = "megatron.bridge.models.conversion.peft_bridge:build_adapter_config_dict"
_SWAPPED = "decoder.layers.1.mlp.linear_fc2.adapter.linear_in.weight"

FAULTS = (
    _seeded(
        "the base model stays trainable",
        "megatron.bridge.peft.base:PEFT.freeze_model",
        _skipped,
        "parameters.*.requires_grad",
        "trained*",
        also=("peft.fields.params_to_save*",),
        probe="faulty_hook",
    ),
    _seeded(
        "adapters of another scale of initial weights",
        "megatron.bridge.peft.utils:ParallelLinearAdapter.__init__",
        _after(lambda adapter: adapter.linear_in.weight.data.mul_(2)),
        "adapters/*.linear_in.weight",
        probe="faulty_hook",
    ),
    _seeded(
        "hooks in another order",
        "megatron.bridge.models.model_provider:ModelProviderMixin.register_pre_wrap_hook",
        _after(_hooks_the_other_way),
        "provenance.pre_wrap_hook.*",
        also=("*",),
        probe="faulty_hook",
    ),
    _seeded(
        "adapter_path not loaded",
        "megatron.bridge.peft.utils:load_peft_adapter_checkpoint",
        _skipped,
        "loaded",
        "restored",
        "adapters/*",
        probe="faulty_path",
    ),
    _seeded(
        "two rows of a loaded adapter swapped",
        "megatron.core.dist_checkpointing:load",
        _result(_rows_swapped),
        f"adapter.{_SWAPPED}",
        f"adapters/{_SWAPPED}",
        probe="faulty_load",
    ),
    _seeded(
        "two rows swapped in a resumed adapter",
        f"{_MANAGER}:load_dist_checkpointing",
        _result(_rows_swapped),
        f"adapter.{_SWAPPED}",
        f"adapters/{_SWAPPED}",
        probe="faulty_resume",
    ),
    _seeded(
        "an adapter matrix left out of the checkpoint",
        _FILTER,
        _result(_last_left_out),
        "stored.distributed.*",
        probe="faulty_save",
    ),
    _seeded(
        "the refusal of a checkpoint without adapter shards is gone",
        f"{_MANAGER}:MegatronCheckpointManager._raise_for_unsupported_peft_checkpoint_layout",
        _skipped,
        "old raises RuntimeError: Found exported HF PEFT adapter",
        verdict="both_raise",
        probe="faulty_resume",
        parameters={"without": "dist_ckpt"},
    ),
    _seeded(
        "an adapter matrix left out of the export",
        f"{_BRIDGE}.export_adapter_weights",
        _result(_without_one),
        "stored.exported.*",
        "exported/*",
        probe="faulty_export",
    ),
    _seeded(
        "another alpha in the export's config",
        _CONFIG,
        _result(_alpha_doubled),
        "config.lora_alpha",
        probe="faulty_export",
    ),
    _seeded(
        "another alpha in the export's config, seen in the logits",
        _CONFIG,
        _result(_alpha_doubled),
        "actual.exported",
        probe="faulty_agreement",
    ),
)
"""Every fault; `shows` and `also` as in `upstream_faults`."""
