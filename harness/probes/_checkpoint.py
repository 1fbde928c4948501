"""A checkpoint saved by verl's Megatron engine, through its own `initialize` and checkpoint manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine

PRELOAD = (
    *_engine.PRELOAD,
    "megatron.bridge.training.checkpointing",
    "megatron.core.dist_checkpointing.strategies.cached_metadata_filesystem_reader",
    "torch.utils.serialization",
    "verl.utils.checkpoint.megatron_checkpoint_manager",
    "verl.utils.megatron.optimizer",
)
"""What every probe that saves or loads a checkpoint lets the worker import."""

SAVE_CHECKPOINT = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager.save_checkpoint"

FOLDER = Path("checkpoint")
"""Relative to the run's folder, in which `write_model_folder` left the process."""


def initialized_engine(
    run: Run,
    hf_config: str,
    *,
    contents: Sequence[str],
    model: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Any:
    """An engine whose model, optimizer and checkpoint manager stand, and that saves and loads `contents`.

    `model`, `engine` and `fields` are further fields of its configs; see `harness.probes._engine`.
    """
    checkpoint = {"save_contents": list(contents), "load_contents": list(contents)}
    built = _engine.construct_engine(run, hf_config, model=model, engine=engine, checkpoint=checkpoint, fields=fields)
    _engine.initialize(run, built)
    run.comes_from("checkpoint_manager", type(built.checkpoint_mananager))
    return built


def save(engine: Any) -> Path:
    """Let the engine's checkpoint manager save, and return the checkpoint's folder.

    All ranks must call this. The manager's own method is called, because the engine's first moves to a device what lies
    in host memory. Rank 0 writes some files last and alone.
    """
    engine.checkpoint_mananager.save_checkpoint(str(FOLDER), global_step=1)
    return FOLDER


def barrier() -> None:
    """Wait until every rank is here: rank 0 writes some files last and alone."""
    import torch

    torch.distributed.barrier()


def stored_tensors(folder: Path) -> dict[str, dict[str, Any]]:
    """Name, shape and dtype of every tensor of an adapter, wherever in `folder` it was stored.

    Returns:
        `adapter_checkpoint`: verl 0.7's own `*_adapter.pt`, by name of the file; `dist_ckpt`: a distributed checkpoint,
        with global shapes; `huggingface`: an export. Those that hold nothing are left out.
    """
    import torch

    files = {file.name: torch.load(file, weights_only=True) for file in sorted(folder.rglob("*_adapter.pt"))}
    found = {
        "adapter_checkpoint": {name: _described(saved["adapter_state_dict"]) for name, saved in files.items()},
        "dist_ckpt": {
            name: described
            for file in sorted(folder.rglob(".metadata"))
            for name, described in _distributed_tensors(file.parent).items()
        },
        "huggingface": _described(exported_tensors(folder)),
    }
    return {form: tensors for form, tensors in found.items() if tensors}


def exported_tensors(folder: Path) -> dict[str, Any]:
    """The tensors of every safetensors file below a folder, by name."""
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.rglob("*.safetensors")) for name, tensor in load_file(file).items()}


def _described(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"shape": list(tensor.shape), "dtype": tensor.dtype} for name, tensor in tensors.items()}


def _distributed_tensors(folder: Path) -> dict[str, Any]:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {
        name: {"shape": list(entry.size), "dtype": entry.properties.dtype}
        if isinstance(entry, TensorStorageMetadata)
        else type(entry).__name__
        for name, entry in sorted(entries.items())
    }
