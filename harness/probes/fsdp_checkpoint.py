"""Checkpoints of Megatron-FSDP: DTensors, written and read by PyTorch's distributed checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import MissingSymbol, Run, Unavailable
from harness.probes import _checkpoint, _fsdp
from harness.probes.registry import probe

PRELOAD = _fsdp.PRELOAD

_BRIDGE = "megatron.bridge.training.checkpointing"
_FUNCTIONS = (
    "_load_fsdp_dtensor_base_checkpoint",
    "load_fsdp_dtensor_checkpoint",
    "preprocess_fsdp_dtensor_state_dict",
    "save_fsdp_dtensor_checkpoint",
)


@probe(returns=("signatures",))
def fsdp_functions(run: Run) -> Mapping[str, Any]:
    """Which functions for FSDP checkpoints Megatron-Bridge has, and how they are called.

    Returns:
        signatures: by name of a function, the parameters with kind and default; None where this pin has no such
            function.
    """
    return {"signatures": {name: _signature(run, f"{_BRIDGE}:{name}") for name in _FUNCTIONS}}


@probe(
    enters=(_fsdp.WRAPPER, f"{_BRIDGE}:preprocess_fsdp_dtensor_state_dict"),
    returns=("entries", "files"),
    tensors=("values/model.*",),
)
def fsdp_checkpoint(
    run: Run,
    *,
    hf_config: str = "qwen3",
    strategy: str = "optim_grads_params",
    contents: str = "model+optimizer+extra",
    missing: str = "none",
    fp8: bool = False,
) -> Mapping[str, Any]:
    """What a model wrapped in Megatron-FSDP writes after one training step.

    Engine, model, optimizer and checkpoint manager are verl's, with `use_megatron_fsdp`. The parameters get their
    values (a function of name and index) in a pre-wrap hook, before they become DTensors.

    Returns:
        files: relative names of all files of the checkpoint.
        entries: what the written metadata says, by key: kind, dtype, size, and offset and size of each chunk.
        values: the tensors in the files, by key, each of its global shape, read back by PyTorch alone.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        strategy: Megatron-FSDP's `data_parallel_sharding_strategy`.
        contents: what of `model`, `optimizer`, `extra` to save, joined by `+`. With several ranks leave the optimizer
            out: see `fsdp_optimizer_state` among the checks of one stack.
        missing: a key of the model's section that is taken away just before PyTorch writes it.
        fp8: train in FP8, whose extra states the preprocessing drops.

    Raises:
        Unavailable: FP8 on the cpu lane.
    """
    if fp8 and run.lane.name == "cpu":
        raise Unavailable("FP8 needs Transformer Engine and a GPU of compute capability 8.9; the cpu lane has neither")
    engine = _fsdp.trained_engine(run, hf_config, strategy=strategy, contents=contents, filled=True, fp8=fp8)
    if missing != "none":
        _fsdp.leave_out(run, missing)
    folder = _checkpoint.save(engine)
    run.upstream("torch.distributed:barrier")()
    return {
        "files": {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()},
        "entries": dict(_entries(folder)),
        "values": _fsdp.values(folder),
    }


@probe(
    enters=(
        f"{_BRIDGE}:load_fsdp_dtensor_checkpoint | {_BRIDGE}:_load_fsdp_dtensor_base_checkpoint",
        _fsdp.WRAPPER,
    ),
    returns=("restored", "kept"),
    reads="fsdp_checkpoint",
)
def fsdp_load(
    run: Run,
    *,
    hf_config: str = "qwen3",
    strategy: str = "optim_grads_params",
    contents: str = "model+optimizer+extra",
    loads: str = "all",
    missing: str = "none",
    strict: str = "absent",
) -> Mapping[str, Any]:
    """An FSDP checkpoint loaded into a model of other weights, which is saved again: what came back?

    The second model, initialised under the run's seed, trains for one step of its own, loads the files and saves what
    it then has. The two checkpoints are compared key by key, so that a key which kept its own value shows, whether or
    not there was an error.

    Returns:
        restored: tensors with the values of the files, bit for bit.
        kept: tensors with other values than the files hold.
        absent: tensors of the second model that the files do not have: they kept their values too.
        lost: tensors of the files that the second model does not have.

    Args:
        hf_config: as `fsdp_checkpoint`.
        strategy: as `fsdp_checkpoint`; both models have the same.
        contents: as `fsdp_checkpoint`; the second model saves the same.
        loads: what of the contents to load, joined by `+`, or `all` of them.
        missing: as `fsdp_checkpoint`: a key that the files do not have.
        strict: `strict_fsdp_dtensor_load` of the checkpoint config, which verl's config class does not have: `absent`,
            or set by hand to `true` or `false`.
    """
    loaded = contents if loads == "all" else loads
    engine = _fsdp.trained_engine(run, hf_config, strategy=strategy, contents=contents, loads=loaded, filled=False)
    _fsdp.demand(run, engine, strict)
    given = run.written / "checkpoint"
    engine.checkpoint_mananager.load_checkpoint(str(given))
    again = _checkpoint.save(engine)
    run.upstream("torch.distributed:barrier")()
    return _fsdp.compared(_fsdp.values(given), _fsdp.values(again))


def _signature(run: Run, reference: str) -> dict[str, str] | None:
    try:
        parameters = inspect.signature(run.upstream(reference)).parameters
    except MissingSymbol:
        return None
    return {
        name: f"{each.kind.description}{'' if each.default is each.empty else f', default {each.default!r}'}"
        for name, each in parameters.items()
    }


def _entries(folder: Path) -> Iterator[tuple[str, Any]]:
    """Key and metadata of everything in a checkpoint."""
    for reader in _fsdp.readers(folder):
        for key, entry in reader.read_metadata().state_dict_metadata.items():
            said: dict[str, Any] = {"kind": type(entry).__name__}
            if hasattr(entry, "chunks"):
                chunks = [{"offset": list(chunk.offsets), "size": list(chunk.sizes)} for chunk in entry.chunks]
                said |= {"dtype": entry.properties.dtype, "size": list(entry.size), "chunks": chunks}
            yield key, said
