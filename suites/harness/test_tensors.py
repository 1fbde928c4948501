"""The bitwise comparison of tensors catches every seeded fault, and nothing else."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from harness.compare.tensors import tensor_differences
from harness.observe.codec import encode
from harness.observe.observation import Observation, ObservationError, entries_of, load, save

Array = NDArray[Any]


def observed(folder: Path, **tensors: Array) -> Observation:
    encoding = encode(tensors)
    entries = entries_of(encoding)
    save(Observation(encoding.tree, entries, None, (), (), (), {}, {}, 0.0), encoding.tensors, folder)
    return load(folder)


def told(tmp_path: Path, old: dict[str, Array], new: dict[str, Array]) -> list[str]:
    return [
        str(found) for found in tensor_differences(observed(tmp_path / "a", **old), observed(tmp_path / "b", **new))
    ]


def flipped_bit(array: Array) -> Array:
    bits = array.copy().view(np.uint32)
    bits[7] ^= 1
    return bits.view(np.float32)


def changed(array: Array, index: int, value: float) -> Array:
    copy = array.copy()
    copy[index] = value
    return copy


base = np.arange(1, 65, dtype=np.float32)
SEEDED = {
    "flipped bit": (flipped_bit(base), "1 of 64 elements differ, worst at [7]"),
    "scaled by 0.1 %": (base * np.float32(1.001), "64 of 64"),
    "one NaN": (changed(base, 3, np.nan), "worst at [3]"),
    "infinity": (changed(base, 3, np.inf), "worst at [3]"),
    "dtype widened": (base.astype(np.float64), "float64"),
    "shape": (base.reshape(8, 8), "[8, 8]"),
    "rows exchanged": (base[::-1], "64 of 64"),
    "one element fewer": (base[:-1], "[63]"),
}


@pytest.mark.parametrize("fault", SEEDED)
def test_a_seeded_fault_is_found_and_described(tmp_path: Path, fault: str) -> None:
    new, expected = SEEDED[fault]
    [difference] = told(tmp_path, {"w": base}, {"w": np.ascontiguousarray(new)})
    assert expected in difference


def test_the_sign_of_zero_counts(tmp_path: Path) -> None:
    [difference] = told(tmp_path, {"w": np.zeros(3)}, {"w": np.array([0.0, -0.0, 0.0])})
    assert difference == "w: 0.0 → -0.0 (1 of 3 elements differ, worst at [1])"


def test_a_tensor_on_one_side_only_is_a_difference(tmp_path: Path) -> None:
    assert told(tmp_path, {"w": base}, {"v": base}) == ["v: (absent) → float32[64]", "w: float32[64] → (absent)"]


def test_equal_tensors_do_not_differ_whatever_their_strides(tmp_path: Path) -> None:
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert told(tmp_path, {"w": square.T}, {"w": np.ascontiguousarray(square.T)}) == []


def test_nan_equals_nan_in_the_same_place_whatever_its_payload(tmp_path: Path) -> None:
    other = np.array([0x7FC00001], dtype=np.uint32).view(np.float32)
    assert told(tmp_path, {"w": np.array([np.nan], dtype=np.float32)}, {"w": other}) == []


def test_elements_of_bfloat16_are_compared_by_value(tmp_path: Path) -> None:
    from harness.compare.tensors import elements
    from harness.observe.observation import TensorData

    data = np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16)
    assert elements(TensorData("bfloat16", (2,), data.tobytes())).tolist() == [1.5, -2.0]


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_damaged_elements_are_an_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    old, new = observed(tmp_path / "a", w=base), observed(tmp_path / "b", w=base + 1)
    file = tmp_path / "b" / "tensors.safetensors"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ObservationError, match=r"tensors\.safetensors"):
        tensor_differences(old, new)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 99}', "\x00"])
def test_a_damaged_observation_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "observation.json").write_text(content)
    with pytest.raises(ObservationError, match=r"observation\.json"):
        load(tmp_path)
