"""Models in Megatron-FSDP: the same optimizer states on every rank, and no load of a part without an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _checkpoint, _fsdp
from harness.probes.registry import consistency_probe

PRELOAD = _fsdp.PRELOAD


@consistency_probe(enters=(_fsdp.WRAPPER,), returns=("expected.parameters", "actual.parameters"))
def fsdp_optimizer_state(
    run: Run, *, hf_config: str = "qwen3", strategy: str = "optim_grads_params"
) -> Mapping[str, Any]:
    """The parameters whose optimizer state a rank would save after one training step, against those of all ranks.

    A save goes through the states and asks the other ranks about each, so ranks that do not have the same ones wait
    for each other for ever; nothing is saved here. A rank holds nothing of a parameter that lies on other ranks.

    Returns:
        Under `expected`, `parameters`: names of the parameters of which any rank has a state; under `actual` this
        rank's own.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        strategy: Megatron-FSDP's `data_parallel_sharding_strategy`.
    """
    import torch

    engine = _fsdp.trained_engine(run, hf_config, strategy=strategy, filled=True, states_everywhere=False)
    engine.module[0].state_dict_for_save_checkpoint()  # the manager's order: it puts the DTensors in the model's place
    metadata = engine.checkpoint_mananager._build_sharded_state_dict_metadata()
    states = engine.optimizer.sharded_state_dict({}, is_loading=False, metadata=metadata)["state"]
    everywhere: list[list[str]] = [[] for _ in range(run.world_size)]
    torch.distributed.all_gather_object(everywhere, list(states))
    return {
        "expected": {"parameters": sorted(set().union(*everywhere))},
        "actual": {"parameters": sorted(states)},
    }


@consistency_probe(
    enters=(
        _fsdp.WRAPPER,
        "verl.utils.checkpoint.megatron_checkpoint_manager:MegatronCheckpointManager._load_megatron_fsdp_checkpoint",
    ),
    returns=("expected.not_loaded", "actual.not_loaded"),
)
def fsdp_partial_load(
    run: Run,
    *,
    hf_config: str = "qwen3",
    missing: str = "module.decoder.final_layernorm.weight",
    strict: str = "absent",
) -> Mapping[str, Any]:
    """A load that ends without an error has loaded everything, also where the files lack a key.

    Two models of other weights: the first is saved without one key, the second loads the files and is saved again.

    Returns:
        `not_loaded`: tensors of the second model that do not have the values of the first model's files. Under
        `expected` none.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        missing: a key of the state dict's model section that the files do not have.
        strict: `strict_fsdp_dtensor_load` of the checkpoint config, which verl's config class does not have: `absent`,
            or set by hand to `true` or `false`.
    """
    first = _fsdp.trained_engine(run, hf_config, filled=True)
    put_back = _fsdp.leave_out(run, missing)
    given = _checkpoint.save(first).rename("given")
    put_back()
    second = _fsdp.trained_engine(run, hf_config, filled=False)
    _fsdp.demand(run, second, strict)
    second.checkpoint_mananager.load_checkpoint(str(given))
    found = _fsdp.compared(_fsdp.values(given), _fsdp.values(_checkpoint.save(second)))
    return {"expected": {"not_loaded": []}, "actual": {"not_loaded": sorted([*found["kept"], *found["absent"]])}}
