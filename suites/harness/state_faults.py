"""Faults seeded into what upstream does with states and weights, inside a worker, on the new side alone.

Each probe here is a shipped one that first replaces an upstream function. A probe that reads files reads those that its
own side wrote without a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upstream_faults import Fault, Faulty, Original, _is_new, _result, _seeded

from harness.observe import Run
from harness.probes import probe
from harness.probes._models import choice
from harness.probes.registry import find_probe

STATE, KEYS = find_probe("checkpoint_state"), find_probe("model_state_key")
WRITTEN, LOADED = find_probe("fsdp_checkpoint"), find_probe("fsdp_load")
QAT_STATE, NAMES, EXPORT = find_probe("qat_state"), find_probe("qat_names"), find_probe("qat_export")
HF_EXPORT = find_probe("hf_export")
PRELOAD = (*STATE.preload, *WRITTEN.preload, *QAT_STATE.preload, *HF_EXPORT.preload)


def _apply(run: Run, name: str) -> None:
    fault: Fault | None = choice("fault", name, {"none": None} | {fault.name: fault for fault in FAULTS})
    if fault and _is_new(run):
        fault.change(run)


@probe(enters=STATE.evidence.enters, returns=STATE.evidence.returns)
def faulty_state(run: Run, *, fault: str = "none", through: str = "save", contents: str = "model") -> Mapping[str, Any]:
    """`checkpoint_state` with a fault."""
    _apply(run, fault)
    surplus = "model_ema" if through == "generate_state_dict" else "none"
    return STATE.function(run, through=through, contents=contents, surplus=surplus)


@probe(enters=WRITTEN.evidence.enters, returns=WRITTEN.evidence.returns, tensors=WRITTEN.evidence.tensors)
def faulty_write(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`fsdp_checkpoint` with a fault."""
    _apply(run, fault)
    return WRITTEN.function(run, contents="model")


