"""What the kernel multiplies a weight by is what the checkpoint says, whatever form vLLM returns scales in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import marlin_scales
from harness.probes._models import choice
from harness.probes.registry import consistency_probe

E4M3_ROUNDING = 2.0**-4
"""Largest relative error of rounding to nearest with three bits of mantissa (E4M3, arXiv:2209.05433)."""

HELPERS = {
    "vllm": (marlin_scales.marlin_scales, {}),
    "modelopt_dense": (marlin_scales.marlin_dense, {"patch": "modelopt"}),
    "modelopt_experts": (marlin_scales.marlin_experts, {"patch": "modelopt"}),
    "modelopt_moe": (marlin_scales.marlin_moe, {}),
    "qat_dense": (marlin_scales.marlin_dense, {"patch": "qat"}),
    "qat_experts": (marlin_scales.marlin_experts, {"patch": "qat"}),
}


@consistency_probe(returns=("expected.*", "actual.*"))
def marlin_invariant(
    run: Run, *, helper: str = "vllm", scales: str = "random", dtype: str = "bfloat16"
) -> Mapping[str, Any]:
    """Block scale times global scale is the same before and after a helper of vLLM or verl, within E4M3's rounding.

    Args:
        helper: `vllm`, or a function of verl's patches: `modelopt_dense`, `modelopt_experts`, `modelopt_moe`,
            `qat_dense`, `qat_experts`.
        scales: as `marlin_scales`.
        dtype: as `marlin_scales`.

    Returns:
        For each weight (`weight`, or `w13` and `w2`), the largest relative error, `within rounding` or as a number.
    """
    function, arguments = choice("helper", helper, HELPERS)
    tree = function(run, scales=scales, dtype=dtype, **arguments)
    weights = tree if "w13" in tree else {"weight": tree}
    errors = {name: float(seen["largest_error"]) for name, seen in weights.items()}
    within = "within rounding"
    return {
        "expected": dict.fromkeys(errors, within),
        "actual": {name: within if error <= E4M3_ROUNDING else error for name, error in errors.items()},
    }
