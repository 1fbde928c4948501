"""The value head that turns a language model into a critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _wrap
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = _wrap.PRELOAD

_HEAD = "verl.models.mcore.bridge:LinearForLastLayer"
_HOOK = "verl.models.mcore.bridge:make_value_model"
_FORWARD = (
    "verl.models.mcore.bridge:LinearForLastLayer.forward"
    " | megatron.bridge.training.utils.train_utils:LinearForLastLayer.forward"
)


@probe(enters=(_FORWARD,), returns=("parameters", "returned"), tensors=("output", "gradients/*"))
def value_head(
    run: Run, *, hf_config: str = "qwen3", kind: str = "make_megatron_module", dtype: str = "bfloat16"
) -> Mapping[str, Any]:
    """Forward and backward through the value head each stack puts in the place of the output layer.

    Weights are a function of name and index. With sequence parallelism (layout `tp2_sp`) the head gathers the sequence,
    and its weight carries the flag that makes Megatron-Core sum its gradient over tensor parallel ranks.

    Returns:
        parameters: shape, dtype, `requires_grad` and Megatron-Core's flags of each parameter, by name.
        returned: the type of what the hook returned; None where there is no hook to ask.
        output: `[batch, sequence, 1]` (`[sequence, batch, 1]` from the bare head).
        gradients: by parameter name, of each parameter's shape; from the bare head also that of its `input`.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        kind: `make_megatron_module` builds a value model as verl's critic does, DDP included; `make_value_model`
            applies the stack's hook to a finished model without DDP; `linear_for_last_layer` is the bare head.
        dtype: dtype of the parameters, `bfloat16` or `float32`.
    """
    choice("kind", kind, ("make_megatron_module", "make_value_model", "linear_for_last_layer"))
    head = run.comes_from("LinearForLastLayer", run.upstream(_HEAD))
    if kind == "linear_for_last_layer":
        return _bare_head(run, head, dtype)
    engine = _engine.construct_engine(run, hf_config, dtype=dtype)
    engine._build_tf_config()
    returned = None
    if kind == "make_megatron_module":
        _wrap.make_module(run, engine, is_value_model=True)
    else:
        _wrap.make_module(run, engine, wrap_with_ddp=False)
        returned = _apply_hook(run, engine)
    fill_parameters(engine.module, perturbed=run.perturbed)
    seen = _wrap.forward_backward(run, engine.module)
    return {"parameters": _wrap.described_parameters(engine.module), "returned": returned, **seen}


def _apply_hook(run: Run, engine: Any) -> str:
    make_value_model = run.comes_from("make_value_model", run.upstream(_HOOK))
    config = engine.model_config.hf_config
    hook = make_value_model(config.hidden_size, run.layout.sequence_parallel)
    models = [_wrap.unwrapped(chunk) for chunk in engine.module]
    returned = hook(models)
    why = "the model's: the hook comes before both are seen to where a provider builds the model"
    run.by_hand("output_layer dtype and device", why)
    for model in models:
        model.output_layer.to(device=run.lane.device, dtype=engine.param_dtype)
    return type(returned).__qualname__


def _bare_head(run: Run, head: Any, dtype: str) -> Mapping[str, Any]:
    import torch

    run.lane.start_distributed(run)
    run.upstream("megatron.core.parallel_state:initialize_model_parallel")(**run.layout.model_parallel_sizes)
    layer = head(input_size=64, output_size=1, sequence_parallel=run.layout.sequence_parallel)
    layer.to(device=run.lane.device, dtype=getattr(torch, dtype))
    fill_parameters([layer], perturbed=run.perturbed)
    sequence, batch = 8, 2
    whole = torch.linspace(-1.0, 1.0, sequence * batch * 64).reshape(sequence, batch, 64).to(layer.weight)
    parts = run.layout.tensor_model_parallel_size if run.layout.sequence_parallel else 1
    given = whole.chunk(parts)[run.rank % parts].clone().requires_grad_()
    output, bias = layer(given, weight=None, runtime_gather_output=None)
    (output * torch.linspace(-1.0, 1.0, output.numel()).reshape(output.shape).to(output.device)).sum().backward()
    return {
        "parameters": {name: _wrap.described(value) for name, value in layer.named_parameters()},
        "returned": type(bias).__qualname__,
        "output": output,
        "gradients": {"weight": layer.weight.grad, "input": given.grad},
    }
