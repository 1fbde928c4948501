"""NVFP4 block scales on their way into Marlin's layout: vLLM's functions, and verl's patches that call them.

vLLM 0.19 and later multiply the block scales by a power of two and return it beside them; the global scale must be
divided by it. What the kernel multiplies a weight by, block scale times global scale, is the same in either form.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from harness.observe.run import Run, Unavailable
from harness.probes._models import choice
from harness.probes.registry import probe

_MODELOPT = "verl.utils.modelopt.vllm_modelopt_patch"
_QAT = "verl.utils.qat.vllm_patch"
_FP4 = "vllm.model_executor.layers.quantization.utils.marlin_utils_fp4"
_MARLIN = "vllm.model_executor.layers.quantization.utils.marlin_utils"

ROWS, COLUMNS, GROUP, EXPERTS = 64, 128, 16, 2
"""Of a weight, `[output, input]`; weights that share a block scale; experts of a layer."""
GLOBAL_SCALE = 2.0**-6
_BIAS = {"float16": 14, "bfloat16": 126}
"""Exponent bias between FP4 and a dtype, which vLLM puts into the global scale for its kernel to take out again."""

_CODES: dict[str, Callable[[Any], Any]] = {
    "random": lambda index: 0x28 + (index * 37) % 0x28,
    "tiny": lambda index: 1 + index % 7,
    "huge": lambda index: 0x78 + index % 7,
    "mixed": lambda index: 1 + (index * 37) % 0x7E,
    "zero": lambda index: index * 0,
}
"""Index of a block → its scale as a byte of E4M3, in whose order values grow: 1 to 7 are subnormal, 0x7e is 448."""


@probe(returns=("unwrapped", "split"), enters=(f"{_MODELOPT}:_unwrap_marlin_scale", f"{_MODELOPT}:_split_marlin_scale"))
def marlin_forms(run: Run, *, form: str = "tensor") -> Mapping[str, Any]:
    """What verl makes of each form in which vLLM may return block scales; it needs no vLLM.

    Returns:
        unwrapped: what `_unwrap_marlin_scale` gives.
        split: what `_split_marlin_scale` gives.

    Args:
        form: `tensor`, `tuple`, `list` (of a tensor `[2]` and a factor of 64) or `none`.
    """
    import torch

    scales = torch.tensor([1.0, 2.0])
    forms = {"tensor": scales, "tuple": (scales, 64.0), "list": [scales, 64.0], "none": None}
    value = choice("form", form, forms)
    unwrap = run.upstream(f"{_MODELOPT}:_unwrap_marlin_scale")
    return {"unwrapped": unwrap(value), "split": run.upstream(f"{_MODELOPT}:_split_marlin_scale")(value)}


@probe(enters=(f"{_FP4}:nvfp4_marlin_process_scales",), returns=("form",), tensors=("effective",))
def marlin_scales(run: Run, *, scales: str = "random", dtype: str = "bfloat16") -> Mapping[str, Any]:
    """What vLLM's own functions make of block scales, with the factor divided out as vLLM asks.

    Returns:
        form: type of what `nvfp4_marlin_process_scales` returns.
        effective: block scale times global scale as the format decodes, float32 `[groups, output]`, in Marlin's order.
        without_top_bit: scales above zero whose top bit is not set, which the format assumes there are none of.
        largest_error: of the effective scales, relative to the exact products.

    Args:
        scales: `random`, `tiny` (subnormal E4M3), `huge`, `mixed` (all of E4M3) or `zero`; or bytes of E4M3 as digits,
            such as `0x017e`, again and again.
        dtype: of the activations.
    """
    import torch

    need_vllm()
    kind = getattr(torch, choice("dtype", dtype, tuple(_BIAS)))
    blocks = _blocks(scales)
    permuted = run.upstream(f"{_MARLIN}:marlin_permute_scales")(
        s=blocks.T.contiguous().to(kind), size_k=COLUMNS, size_n=ROWS, group_size=GROUP
    )
    processed = run.upstream(f"{_FP4}:nvfp4_marlin_process_scales")(permuted)
    codes, factor = processed if isinstance(processed, tuple) else (processed, 1.0)
    process_global = run.upstream(f"{_FP4}:nvfp4_marlin_process_global_scale")
    scale = process_global(torch.tensor(GLOBAL_SCALE, dtype=kind)) / factor
    return {"form": type(processed).__qualname__, **_seen(codes, scale, blocks, dtype)}


@probe(
    enters=(f"{_MODELOPT}:_modelopt_dense_process_weights | {_QAT}:patched_w4a16_process_weights_after_loading",),
    returns=("inputs",),
    tensors=("effective",),
)
def marlin_dense(
    run: Run,
    *,
    patch: str = "modelopt",
    scales: str = "random",
    dtype: str = "bfloat16",
    input_scale: float = 0.5,
    zero_factor: bool = False,
) -> Mapping[str, Any]:
    """A dense layer after verl's patch of `process_weights_after_loading`.

    Fields as `marlin_scales`, and the scales of the input.

    Args:
        patch: `modelopt` or `qat` (W4A16), the two files of verl that patch vLLM.
        scales: as `marlin_scales`.
        dtype: as `marlin_scales`.
        input_scale: of the activations, for `modelopt`; 0 is what an uncalibrated layer has.
        zero_factor: verl reads a factor of 0 beside vLLM's scales.
    """
    import torch

    need_vllm()
    _without_kernels(run)
    if zero_factor:
        _let_factor_be_zero(run)
    blocks, layer = _blocks(scales), _layer(dtype)
    weight = torch.zeros(ROWS, COLUMNS // 2, dtype=torch.uint8)
    if choice("patch", patch, {"modelopt": True, "qat": False}):
        _set(layer, weight=weight, weight_scale=blocks, weight_scale_2=torch.tensor(GLOBAL_SCALE))
        _set(layer, input_scale=torch.tensor(input_scale))
        run.upstream(f"{_MODELOPT}:_modelopt_dense_process_weights")(None, layer)
        scale = layer.weight_global_scale
    else:
        _set(layer, weight_packed=weight, weight_scale=blocks, weight_global_scale=torch.tensor([1 / GLOBAL_SCALE]))
        run.upstream(f"{_QAT}:patched_w4a16_process_weights_after_loading")(None, layer)
        scale = layer.weight_scale_2
    names = ("alpha", "input_global_scale", "input_global_scale_inv")
    inputs = {name: getattr(layer, name).detach() for name in names if hasattr(layer, name)}
    return {**_seen(layer.weight_scale.detach(), scale.detach(), blocks, dtype), "inputs": inputs}


@probe(enters=(f"{_QAT}:patched_w4a4_process_weights_after_loading",), returns=("alpha",))
def marlin_w4a4(run: Run, *, input_global_scale: float = 2.0) -> Mapping[str, Any]:
    """The scales of a W4A4 layer after verl's patch.

    Args:
        input_global_scale: of the activations; 0 is what an uncalibrated layer has.
    """
    import torch

    need_vllm()
    layer = _layer("bfloat16")
    _set(layer, weight_packed=torch.zeros(ROWS, COLUMNS // 2, dtype=torch.uint8), weight_scale=_blocks("random"))
    _set(layer, input_global_scale=torch.tensor([input_global_scale]), weight_global_scale=torch.tensor([2.0]))
    run.upstream(f"{_QAT}:patched_w4a4_process_weights_after_loading")(SimpleNamespace(backend="cutlass"), layer)
    names = ("alpha", "input_global_scale", "weight_global_scale", "weight_scale")
    return {name: getattr(layer, name).detach() for name in names}


@probe(
    enters=(f"{_MODELOPT}:_marlin_process_scales_experts | {_QAT}:_marlin_process_scales_experts",),
    tensors=("effective",),
)
def marlin_experts(
    run: Run, *, patch: str = "modelopt", scales: str = "random", dtype: str = "bfloat16"
) -> Mapping[str, Any]:
    """What verl's helper for experts makes of block scales; it returns no factor. Arguments as `marlin_dense`.

    Returns:
        effective: as `marlin_scales`, for each expert in turn, with the global scale as vLLM processes it.
    """
    import torch

    need_vllm()
    module = choice("patch", patch, {"modelopt": _MODELOPT, "qat": _QAT})
    kind = getattr(torch, choice("dtype", dtype, tuple(_BIAS)))
    blocks = torch.stack([_blocks(scales)] * EXPERTS)
    codes = run.upstream(f"{module}:_marlin_process_scales_experts")(blocks, kind, COLUMNS, ROWS, GROUP, EXPERTS)
    scale = run.upstream(f"{_FP4}:nvfp4_marlin_process_global_scale")(torch.tensor(GLOBAL_SCALE, dtype=kind))
    return _seen(codes.reshape(-1, ROWS), scale, blocks, dtype)


@probe(enters=(f"{_MODELOPT}:_modelopt_moe_marlin_convert",), tensors=("w13/effective", "w2/effective"))
def marlin_moe(run: Run, *, scales: str = "random", dtype: str = "bfloat16") -> Mapping[str, Any]:
    """The experts of a layer after verl's conversion, which finds a private function of vLLM through `__globals__`.

    Fields as `marlin_scales`, for each of `w13` and `w2`; arguments too.
    """
    import torch

    need_vllm()
    _without_kernels(run)
    layer = _layer(dtype)
    layer.num_experts, layer.hidden_size, layer.intermediate_size_per_partition = EXPERTS, COLUMNS, COLUMNS
    blocks = {}
    for name, rows in (("w13", 2 * COLUMNS), ("w2", COLUMNS)):
        blocks[name] = torch.stack([_blocks(scales, rows)] * EXPERTS)
        weight = torch.zeros(EXPERTS, rows, COLUMNS // 2, dtype=torch.uint8)
        given = {"weight": weight, "weight_scale": blocks[name], "weight_scale_2": torch.full((EXPERTS,), GLOBAL_SCALE)}
        _set(layer, **{f"{name}_{part}": value for part, value in given.items()})
    method = SimpleNamespace(moe=SimpleNamespace(is_act_and_mul=True))
    run.upstream(f"{_MODELOPT}:_modelopt_moe_marlin_convert")(method, layer, True)
    return {name: _expert_scales(layer, name, found, dtype) for name, found in blocks.items()}


def _expert_scales(layer: Any, name: str, blocks: Any, dtype: str) -> Mapping[str, Any]:
    codes = getattr(layer, f"{name}_weight_scale").detach()
    scale = getattr(layer, f"{name}_weight_scale_2").detach().reshape(-1)[0]
    return _seen(codes.reshape(-1, codes.shape[-1]), scale, blocks, dtype)


def need_vllm() -> None:
    """Refuse to go on where there is no vLLM.

    Raises:
        Unavailable: always then.
    """
    if importlib.util.find_spec("vllm") is None:
        raise Unavailable("needs vLLM: --old verl-0.9.1-vllm-0.12 --new verl-0.9.1-vllm-0.20, or --pin vllm==VERSION")


def _without_kernels(run: Run) -> None:
    """Let a CPU host do without the kernel that repacks weights, and without the lock that a GPU's kernel needs."""
    import torch

    ops = run.upstream("vllm._custom_ops")
    ops.gptq_marlin_repack = lambda b_q_weight, **_: b_q_weight
    run.stand_in("vllm._custom_ops.gptq_marlin_repack", "the weights as they are", "a CUDA kernel")
    for module in (run.upstream(_FP4), run.upstream(_MARLIN)):
        module.marlin_make_workspace_new = lambda device, *_: torch.zeros(1, dtype=torch.int, device=device)
    run.stand_in(f"{_MARLIN}.marlin_make_workspace_new", "one zero", "asks the GPU for its processors")


