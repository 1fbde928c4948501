"""Hugging Face weights into a Megatron model, and out again through verl's checkpoint manager."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import HarnessFault, Run
from harness.probes import _checkpoint, _engine, _hf_weights, _training
from harness.probes._models import MODEL_FOLDER, choice
from harness.probes.registry import probe

PRELOAD = (*_checkpoint.PRELOAD, *_hf_weights.PRELOAD)

_STRICT: Mapping[str, Mapping[str, Any]] = {"absent": {}, "true": {"strict": True}, "false": {"strict": False}}
_INDEX = "model.safetensors.index.json"


@probe(
    enters=(
        "megatron.bridge.models.conversion.auto_bridge:AutoBridge.load_hf_weights",
        "megatron.bridge.models.conversion.auto_bridge:AutoBridge.save_hf_weights",
    ),
    returns=("written", "left_out", "surplus", "changed", "index"),
    tensors=("loaded/*",),
)
def hf_export(
    run: Run,
    *,
    hf_config: str = "qwen3",
    strict: str = "absent",
    surplus: str = "none",
    shard_size: str = "5GB",
    dtype: str = "bfloat16",
) -> Mapping[str, Any]:
    """A Hugging Face model loaded by verl's engine, and saved again by its checkpoint manager.

    transformers writes the model, whose values are a function of name and index; the engine's own
    `_build_megatron_module` loads it; the manager saves `model` alone, in Hugging Face's format. Names and values of
    what comes out are held against what went in, so that a name that was dropped or changed shows, and so do rows that
    changed places.

    Returns:
        loaded: this rank's Megatron parameters after the load, by global name.
        written: names of the tensors in the saved files.
        left_out: names of the model's tensors that are in no saved file.
        surplus: names in the saved files that the model did not have.
        changed: names of tensors whose dtype, shape or values are not the model's, bit for bit.
        index: the names in the saved index, and those of them that no file has; None where there is no index.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        strict: verl's `checkpoint.strict`, which Megatron-Bridge gets: `absent` leaves the default, or `true`, `false`.
        surplus: name of a tensor in the model's files that no Megatron parameter comes from or goes to.
        shard_size: the largest size of one file of the model, as transformers takes it.
        dtype: of the weights and the Megatron model, `bfloat16` or `float32`.
    """
    contents = {"save_contents": ["model"], "load_contents": ["model"]} | choice("strict", strict, _STRICT)
    engine = _engine.construct_engine(run, hf_config, dtype=dtype, checkpoint=contents)
    _hf_weights.write_hf_weights(run, dtype=dtype, shard_size=shard_size, surplus=surplus)
    _engine.initialize(run, engine, loads=True)
    loaded = _training.parameters(engine.module)
    checkpoint = _checkpoint.save(engine)
    run.upstream("torch.distributed:barrier")()
    folder = _saved_in(checkpoint)
    given, written = _hf_weights.read_hf_weights(MODEL_FOLDER), _hf_weights.read_hf_weights(folder)
    return {
        "loaded": loaded,
        "written": sorted(written),
        "left_out": sorted(given.keys() - written.keys()),
        "surplus": sorted(written.keys() - given.keys()),
        "changed": sorted(name for name in given.keys() & written.keys() if not _same(given[name], written[name])),
        "index": _index(folder, written),
    }


def _same(given: Any, written: Any) -> bool:
    return bool(given.dtype == written.dtype and given.shape == written.shape and (given == written).all())


def _saved_in(checkpoint: Path) -> Path:
    """The folder of a checkpoint with the weights; a save that wrote none has the config there."""
    found = sorted({file.parent for file in checkpoint.rglob("config.json")})
    if len(found) != 1:
        raise HarnessFault(f"the checkpoint has {len(found)} folders with a config.json")
    return found[0]


def _index(folder: Path, written: Mapping[str, Any]) -> dict[str, Any] | None:
    if not (folder / _INDEX).exists():
        return None
    names = json.loads((folder / _INDEX).read_text())["weight_map"]
    return {"names": sorted(names), "without_a_file": sorted(names.keys() - written.keys())}
