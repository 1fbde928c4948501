"""What verl asks Megatron's data parallel wrapper to do: the DDP config that reaches the provider."""

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

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "distributed_optimizer_off": {"use_distributed_optimizer": False},
    "overrides": {"override_ddp_config": _OVERRIDES},
    "fsdp": {"use_megatron_fsdp": True},
    "fsdp_overrides": {"use_megatron_fsdp": True, "override_ddp_config": _OVERRIDES},
    "no_wrap": {"forward_only": True},
}
"""What a user sets, as fields of `McoreEngineConfig`."""


class _Reached(BaseException):
    """Leaves upstream's code where `provide_distributed_model` is called: all that matters was seen."""


@probe(enters=("verl.utils.megatron_utils:make_megatron_module",), returns=("ddp_config", "other_arguments"))
def ddp_config(run: Run, *, variant: str = "default", hf_config: str = "qwen3") -> Mapping[str, Any]:
    """The arguments of `provider.provide_distributed_model`, as the stack's own `make_megatron_module` gives them.

    verl's real engine calls it, from its `_build_megatron_module`. Nothing is built: the call is the observation.

    Args:
        variant: what the user configured: `default`, `distributed_optimizer_off`, `overrides` (of the DDP config),
            `fsdp` (Megatron-FSDP), `fsdp_overrides`, or `no_wrap` (a forward-only engine).
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.

    Returns:
        `ddp_config`: the config object, every field of it, or None. `other_arguments`: all other arguments by name.
    """
    engine = _engine.construct_engine(run, hf_config, engine=choice("variant", variant, VARIANTS))
    engine._build_tf_config()
    _engine.record_provenance(run, engine)
    seen: dict[str, Any] = {}

    def reach(**arguments: Any) -> None:
        seen.update(arguments)
        raise _Reached

    engine.provider.provide_distributed_model = reach
    run.stand_in("provider.provide_distributed_model", f"{__name__}:reach", "its arguments are the observation")
    with contextlib.suppress(_Reached):
        engine._build_megatron_module()
    config = seen.pop("ddp_config")
    run.comes_from("ddp_config", type(config))
    return {"ddp_config": config, "other_arguments": seen}
