"""Pictures of a difference: where in the tensor, how large; and how far off every module is, from sketches alone."""

from __future__ import annotations

import base64
import math

import ml_dtypes
import numpy as np
import pytest

from harness.compare.module_errors import ModuleError, module_errors
from harness.compare.profile import DECADES, LARGEST, profile
from harness.observe.trace import SKETCH, Phase, Step, TracedTensor


def test_the_map_shows_where_and_the_histogram_how_much() -> None:
    old = np.ones((32, 96), dtype=np.float32)
    new = old.copy()
    new[31, 0] = 1.25
    new[0, 95] += 2**-23
    found = profile(old, new)
    assert found is not None
    assert (found.rows, found.columns, len(found.map), len(found.map[0])) == (32, 96, 16, 48)
    assert found.map[15][0] == 0.25
    assert found.map[0][47] == float(f"{2**-23:.3g}")
    assert sum(cell != 0 for row in found.map for cell in row if cell is not None) == 2
    assert len(found.histogram) == len(DECADES) + 2
    assert sum(found.histogram) == old.size
    assert found.histogram[0] == old.size - 2
    assert found.histogram[2 + DECADES.index(-1)] == 1
    assert found.histogram[2 + DECADES.index(-7)] == 1


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.complex64, np.int32])
def test_any_dtype_and_shape_has_a_profile(dtype: type) -> None:
    for shape in ((), (5,), (2, 3, 4)):
        found = profile(np.zeros(shape, dtype), np.ones(shape, dtype))
        assert found is not None
        assert sum(found.histogram) == math.prod(shape)
        assert found.map[0][0] == 1.0


def test_what_is_not_finite_has_no_number() -> None:
    old, new = np.array([1.0, math.nan, 1.0, math.inf]), np.array([math.nan, math.nan, 1.0, math.inf])
    found = profile(old, new)
    assert found is not None
    assert found.map == ((None, 0.0, 0.0, 0.0),)
    assert (found.histogram[0], found.histogram[-1]) == (3, 1)


def test_what_is_empty_or_huge_has_none() -> None:
    assert profile(np.zeros(0), np.zeros(0)) is None
    huge = np.broadcast_to(np.float32(0), LARGEST + 1)
    assert profile(huge, huge) is None


def traced(values: np.ndarray) -> TracedTensor:
    sketch = base64.b64encode(np.resize(values, SKETCH).astype(np.float64).tobytes()).decode()
    return TracedTensor("float32", values.shape, sketch[:16], float(np.linalg.norm(values)), sketch)


def step(module: str, values: np.ndarray, phase: Phase = "forward") -> Step:
    return Step(module, phase, (), (traced(values),))


def test_modules_are_told_in_order_with_the_largest_error_of_calls_and_ranks() -> None:
    ones = np.ones(SKETCH)
    old = [[step("fc", ones), step("fc", ones), step("norm", ones), step("fc", ones, "backward")]] * 2
    new = [[step("fc", ones), step("fc", 1.5 * ones), step("norm", ones), step("fc", 2 * ones, "backward")], old[1]]
    again = [[[step("fc", 1.001 * ones)], []]]
    assert module_errors(old, new) == (
        ModuleError("fc", "forward", 0.5),
        ModuleError("norm", "forward", 0.0),
        ModuleError("fc", "backward", 1.0),
    )
    noise = {found.module: found.noise for found in module_errors(old, new, again) if found.phase == "forward"}
    assert noise == {"fc": pytest.approx(0.001), "norm": 0.0}


def test_outputs_that_cannot_be_compared_have_no_error() -> None:
    ones = np.ones(SKETCH)
    bare = Step("ids", "forward", (), (TracedTensor("int64", (2,), "a"),))
    old = [[step("fc", ones), bare, step("gone", ones)]]
    new = [[step("fc", np.ones(SKETCH + 1)), bare]]
    assert module_errors(old, new) == ()
