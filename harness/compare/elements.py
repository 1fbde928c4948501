"""The elements of tensors: mapped from an observation's safetensors file, or arrays in memory.

Nothing is read before it is looked at, and nothing is copied: comparing two observations of several gigabytes takes no
more anonymous memory than the comparison's own scratch space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from harness.observe.observation import Observation, ObservationError, TensorData

Array = NDArray[Any]

TENSOR_FILE = "tensors.safetensors"
_ML_DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
_NAME_OF_CODE = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


class Tensors(Protocol):
    """Named tensors of one run."""

    def names(self) -> frozenset[str]:
        """Every name."""

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The dtype (torch's name) and shape of a tensor."""

    def digest(self, name: str) -> str | None:
        """SHA-256 of a tensor's elements where it is known: equal digests are equal tensors."""

    def array(self, name: str) -> Array:
        """The elements, row-major, in the tensor's shape; not to be written to.

        Raises:
            ObservationError: they cannot be read.
        """


class ArrayTensors:
    """Arrays in memory, e.g. shards put together."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def names(self) -> frozenset[str]:
        """See `Tensors`."""
        return frozenset(self._arrays)

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """See `Tensors`."""
        return self._arrays[name].dtype.name, self._arrays[name].shape

    def digest(self, name: str) -> str | None:
        """Not known."""
        return None

    def array(self, name: str) -> Array:
        """See `Tensors`."""
        return np.ascontiguousarray(self._arrays[name]).reshape(self._arrays[name].shape)


class ObservedTensors:
    """The tensors of an observation, mapped from its file when the first is asked for."""

    def __init__(self, observation: Observation) -> None:
        self._entries = observation.tensors
        self._folder = observation.folder

    def names(self) -> frozenset[str]:
        """See `Tensors`."""
        return frozenset(self._entries)

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """See `Tensors`."""
        return self._entries[name].dtype, self._entries[name].shape

    def digest(self, name: str) -> str | None:
        """See `Tensors`."""
        return self._entries[name].sha256

    def array(self, name: str) -> Array:
        """See `Tensors`."""
        found = self._mapped.get(name)
        if found is None or (found.dtype.name, found.shape) != self.kind(name):
            held = "nothing" if found is None else f"{found.dtype.name}{list(found.shape)}"
            dtype, shape = self.kind(name)
            raise ObservationError(f"{self._file}: holds {held} for {name}, which is {dtype}{list(shape)}")
        return found

    @property
    def _file(self) -> Path:
        return (self._folder or Path("(not on disk)")) / TENSOR_FILE

    @cached_property
    def _mapped(self) -> dict[str, Array]:
        return map_safetensors(self._file)


def map_safetensors(path: Path) -> dict[str, Array]:
    """Every tensor of a safetensors file, as a read-only view of the mapped file.

    The format (https://github.com/huggingface/safetensors#format): eight bytes, little-endian, with the size of the
    header; the header, a JSON object from name to dtype, shape and byte offsets; then the elements.

    Raises:
        ObservationError: the file is missing, damaged, or holds a dtype that is not known here.
    """
    try:
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
        if start > raw.size:
            raise ValueError(f"its header ends at byte {start}, the file at {raw.size}")
        header = json.loads(raw[8:start].tobytes())
        return {
            name: _view(raw[start:], name, entry["dtype"], entry["shape"], entry["data_offsets"])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ObservationError(f"{path}: {error}") from error


def _view(raw: Array, name: str, code: str, shape: list[int], offsets: list[int]) -> Array:
    if code not in _NAME_OF_CODE:
        raise ValueError(f"{name} has dtype {code}, which is not known here")
    dtype = dtype_named(_NAME_OF_CODE[code])
    begin, end = offsets
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not 0 <= begin <= end <= raw.size or end - begin != size:
        raise ValueError(f"{name} lies in bytes {begin} to {end} of {raw.size}, and takes {size}")
    return np.asarray(raw[begin:end]).view(dtype).reshape(shape)


def dtype_named(name: str) -> np.dtype[Any]:
    """The numpy dtype of torch's name; bfloat16 and float8 come from ml_dtypes."""
    return np.dtype(_ML_DTYPES.get(name, name))


def elements(data: TensorData) -> Array:
    """The elements as a numpy array of the tensor's shape; bfloat16 and float8 through ml_dtypes."""
    return np.frombuffer(data.data, dtype=dtype_named(data.dtype)).reshape(data.shape)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype has fractions, NaN and a sign of zero."""
    return dtype.kind in "fc" or dtype.name in _ML_DTYPES


def epsilon(dtype: np.dtype[Any]) -> float:
    """Distance from 1 to the next number of a dtype, 0 where it has no fractions; of complex64, float32's."""
    if not is_float(dtype):
        return 0.0
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
