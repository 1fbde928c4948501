"""Weights for a model folder: a Hugging Face model whose values are a function of name and index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes._models import MODEL_FOLDER
from harness.probes._weights import fill_named

PRELOAD = ("safetensors.torch", "transformers.modeling_utils")


def write_hf_weights(run: Run, *, dtype: str = "bfloat16", shard_size: str = "5GB", surplus: str = "none") -> None:
    """Let transformers save a model of the run's model folder into it, in the architecture's own names.

    All ranks must call this, after `construct_engine`.

    Args:
        dtype: of all weights, `bfloat16` or `float32`.
        shard_size: the largest size of one file, as transformers takes it.
        surplus: name of a further tensor that is saved with the model's, of which no architecture knows.
    """
    if run.rank == 0:
        import torch

        config = run.upstream("transformers:AutoConfig").from_pretrained(MODEL_FOLDER)
        model = run.upstream("transformers:AutoModelForCausalLM").from_config(config, dtype=getattr(torch, dtype))
        fill_named(model.named_parameters())
        state = model.state_dict()
        if surplus != "none":
            state[surplus] = torch.arange(8.0, dtype=getattr(torch, dtype))
        model.save_pretrained(MODEL_FOLDER, state_dict=state, max_shard_size=shard_size)
    run.upstream("torch.distributed:barrier")()


def read_hf_weights(folder: Path) -> Mapping[str, Any]:
    """Name and tensor of all weights in the files of a folder, whatever its index says."""
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}