@probe(enters=LOADED.evidence.enters, returns=LOADED.evidence.returns, reads=WRITTEN.name)
def faulty_load(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`fsdp_load` with a fault."""
    _apply(run, fault)
    return LOADED.function(run)


@probe(enters=QAT_STATE.evidence.enters, returns=QAT_STATE.evidence.returns)
def faulty_qat_state(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`qat_state` with a fault."""
    _apply(run, fault)
    return QAT_STATE.function(run)


@probe(enters=NAMES.evidence.enters, returns=NAMES.evidence.returns)
def faulty_names(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`qat_names` with a fault."""
    _apply(run, fault)
    return NAMES.function(run)


@probe(enters=EXPORT.evidence.enters, returns=EXPORT.evidence.returns, tensors=EXPORT.evidence.tensors)
def faulty_export(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`qat_export` with a fault."""
    _apply(run, fault)
    return EXPORT.function(run, hf_config="qwen3")


@probe(enters=HF_EXPORT.evidence.enters, returns=HF_EXPORT.evidence.returns, tensors=HF_EXPORT.evidence.tensors)
def faulty_hf_export(run: Run, *, fault: str = "none") -> Mapping[str, Any]:
    """`hf_export` with a fault."""
    _apply(run, fault)
    return HF_EXPORT.function(run)


# What the faults do ---------------------------------------------------------------------------------------------------

_FC2 = "mlp.linear_fc2.weight"


def _another_replica(state: dict[str, Any]) -> dict[str, Any]:
    for name, entry in state.items():
        if name.endswith(_FC2):
            entry.replica_id = (0, 0, 1)
    return state


def _beginning_with_model(_run: Run, _original: Original, key: str) -> bool:
    return key.startswith("model")


def _gate_and_up_swapped(state: dict[str, Any]) -> dict[str, Any]:
    """The halves of a gated layer change names: same keys, same shapes."""
    model = state["model"]
    for name in [name for name in model if name.endswith("layers.1.mlp.linear_fc1.weight_w")]:
        other = name[:-1] + "v"
        model[name], model[other] = model[other], model[name]
    return state


def _one_key_skipped(_run: Run, original: Original, **keywords: Any) -> Any:
    """Load everything but one key, without a word."""
    state = keywords["sharded_state_dict"]
    [name] = [name for name in state["model"] if name.endswith("decoder.final_layernorm.weight")]
    kept = state["model"][name].to_local().clone()
    answer = original(**keywords)
    state["model"][name].to_local().copy_(kept)
    return answer


def _halves_at_each_others_place(factory: Any) -> Any:
    build = factory.build_fn

    def built(*arguments: Any) -> list[Any]:
        first, second = build(*arguments)
        first.global_offset, second.global_offset = second.global_offset, first.global_offset
        return [first, second]

    factory.build_fn = built
    return factory


def _next_expert(_run: Run, original: Original, *arguments: Any, **keywords: Any) -> str:
    name: str = original(*arguments, **keywords)
    return name.replace(".local_experts.3.", ".local_experts.4.")


def _doubled_scale(_run: Run, original: Original, exporter: Any, name: str, weight: Any, meta: Any) -> Any:
    for each, tensor in original(exporter, name, weight, meta):
        yield each, tensor * 2 if each.endswith("layers.1.mlp.down_proj.weight_scale_2") else tensor


def _rows_swapped(_run: Run, original: Original, *arguments: Any, **keywords: Any) -> Any:
    for name, tensor in original(*arguments, **keywords):
        if name == "model.layers.1.mlp.down_proj.weight":
            tensor = tensor[[1, 0, *range(2, len(tensor))]]
        yield name, tensor


def _fault(name: str, place: str, faulty: Faulty, probe: str, *shows: str, **parameters: str) -> Fault:
    return _seeded(name, place, faulty, *shows, probe=probe, parameters=parameters)


_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager"
_CHECKPOINTING = "megatron.bridge.training.checkpointing"
_MODEL_BRIDGE = "megatron.bridge.models.conversion.model_bridge"
_MLP = "megatron.core.transformer.mlp"

FAULTS = (
    _fault(
        "another replica id",
        f"{_MLP}:MLP.sharded_state_dict",
        _result(_another_replica),
        "faulty_state",
        f"sections.model.decoder.layers.?.{_FC2}.replica_id*",
    ),
    _fault(
        "every key that begins with model is one of a chunk",
        f"{_MANAGER}._is_model_state_key",
        _beginning_with_model,
        "faulty_state",
        "sections.model_ema",
        through="generate_state_dict",
        contents="optimizer",
    ),
    _fault(
        "halves of a gated layer swapped",
        f"{_CHECKPOINTING}:preprocess_fsdp_dtensor_state_dict",
        _result(_gate_and_up_swapped),
        "faulty_write",
        "values/model.module.decoder.layers.1.mlp.linear_fc1.weight_?",
    ),
    _fault(
        "a key not loaded",
        f"{_CHECKPOINTING}:load_fsdp_dtensor_checkpoint",
        _one_key_skipped,
        "faulty_load",
        "kept*",
        "restored*",
    ),
    _fault(
        "halves at each other's place",
        f"{_MLP}:apply_swiglu_sharded_factory",
        _result(_halves_at_each_others_place),
        "faulty_qat_state",
        "sections*linear_fc1.weight.builds*global_offset*",
    ),
    _fault(
        "an expert that does not exist",
        f"{_MODEL_BRIDGE}:_megatron_local_name_to_global",
        _next_expert,
        "faulty_names",
        "names.*local_experts.3.*",
    ),
    _fault(
        "a scale of twice its size",
        "verl.utils.modelopt.qat_weight_exporter:QATWeightExporter._quantize_nvfp4",
        _doubled_scale,
        "faulty_export",
        "exported/model.layers.1.mlp.down_proj.weight_scale_2",
    ),
    _fault(
        "two rows swapped in the export",
        f"{_MODEL_BRIDGE}:MegatronModelBridge.stream_weights_megatron_to_hf",
        _rows_swapped,
        "faulty_hf_export",
        "changed*",
    ),
)