def _let_factor_be_zero(run: Run) -> None:
    module = run.upstream(_MODELOPT)
    split = module._split_marlin_scale
    module._split_marlin_scale = lambda value: (split(value)[0], 0.0)
    run.stand_in(f"{_MODELOPT}._split_marlin_scale", "itself, with a factor of 0", "a factor that no scales give")


def _layer(dtype: str) -> Any:
    import torch

    layer = torch.nn.Module()
    layer.output_size_per_partition, layer.input_size_per_partition = ROWS, COLUMNS
    layer.params_dtype = getattr(torch, choice("dtype", dtype, tuple(_BIAS)))
    return layer


def _set(layer: Any, **tensors: Any) -> None:
    import torch

    for name, value in tensors.items():
        layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))


def _blocks(scales: str, rows: int = ROWS) -> Any:
    """Block scales in E4M3, `[output, groups]`, as a checkpoint has them."""
    import torch

    index = torch.arange(rows * COLUMNS // GROUP)
    if scales.startswith("0x"):
        given = torch.tensor(list(bytes.fromhex(scales[2:])), dtype=torch.uint8)
        codes = given[index % len(given)]
    else:
        codes = choice("scales", scales, _CODES)(index).to(torch.uint8)
    return codes.view(torch.float8_e4m3fn).reshape(rows, COLUMNS // GROUP)


def _seen(codes: Any, scale: Any, blocks: Any, dtype: str) -> Mapping[str, Any]:
    """What is in processed scales: bytes of S0E5M3, which are the upper byte of a half shifted by its sign bit."""
    import torch

    raw = codes.view(torch.uint8).to(torch.int16)
    effective = (raw << 7).view(torch.float16).double() * scale.double() / 2.0 ** _BIAS[dtype]
    exact = (blocks.double() * GLOBAL_SCALE).flatten().sort().values
    errors = ((effective.flatten().sort().values - exact).abs() / exact.clamp_min(torch.finfo(exact.dtype).tiny)).max()
    return {
        "effective": effective.float(),
        "without_top_bit": int(((raw > 0) & (raw < 0x80)).sum()),
        "largest_error": float(errors),
    }
