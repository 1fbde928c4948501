"""Hugging Face weights: a save that ends without an error has written everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import hf_export as export
from harness.probes.registry import consistency_probe

PRELOAD = export.PRELOAD


@consistency_probe(
    enters=("megatron.bridge.models.conversion.auto_bridge:AutoBridge.save_hf_weights",),
    returns=("expected.left_out", "actual.left_out"),
)
def hf_complete_export(
    run: Run, *, hf_config: str = "qwen3", surplus: str = "model.layers.1.unknown.weight", shard_size: str = "100KB"
) -> Mapping[str, Any]:
    """A Hugging Face model loaded by verl's engine and saved again has every tensor that Megatron-Bridge exports.

    Returns:
        `left_out`: under `expected` the surplus tensor, which has no place in the Megatron model; under `actual` the
        names of all tensors of the model's files that are in no saved file.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        surplus: name of a tensor in the model's files that no Megatron parameter comes from or goes to. transformers
            puts it into one file with tensors that Megatron-Bridge does export.
        shard_size: the largest size of one file of the model, as transformers takes it.
    """
    found = export.hf_export(run, hf_config=hf_config, surplus=surplus, shard_size=shard_size)
    return {"expected": {"left_out": [surplus]}, "actual": {"left_out": found["left_out"]}}
