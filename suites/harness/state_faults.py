"""Faults seeded into what upstream does with states and weights, inside a worker, on the new side alone.

A case of each area runs with each fault; exactly the fault's own area must differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.observe import Run
from harness.observe.fault import Change, is_new, seed_fault
from harness.probes import probe
from harness.probes._models import choice
from harness.probes.registry import find_probe

AREAS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "sharded state dicts": ("checkpoint_state", {}),
    "FSDP checkpoints": ("fsdp_checkpoint", {"contents": "model"}),
    "quantized states": ("qat_state", {}),
    "quantized exports": ("qat_export", {"hf_config": "qwen3", "mapped": True}),
    "Hugging Face exports": ("hf_export", {}),
}
"""Area → a shipped probe, and parameters of a case."""

PRELOAD = tuple(dict.fromkeys(name for shipped, _ in AREAS.values() for name in find_probe(shipped).preload))


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        place: the upstream function that is replaced, `module:Class.name` or `module:name`.
        change: what stands there.
        area: the one that must differ.
        shows: globs over differences: each must be met, and there may be no others.
    """

    name: str
    place: str
    change: Change
    area: str
    shows: tuple[str, ...]


@probe(returns=("area", "seen"))
def faulty_state(run: Run, *, area: str, fault: str = "none") -> Mapping[str, Any]:
    """The case of an area, with a fault in upstream's code on the new side.

    Args:
        area: one of `AREAS`.
        fault: name of one of `FAULTS`, or `none`.
    """
    shipped, parameters = choice("area", area, AREAS)
    seeded: Fault | None = choice("fault", fault, {"none": None} | {item.name: item for item in FAULTS})
    if seeded and is_new(run):
        seed_fault(run, seeded.place, seeded.change)
    return {"area": area, "seen": find_probe(shipped).function(run, **parameters)}


@probe(returns=("restored", "kept"), reads="fsdp_checkpoint")
def faulty_load(run: Run, *, skips: bool = True) -> Mapping[str, Any]:
    """`fsdp_load`, whose new side loads one key less if it `skips`, without a word."""
    if skips and is_new(run):
        seed_fault(run, f"{_CHECKPOINTING}:load_fsdp_dtensor_checkpoint", _one_kept)
    return find_probe("fsdp_load").function(run)


def _without_the_scheduler(original: Change, *arguments: Any, **keywords: Any) -> dict[str, Any]:
    state: dict[str, Any] = original(*arguments, **keywords)
    del state["lr_scheduler"]
    return state


def _gate_and_up_swapped(original: Change, *arguments: Any, **keywords: Any) -> Any:
    """The halves of a gated layer change names: same keys, same shapes."""
    state = original(*arguments, **keywords)
    model = state["model"]
    for name in [name for name in model if name.endswith("layers.1.mlp.linear_fc1.weight_w")]:
        other = f"{name[:-1]}v"
        model[name], model[other] = model[other], model[name]
    return state


def _one_kept(original: Change, **keywords: Any) -> Any:
    model = keywords["sharded_state_dict"]["model"]
    [name] = [name for name in model if name.endswith("decoder.final_layernorm.weight")]
    kept = model[name].to_local().clone()
    answer = original(**keywords)
    model[name].to_local().copy_(kept)
    return answer


def _without_maxima(original: Change, *arguments: Any, **keywords: Any) -> dict[str, Any]:
    return {name: entry for name, entry in original(*arguments, **keywords).items() if not name.endswith("_amax")}


def _doubled_scale(original: Change, *arguments: Any) -> Iterator[tuple[str, Any]]:
    for name, tensor in original(*arguments):
        yield name, tensor * 2 if name.endswith("layers.1.mlp.down_proj.weight_scale_2") else tensor


def _rows_swapped(original: Change, source: Any, weights: Any, *arguments: Any, **keywords: Any) -> Any:
    """Two rows of a weight change places on the way into the files."""

    def swapped() -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            rows = [1, 0, *range(2, len(tensor))]
            yield name, tensor[rows] if name == "model.layers.1.mlp.down_proj.weight" else tensor

    return original(source, swapped(), *arguments, **keywords)


_CHECKPOINTING = "megatron.bridge.training.checkpointing"
_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager"

FAULTS = (
    Fault(
        "the scheduler not saved",
        f"{_MANAGER}._build_optimizer_state_dict",
        _without_the_scheduler,
        "sharded state dicts",
        ("seen.sections.lr_scheduler", "seen.folders.optimizer/dist_ckpt"),
    ),
    Fault(
        "halves of a gated layer swapped",
        f"{_CHECKPOINTING}:preprocess_fsdp_dtensor_state_dict",
        _gate_and_up_swapped,
        "FSDP checkpoints",
        ("seen/values/model.module.decoder.layers.1.mlp.linear_fc1.weight_?",),
    ),
    Fault(
        "maxima of quantizers not saved",
        "modelopt.torch.quantization.plugins.megatron:_MegatronParallelLinear.sharded_state_dict",
        _without_maxima,
        "quantized states",
        ("seen.sections*weight_quantizer._amax*",),
    ),
    Fault(
        "a scale of twice its size",
        "verl.utils.modelopt.qat_weight_exporter:QATWeightExporter._quantize_nvfp4",
        _doubled_scale,
        "quantized exports",
        ("seen/exported/model.layers.1.mlp.down_proj.weight_scale_2",),
    ),
    Fault(
        "two rows swapped in the files",
        "megatron.bridge.models.hf_pretrained.state:SafeTensorsStateSource.save_generator",
        _rows_swapped,
        "Hugging Face exports",
        ("seen.changed*",),
    ),
)
