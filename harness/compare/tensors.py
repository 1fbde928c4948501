"""Bitwise comparison of tensors: dtype, shape and elements; NaN equals NaN in the same place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from harness.compare.trees import ABSENT, Difference
from harness.observe.observation import Observation, TensorData, TensorEntry

_ML_DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def tensor_differences(old: Observation, new: Observation) -> list[Difference]:
    """Every tensor that is missing on one side, or differs in dtype, shape or any element.

    Raises:
        ObservationError: the elements of a tensor cannot be read.
    """
    unequal = [name for name in sorted({*old.tensors, *new.tensors}) if old.tensors.get(name) != new.tensors.get(name)]
    if not unequal:
        return []
    ours, theirs = old.tensor_data(), new.tensor_data()
    return [found for name in unequal if (found := _difference(name, old.tensors, new.tensors, ours, theirs))]


def _difference(
    name: str,
    old: Mapping[str, TensorEntry],
    new: Mapping[str, TensorEntry],
    old_data: Mapping[str, TensorData],
    new_data: Mapping[str, TensorData],
) -> Difference | None:
    if name not in new:
        return Difference(name, "removed", _kind(old[name]), ABSENT)
    if name not in old:
        return Difference(name, "added", ABSENT, _kind(new[name]))
    if (old[name].dtype, old[name].shape) != (new[name].dtype, new[name].shape):
        return Difference(name, "changed", _kind(old[name]), _kind(new[name]))
    return _element_difference(name, elements(old_data[name]), elements(new_data[name]))


def elements(data: TensorData) -> NDArray[Any]:
    """The elements as a numpy array of the tensor's shape; bfloat16 and float8 through ml_dtypes."""
    dtype = np.dtype(_ML_DTYPES.get(data.dtype, data.dtype))
    return np.frombuffer(data.data, dtype=dtype).reshape(data.shape)


def _element_difference(name: str, old: NDArray[Any], new: NDArray[Any]) -> Difference | None:
    unequal = _bits(old) != _bits(new)
    if _is_inexact(old):
        unequal &= ~(np.isnan(old) & np.isnan(new))
    count = int(unequal.sum())
    if count == 0:
        return None
    distance = np.where(unequal, np.abs(_wide(old) - _wide(new)), -1.0)
    distance = np.where(np.isnan(distance), np.inf, distance)
    worst = np.unravel_index(int(distance.argmax()), distance.shape)
    where = ", ".join(str(int(index)) for index in worst)
    share = f"{count} of {old.size} elements differ, worst at [{where}]"
    return Difference(name, "changed", f"{old[worst]!s}", f"{new[worst]!s} ({share})")


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    width = array.dtype.itemsize
    if width > 8:
        return array
    return np.ascontiguousarray(array).view(f"u{width}").reshape(array.shape)


def _is_inexact(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "fc" or array.dtype.name in _ML_DTYPES


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _kind(entry: TensorEntry) -> str:
    return f"{entry.dtype}{list(entry.shape)}"
