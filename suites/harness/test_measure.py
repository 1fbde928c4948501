"""The statistics of a pair of tensors, against their definitions written out in float64 and Python integers."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from harness.compare.measure import _CHUNK, bitwise_equal, measure

Array = NDArray[Any]
FLOATS = ("float64", "float32", "float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
INTEGERS = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
LONG = _CHUNK // 2 + 1234


def pair(dtype: Any, *shape: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    old = rng.normal(size=shape)
    new = old * np.where(rng.random(shape) < 0.3, rng.normal(1, 0.1, shape), 1.0)
    return old.astype(dtype), new.astype(dtype)


def ordered(array: Array) -> list[int]:
    """Bits as integers in the order of the numbers, both zeros 0."""
    bits = [int(item) for item in array.reshape(-1).view(f"i{array.itemsize}")]
    largest = 2 ** (8 * array.itemsize - 1) - 1
    return [item if item >= 0 else -(item & largest) for item in bits]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(21,), (3, 50), (40, 30, 20), (LONG,)])
def test_statistics_of_floats_are_what_they_say(dtype: Any, shape: tuple[int, ...]) -> None:
    old, new = pair(dtype, *shape)
    a, b = old.astype(np.float64), new.astype(np.float64)
    d = b - a
    found = measure(old, new)
    assert found.size == a.size
    assert found.differing == np.count_nonzero(old.view(f"u{old.itemsize}") != new.view(f"u{new.itemsize}"))
    assert found.relative_error == pytest.approx(np.linalg.norm(d) / np.linalg.norm(a), rel=1e-5)
    assert found.rms == pytest.approx(np.sqrt((a * a).mean()), rel=1e-5)
    assert found.shift == pytest.approx(d.mean(), rel=1e-3, abs=1e-6 * np.abs(d).mean())
    assert found.scale == pytest.approx(((a + b) * d).sum() / (2 * (a * a).sum()), rel=1e-3, abs=1e-8)
    assert found.worst is not None
    assert abs(d[found.worst.index]) == np.abs(d).max() == pytest.approx(found.worst.distance, rel=1e-6)
    assert (found.worst.old, found.worst.new) == (str(old[found.worst.index]), str(new[found.worst.index]))
    if a.size < 10_000 or old.itemsize == 2:
        assert found.max_ulp == max(abs(x - y) for x, y in zip(ordered(old), ordered(new), strict=True))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_statistics_of_integers(dtype: str) -> None:
    old = np.arange(100).reshape(10, 10).astype(dtype)
    new = old.copy()
    new[3, 4] = not old[3, 4] if dtype == "bool" else old[3, 4] + 5
    found = measure(old, new)
    assert (found.differing, found.max_ulp, found.zero_signs) == (1, 1 if dtype == "bool" else 5, 0)
    assert found.worst is not None
    assert (found.worst.index, found.worst.old, found.worst.new) == ((3, 4), str(old[3, 4]), str(new[3, 4]))


def test_integers_beyond_the_precision_of_float64() -> None:
    old = np.array([2**60, 5], dtype=np.int64)
    found = measure(old, old + np.array([1, 0]))
    assert found.worst is not None
    assert (found.differing, found.max_ulp, found.worst.distance) == (1, 1, 1.0)


def test_complex_numbers_are_measured_by_their_parts() -> None:
    old = np.array([1 + 2j, 3 + 4j], dtype=np.complex64)
    new = np.array([1 + 2j, 3 + 5j], dtype=np.complex64)
    found = measure(old, new)
    assert found.worst is not None
    assert (found.worst.index, found.worst.distance, found.differing) == ((1,), 1.0, 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_equals_nan_and_one_more_is_shown(dtype: Any) -> None:
    old, new = pair(dtype, 4, 5)
    old[1, 2] = new[1, 2] = np.nan
    assert measure(old, old.copy()).differing == 0
    new[3, 3] = np.nan
    found = measure(old, new)
    assert (found.nan, found.moved, found.relative_error) == ((1, 2), ((3, 3),), math.inf)
    assert found.worst is not None
    assert (found.worst.index, found.worst.distance) == ((3, 3), math.inf)


def test_an_infinity_in_the_same_place_is_no_difference_and_of_the_other_sign_it_is() -> None:
    old = np.array([np.inf, 1.0, -np.inf], dtype=np.float32)
    new = old + np.array([0, 1e-3, 0], dtype=np.float32)
    found = measure(old, new)
    assert (found.inf, found.moved, found.differing) == ((2, 2), (), 1)
    assert found.relative_error == pytest.approx(1e-3, rel=1e-3)
    assert measure(old, -old).moved == ((0,), (2,))


@pytest.mark.parametrize("magnitude", [1e-30, 1e-20, 1e-12, 1.0, 1e18, 1e30])
def test_no_magnitude_of_float32_over_or_underflows(magnitude: float) -> None:
    rng = np.random.default_rng(0)
    old = (rng.normal(size=5000) * magnitude).astype(np.float32)
    found = measure(old, old * np.float32(1.001))
    assert found.relative_error == pytest.approx(1e-3, rel=1e-3)
    assert found.scale == pytest.approx(1e-3, rel=1e-3)


def test_a_bias_shows_and_symmetric_noise_does_not() -> None:
    rng = np.random.default_rng(0)
    old = rng.normal(size=(256, 64)).astype(np.float32)
    noise = rng.normal(size=old.shape).astype(np.float32) * np.float32(1e-3)
    symmetric, scaled, shifted = (measure(old, new) for new in (old + noise, (old + noise) * 1.001, old + noise + 1e-3))
    assert abs(symmetric.shift_bias) < 4
    assert abs(symmetric.scale_bias) < 4
    assert scaled.scale_bias > 6 > abs(scaled.shift_bias)
    assert shifted.shift_bias > 6 > abs(shifted.scale_bias)


def test_noise_that_old_holds_too_is_no_scale_error() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(1000, 1000)).astype(np.float32)
    old, new = (truth + rng.normal(size=truth.shape).astype(np.float32) * np.float32(0.05) for _ in range(2))
    assert abs(measure(old, new).scale_bias) < 4


def test_a_row_that_is_lost_shows_where_the_norm_hides_it() -> None:
    old, _ = pair("float32", 4096, 64)
    new = old.copy()
    new[17] = 0
    found = measure(old, new)
    assert found.relative_error < 0.02
    assert found.row_error > 0.2


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1)])
def test_tiny_tensors(shape: tuple[int, ...]) -> None:
    old = np.full(shape, 2.0, dtype=np.float32)
    found = measure(old, old)
    assert (found.differing, found.worst, found.relative_error, found.size) == (0, None, 0.0, old.size)
    if old.size:
        assert measure(old, old + 1).relative_error == 0.5


def test_tensors_of_two_shapes_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="cannot be measured"):
        measure(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("size", [1, 7, LONG])
def test_bitwise_equality(dtype: Any, size: int) -> None:
    old = (np.arange(size) % 2).astype(dtype)
    assert bitwise_equal(old, old.copy())
    new = old.copy()
    new[-1] = not old[-1]
    assert not bitwise_equal(old, new)
