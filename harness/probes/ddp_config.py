"""What verl asks Megatron's data parallel wrapper to do: the DDP config of either branch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes.registry import probe

PRELOAD = _engine.PRELOAD

_OVERRIDES = {
    "overlap_grad_reduce": True,
    "grad_reduce_in_fp32": True,
    "bucket_size": 4096,
    "average_in_collective": True,
}
_AGAINST_FSDP = {
    "use_megatron_fsdp": False,
    "use_distributed_optimizer": False,
    "check_for_nan_in_grad": False,
    "overlap_grad_reduce": False,
    "data_parallel_sharding_strategy": "no_shard",
}

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "distributed_optimizer_off": {"use_distributed_optimizer": False},
    "override_turns_it_off": {"override_ddp_config": {"use_distributed_optimizer": False}},
    "override_turns_it_on": {
        "use_distributed_optimizer": False,
        "override_ddp_config": {"use_distributed_optimizer": True},
    },
    "overrides": {"override_ddp_config": _OVERRIDES},
    "reduce_in_low_precision": {"override_ddp_config": {"grad_reduce_in_fp32": False}},
    "unknown_field": {"override_ddp_config": {"no_such_field": 1}},
    "fsdp": {"use_megatron_fsdp": True},
    "fsdp_overrides": {"use_megatron_fsdp": True, "override_ddp_config": _OVERRIDES},
    "fsdp_distributed_optimizer_off": {"use_megatron_fsdp": True, "use_distributed_optimizer": False},
    "fsdp_contradicted": {"use_megatron_fsdp": True, "override_ddp_config": _AGAINST_FSDP},
    "override_turns_fsdp_on": {"override_ddp_config": {"use_megatron_fsdp": True}},
    "no_wrap": {"forward_only": True},
    "fsdp_no_wrap": {"use_megatron_fsdp": True, "forward_only": True},
}
"""What a user sets, as fields of `McoreEngineConfig`."""


class _Reached(BaseException):
    """Leaves upstream's code at the call whose arguments are the observation: all that matters was seen."""


@probe(enters=("verl.utils.megatron_utils:make_megatron_module",), returns=("ddp_config", "other_arguments"))
def ddp_config(
    run: Run, *, variant: str = "default", hf_config: str = "qwen3", branch: str = "bridge"
) -> Mapping[str, Any]:
    """The arguments with which the stack's own `make_megatron_module` asks for a wrapped model.

    verl's real engine calls it, from its `_build_megatron_module`. Nothing is built: the call is the observation.

    Args:
        variant: what the user configured; one of `VARIANTS`.
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        branch: `bridge`, for `provider.provide_distributed_model`, or `vanilla`, for mbridge's `bridge.get_model`.

    Returns:
        `ddp_config`: the config object, every field of it (on the vanilla branch the mapping that mbridge will add to
        its own defaults), or None. `other_arguments`: all other arguments by name.
    """
    engine = _engine_of(run, variant, hf_config, vanilla=choice("branch", branch, {"bridge": False, "vanilla": True}))
    _engine.record_provenance(run, engine)
    seen: dict[str, Any] = {}

    def reach(**arguments: Any) -> None:
        seen.update(arguments)
        raise _Reached

    owner, method = (
        (engine.provider, "provide_distributed_model") if branch == "bridge" else (engine.bridge, "get_model")
    )
    setattr(owner, method, reach)
    run.stand_in(f"{type(owner).__name__}.{method}", f"{__name__}:reach", "its arguments are the observation")
    with contextlib.suppress(_Reached):
        engine._build_megatron_module()
    config = seen.pop("ddp_config")
    if config is not None:
        run.comes_from("ddp_config", type(config))
    return {"ddp_config": config, "other_arguments": seen}


@probe(enters=("verl.utils.megatron_utils:make_megatron_module",), returns=("ddp_config.use_distributed_optimizer",))
def vanilla_ddp_config(run: Run, *, variant: str = "default") -> Mapping[str, Any]:
    """The config that the wrapper really gets on the vanilla branch, where mbridge builds the model and wraps it.

    Args:
        variant: what the user configured; one of `VARIANTS`.

    Returns:
        `ddp_config`: every field of the config object in the wrapped model.
    """
    engine = _engine_of(run, variant, "qwen3", vanilla=True)
    [wrapped] = _engine.build_module(run, engine)
    return {"ddp_config": wrapped.ddp_config}


def _engine_of(run: Run, variant: str, hf_config: str, *, vanilla: bool) -> Any:
    chosen = choice("variant", variant, VARIANTS) | {"vanilla_mbridge": vanilla}
    engine = _engine.construct_engine(run, hf_config, engine=chosen)
    engine._build_tf_config()
    return engine
