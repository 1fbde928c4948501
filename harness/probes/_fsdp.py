"""A model in Megatron-FSDP, as verl's engine builds and trains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes import _checkpoint, _engine, _training
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import ProbeError

PRELOAD = (
    *_checkpoint.PRELOAD,
    "megatron.core.distributed.fsdp.mcore_fsdp_adapter",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor",
)
"""What every probe that wraps a model in Megatron-FSDP lets the worker import."""

WRAPPER = "megatron.core.distributed.fsdp.mcore_fsdp_adapter:FullyShardedDataParallel.__init__"

_CONTENTS = ("model", "optimizer", "extra")
_STRICT: Mapping[str, bool | None] = {"absent": None, "true": True, "false": False}


def trained_engine(
    run: Run,
    hf_config: str,
    *,
    strategy: str = "optim_grads_params",
    contents: str = "model+optimizer+extra",
    loads: str | None = None,
    filled: bool,
    states_everywhere: bool = True,
    fp8: bool = False,
) -> Any:
    """An engine of verl around a model in Megatron-FSDP, after one training step.

    Args:
        strategy: Megatron-FSDP's `data_parallel_sharding_strategy`.
        contents: what it saves, and loads unless `loads` says otherwise.
        filled: parameters are a function of name and index; otherwise the stack's own initialisation.
        states_everywhere: let a rank have an optimizer state for parameters of which it holds nothing too.
    """
    saved, loaded = (
        [choice("contents", name, _CONTENTS) for name in each.split("+")] for each in (contents, loads or contents)
    )
    engine = _engine.construct_engine(
        run,
        hf_config,
        engine={
            "use_megatron_fsdp": True,
            "use_dist_checkpointing": True,
            "override_ddp_config": {"data_parallel_sharding_strategy": strategy},
            **({"override_transformer_config": {"fp8": "hybrid"}} if fp8 else {}),
        },
        checkpoint={"save_contents": saved, "load_contents": loaded},
    )
    if filled:
        _fill_before_wrapping(run, engine)
    _engine.initialize(run, engine)
    run.comes_from("wrapper", type(engine.module[0]))
    engine.optimizer_zero_grad()
    _training.forward_backward(run, engine.module)
    engine.optimizer_step()
    if states_everywhere:
        _complete_states(run, engine.optimizer)
    return engine


def _complete_states(run: Run, optimizer: Any) -> None:
    """Give parameters of which this rank holds nothing a state.

    torch's Adam makes none where there is no gradient. Ranks would then have other states than their neighbours, about
    which a save or a load asks them all.
    """
    import torch

    for each in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = each.optimizer
        for parameter in (parameter for group in inner.param_groups for parameter in group["params"]):
            if not inner.state[parameter]:
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                inner.state[parameter] = {"step": torch.ones(()), **zeros}
    run.by_hand("optimizer.state", "zeros for parameters of which a rank holds nothing: without, it hangs, as in #4910")


def _fill_before_wrapping(run: Run, engine: Any) -> None:
    build_tf_config = engine._build_tf_config

    def fill(chunks: list[Any]) -> list[Any]:
        fill_parameters(chunks, perturbed=run.perturbed)
        return chunks

    def build_then_register() -> None:
        build_tf_config()
        engine.provider.register_pre_wrap_hook(fill)

    engine._build_tf_config = build_then_register
    run.by_hand("pre_wrap_hook", "parameters get their values before they become DTensors")


def leave_out(run: Run, key: str) -> Callable[[], None]:
    """Let PyTorch write the model's section without one key, until what is returned is called."""
    checkpoint = run.upstream("torch.distributed.checkpoint")
    save = checkpoint.save

    def without(state_dict: dict[str, Any], **keywords: Any) -> Any:
        if key not in state_dict["model"]:
            raise ProbeError(f"missing={key!r} is none of: {', '.join(state_dict['model'])}")
        model = {name: value for name, value in state_dict["model"].items() if name != key}
        return save(state_dict=state_dict | {"model": model}, **keywords)

    checkpoint.save = without
    run.stand_in("torch.distributed.checkpoint.save", f"itself, without {key}", "a checkpoint that lacks a key")

    def put_back() -> None:
        checkpoint.save = save

    return put_back


def demand(run: Run, engine: Any, strict: str) -> None:
    """Set `strict_fsdp_dtensor_load` of the engine's checkpoint config by hand, unless it is to be `absent`."""
    demanded = choice("strict", strict, _STRICT)
    if demanded is not None:
        config = engine.checkpoint_mananager.checkpoint_config
        object.__setattr__(config, "strict_fsdp_dtensor_load", demanded)
        run.by_hand("CheckpointConfig.strict_fsdp_dtensor_load", demanded)


def readers(folder: Path) -> Iterator[Any]:
    """PyTorch's reader of each distributed checkpoint below a folder."""
    from torch.distributed.checkpoint import FileSystemReader

    for metadata in sorted(folder.rglob(".metadata")):
        yield FileSystemReader(str(metadata.parent))


def values(folder: Path) -> dict[str, Any]:
    """Key and value of every tensor in a checkpoint, each whole, on every rank."""
    import torch

    found: dict[str, Any] = {}
    for reader in readers(folder):
        entries = reader.read_metadata().state_dict_metadata
        wanted = {
            key: torch.empty(entry.size, dtype=entry.properties.dtype)
            for key, entry in entries.items()
            if hasattr(entry, "chunks")
        }
        torch.distributed.checkpoint.load(wanted, storage_reader=reader, no_dist=True)
        found |= wanted
    return found


def compared(given: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of tensors with the given values (`restored`), with others (`kept`), `absent` in the given, and `lost`."""
    both = sorted(given.keys() & again.keys())
    equal = [key for key in both if bool((given[key] == again[key]).all())]
    return {
        "restored": equal,
        "kept": [key for key in both if key not in equal],
        "absent": sorted(again.keys() - given.keys()),
        "lost": sorted(given.keys() - again.keys()),
    }
