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
