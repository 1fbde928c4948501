"""A wrapped model through the real `make_megatron_module`, with what a probe wants to say to it, and how to read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _training

PRELOAD = (*_engine.PRELOAD, "megatron.bridge.training.config", "verl.workers.config.megatron_peft")
"""What every probe that builds a wrapped model lets the worker import."""

MAKE_MEGATRON_MODULE = "verl.utils.megatron_utils:make_megatron_module"

_FLAGS = ("tensor_model_parallel", "partition_dim", "partition_stride", "sequence_parallel", "allreduce")
"""What Megatron-Core writes on a parameter for its optimizer, gradient reduction and checkpoints."""


def make_module(
    run: Run,
    engine: Any,
    *,
    is_value_model: bool = False,
    wrap_with_ddp: bool = True,
    override_model_config: Mapping[str, Any] | None = None,
    peft_config: Any = None,
) -> list[Any]:
    """The model chunks of `engine`, from `make_megatron_module` called as `MegatronEngine` and verl's workers do.

    Unlike `_engine.build_module` it takes a PEFT config in any form, and a value model without a model folder that
    announces one. Call `engine._build_tf_config()` first.
    """
    _engine.prepare_build(run, engine)
    wrap_config = run.upstream("verl.utils.megatron_utils:McoreModuleWrapperConfig")(
        is_value_model=is_value_model,
        wrap_with_ddp=wrap_with_ddp,
        use_distributed_optimizer=engine.engine_config.use_distributed_optimizer,
    )
    engine.module, engine.tf_config = run.upstream(MAKE_MEGATRON_MODULE)(
        wrap_config=wrap_config,
        tf_config=engine.tf_config,
        hf_config=engine.model_config.hf_config,
        bridge=engine.bridge,
        provider=engine.provider,
        override_model_config=dict(override_model_config or {}),
        override_ddp_config=engine.engine_config.override_ddp_config,
        peft_cls=engine.peft_cls,
        peft_config=peft_config,
    )
    _engine.record_hooks(run, engine.provider)
    return list(engine.module)


def unwrapped(chunk: Any) -> Any:
    """The model inside its DDP and precision wrappers."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def wrappers(chunk: Any) -> list[str]:
    """The classes wrapped around the model, from the outside in."""
    names = []
    while hasattr(chunk, "module"):
        names.append(type(chunk).__name__)
        chunk = chunk.module
    return names


def named_parameters(modules: list[Any]) -> Iterator[tuple[str, Any]]:
    """Names inside the wrappers, in the model's own order; several chunks are told apart by their index."""
    for index, chunk in enumerate(modules):
        prefix = f"{index}:" if len(modules) > 1 else ""
        for name, parameter in unwrapped(chunk).named_parameters():
            yield prefix + name, parameter


def described_parameters(modules: list[Any]) -> dict[str, dict[str, Any]]:
    """Shape, dtype, `requires_grad` and Megatron-Core's flags of every parameter, in the model's own order."""
    return {name: described(parameter) for name, parameter in named_parameters(modules)}


def described(parameter: Any) -> dict[str, Any]:
    """Shape, dtype, `requires_grad` and those of Megatron-Core's flags that are set."""
    flags = {name: getattr(parameter, name) for name in _FLAGS if hasattr(parameter, name)}
    return {
        "shape": list(parameter.shape),
        "dtype": parameter.dtype,
        "requires_grad": parameter.requires_grad,
        **flags,
    }


def forward_backward(run: Run, modules: list[Any], *, sequence_length: int = 8, batch_size: int = 2) -> dict[str, Any]:
    """One forward and backward pass of a model on one pipeline stage, with Megatron-Core's gradient finalisation.

    Returns:
        `output`: what the model returns, `[batch, sequence, …]`; `gradients`: by parameter name, for every parameter
        that got one. The loss weighs each output element differently, so that no two of them can be confused.
    """
    import torch

    (model,) = modules
    vocabulary = unwrapped(model).vocab_size
    positions = torch.arange(sequence_length, device=run.lane.device).expand(batch_size, -1)
    counted = torch.arange(batch_size * sequence_length, device=run.lane.device).reshape(batch_size, -1)
    tokens = (counted * 7 + 3) % vocabulary
    output = model(input_ids=tokens, position_ids=positions, attention_mask=None)
    weights = torch.linspace(-1.0, 1.0, output.numel()).reshape(output.shape).to(output.device)
    (output.float() * weights).sum().backward()
    if hasattr(model, "ddp_config"):
        run.upstream("megatron.core.distributed:finalize_model_grads")(modules)
        return {"output": output, "gradients": _training.gradients(modules)}
    found = {name: parameter.grad for name, parameter in named_parameters(modules)}
    return {"output": output, "gradients": {name: value for name, value in found.items() if value is not None}}
