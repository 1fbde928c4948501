"""The checkpoint of a model with an adapter: what is on disk, and what a trainer that resumes from it gets back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes import _checkpoint, _engine, _peft
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = (*_peft.PRELOAD, *_checkpoint.PRELOAD)

_LOAD_CHECKPOINT = "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager.load_checkpoint"


@probe(
    enters=(_checkpoint.SAVE_CHECKPOINT, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("files", "stored.*"),
)
def adapter_checkpoint(
    run: Run, *, hf_config: str = "qwen3", peft: str = "lora", written_fields: str = "absent", contents: str = "model"
) -> Mapping[str, Any]:
    """What verl's checkpoint manager writes for a model with an adapter, whose parameters have distinct values.

    Returns:
        files: folder → names of its files.
        stored: name, shape and dtype of every tensor, as `_checkpoint.stored_tensors` finds them.
        manifest: what `ckpt_contents.json` says, verl 0.9's list of what a checkpoint holds; None where there is none.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: `lora`, `dora` or `canonical_lora`.
        written_fields: further fields of the `lora` section, as in `peft_object`.
        contents: verl's `save_contents`, separated by commas.
    """
    section = _peft.lora_section(peft, written_fields)
    engine = _checkpoint.initialized_engine(run, hf_config, contents=contents.split(","), model={"lora": section})
    _start_optimizer(engine, contents)
    fill_parameters(engine.module)
    folder = _checkpoint.save(engine)
    _checkpoint.barrier()
    manifest = folder / "ckpt_contents.json"
    return {
        "files": _by_folder(folder),
        "stored": _checkpoint.stored_tensors(folder),
        "manifest": _read_json(manifest) if manifest.is_file() else None,
    }


@probe(
    enters=(_LOAD_CHECKPOINT, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("adapter", "frozen"),
    tensors=("adapters/*",),
    reads="adapter_checkpoint",
)
def adapter_resume(
    run: Run,
    *,
    hf_config: str = "qwen3",
    peft: str = "lora",
    fields: str = "",
    written_fields: str = "absent",
    contents: str = "model",
    without: str = "absent",
) -> Mapping[str, Any]:
    """A trainer that resumes from the checkpoint of a model with an adapter, through verl's `load_checkpoint`.

    The adapter that was written has distinct values, a function of name and index. Before the load, every parameter is
    one more than that.

    Returns:
        adapter: by name, whether each adapter parameter is `restored`, `untouched`, or something `else`.
        frozen: the names of the other parameters that the load changed.
        adapters: the adapter's weights by name, this rank's shards.

    Args:
        hf_config: as `adapter_checkpoint`, like `peft`, `written_fields` and `contents`.
        fields: further fields of the resuming model's `lora` section.
        without: a folder of the checkpoint to take away first: `dist_ckpt`, or `absent` for none.
    """
    section = _peft.lora_section(peft, fields)
    engine = _checkpoint.initialized_engine(run, hf_config, contents=contents.split(","), model={"lora": section})
    _start_optimizer(engine, contents)
    before = _peft.perturbed(engine.module)
    folder = run.written.relative_to(run.folder) / _checkpoint.FOLDER
    if run.rank == 0 and without != "absent":
        for found in sorted(folder.rglob(without)):
            shutil.rmtree(found)
    _checkpoint.barrier()
    engine.checkpoint_mananager.load_checkpoint(str(folder))
    return _peft.loaded(engine.module, before)


@probe(
    enters=(_peft.SAVE_HF_ADAPTER, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("stored", "config"),
    tensors=("exported/*",),
)
def adapter_export(run: Run, *, hf_config: str = "qwen3", peft: str = "lora", fields: str = "") -> Mapping[str, Any]:
    """The adapter as Megatron-Bridge exports it for Hugging Face's `peft` library.

    It is exported by `save_hf_adapter`, which verl's checkpoint manager calls from 0.8.0 on. Whether that library makes
    the same model of it is the check `exported_adapter`.

    Returns:
        stored: name, shape and dtype of every tensor.
        config: what `adapter_config.json` says.
        exported: the tensors, of whole parameters, by name; in float32, whatever they are stored in.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: `lora`, `dora` or `canonical_lora`.
        fields: further fields of the `lora` section, as in `peft_object`.
    """
    engine = _engine.construct_engine(run, hf_config, model={"lora": _peft.lora_section(peft, fields)})
    engine._build_tf_config()
    modules = _engine.build_module(run, engine)
    fill_parameters(modules)
    folder = run.folder / "export"
    engine.bridge.save_hf_adapter(modules, folder, engine.peft_cls)
    _checkpoint.barrier()
    return {
        "stored": _checkpoint.stored_tensors(folder),
        "config": _read_json(folder / "adapter_config.json"),
        "exported": {name: tensor.float() for name, tensor in _checkpoint.exported_tensors(folder).items()},
    }


def _start_optimizer(engine: Any, contents: str) -> None:
    """One step with gradients of zero: without it torch's optimizer has no state, and can be neither saved nor loaded.

    That of Transformer Engine, which this lane has not, makes its state when it is loaded.
    """
    if "optimizer" in contents:
        engine.optimizer_step()


def _by_folder(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted(file for file in root.rglob("*") if file.is_file()):
        found.setdefault(str(file.parent.relative_to(root)), []).append(file.name)
    return found


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text())
