"""Quantization-aware training: names of experts, and what verl's patches do to the stack they are applied to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

from harness.observe.run import Run
from harness.probes import qat
from harness.probes.registry import consistency_probe

PRELOAD = qat.PRELOAD


@consistency_probe(enters=(f"{qat.PATCHES}:apply_qat_patch",), returns=("expected.functions", "actual.functions"))
def qat_revert(run: Run, *, patch: str = "reverted") -> Mapping[str, Any]:
    """Reverted patches leave Megatron-Core and Megatron-Bridge as they were.

    Returns:
        functions: of each function that the patches replace, whether it is the original object.
        left: names that the patches added to the modules and classes of those functions, and that are still there.

    Args:
        patch: `reverted`, or `twice_reverted`: reverted once after two applications.

    Raises:
        MissingSymbol: this verl has no patches.
    """
    run.upstream(qat.PATCHES)
    before = dict(qat.in_place(run))
    owned = {reference: set(vars(owner)) for reference, owner in qat.owners(run)}
    qat.use_patches(run, patch)
    left = {reference: sorted(set(vars(owner)) - owned[reference]) for reference, owner in qat.owners(run)}
    return {
        "expected": {"functions": dict.fromkeys(before, True), "left": {reference: [] for reference in owned}},
        "actual": {"functions": {name: found is before[name] for name, found in qat.in_place(run)}, "left": left},
    }


@consistency_probe(enters=(qat.LOCAL_TO_GLOBAL,), returns=("expected.experts", "actual.experts"))
def qat_expert_names(run: Run, *, hf_config: str = "qwen3_moe", patch: str = "native") -> Mapping[str, Any]:
    """The global names that Megatron-Bridge gives to the experts of all ranks number each expert once.

    Returns:
        experts: the numbers, of one weight of one layer; under `expected` those of the model's config.

    Args:
        hf_config: a shipped tiny model with experts or the path of a Hugging Face `config.json`.
        patch: as `qat_state`.

    Raises:
        MissingSymbol: this verl has no patches, and `patch` needs them.
    """
    import torch

    _, chunks = qat.built(run, hf_config, patch)
    everywhere: list[list[str]] = [[] for _ in range(run.world_size)]
    torch.distributed.all_gather_object(everywhere, list(qat.global_names(run, chunks).values()))
    numbers = re.findall(r"layers\.0\.\S*local_experts\.(\d+)\.linear_fc2\.weight", " ".join(chain(*everywhere)))
    return {
        "expected": {"experts": list(range(chunks[0].config.num_moe_experts))},
        "actual": {"experts": sorted(map(int, numbers))},
    }


@consistency_probe(
    enters=("modelopt.torch.quantization.model_quant:quantize", "megatron.core.transformer.mlp:MLP.sharded_state_dict"),
    returns=("expected.sections", "actual.sections"),
)
def qat_patched_state(run: Run, *, hf_config: str = "qwen3", patch: str = "applied") -> Mapping[str, Any]:
    """The patches of verl change nothing of a quantized model's sharded state dict.

    Returns:
        sections: of each model chunk, keys and sharded metadata; under `expected` before the patches are used.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        patch: as `qat_state`.

    Raises:
        MissingSymbol: this verl has no patches.
    """
    run.upstream(qat.PATCHES)
    _, chunks = qat.quantized(run, hf_config, "native", "NVFP4_MLP_WEIGHT_ONLY_CFG")
    native = qat.states(run, chunks)
    qat.use_patches(run, patch)
    return {"expected": {"sections": native}, "actual": {"sections": qat.states(run, chunks)}}
