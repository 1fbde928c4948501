"""NVFP4 block scales in Marlin's layout: a vLLM that returns a tensor, one that returns a pair, verl's patches on both.

The stacks of the two are not built by default:
`python3 -m nox -s parity -- suites/parity/test_marlin_scales.py --old verl-0.9.1-vllm-0.12 --new verl-0.9.1-vllm-0.20`.
"""

import pytest

from harness.pytest_plugin import Consistency, Parity

pytestmark = pytest.mark.regression("K22")

HELPERS = ["vllm", "modelopt_dense", "modelopt_experts", "modelopt_moe", "qat_dense", "qat_experts"]
SCALES = ["random", "tiny", "huge", "mixed", "zero"]


@pytest.mark.parametrize("form", ["tensor", "tuple", "list", "none"])
def test_forms(parity: Parity, form: str) -> None:
    parity("marlin_forms", form=form)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scales", SCALES)
def test_scales(parity: Parity, scales: str, dtype: str) -> None:
    parity("marlin_scales", scales=scales, dtype=dtype)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("patch", ["modelopt", "qat"])
def test_dense(parity: Parity, patch: str, scales: str) -> None:
    parity("marlin_dense", patch=patch, scales=scales)


@pytest.mark.parametrize("patch", ["modelopt", "qat"])
def test_dense_in_float16(parity: Parity, patch: str) -> None:
    parity("marlin_dense", patch=patch, scales="mixed", dtype="float16")


def test_dense_without_calibration(parity: Parity) -> None:
    parity("marlin_dense", input_scale=0.0)


def test_dense_with_a_zero_factor(parity: Parity) -> None:
    parity("marlin_dense", zero_factor=True)


@pytest.mark.parametrize("input_global_scale", [2.0, 0.0])
def test_w4a4(parity: Parity, input_global_scale: float) -> None:
    parity("marlin_w4a4", input_global_scale=input_global_scale)


@pytest.mark.parametrize("scales", ["random", "mixed"])
@pytest.mark.parametrize("patch", ["modelopt", "qat"])
def test_experts(parity: Parity, patch: str, scales: str) -> None:
    parity("marlin_experts", patch=patch, scales=scales)


@pytest.mark.parametrize("scales", SCALES)
def test_moe(parity: Parity, scales: str) -> None:
    parity("marlin_moe", scales=scales)


@pytest.mark.self_consistency
@pytest.mark.parametrize("scales", ["random", "mixed"])
@pytest.mark.parametrize("helper", HELPERS)
def test_the_dequantised_scale_is_the_same(consistency: Consistency, helper: str, scales: str) -> None:
    consistency("marlin_invariant", helper=helper, scales=scales)
