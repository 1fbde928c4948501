"""Tensors of two observations: read from their files, compared bit by bit, judged by the noise floor."""

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from harness.compare import Ledger, Side, Verdict, judge
from harness.compare.elements import elements, map_safetensors
from harness.compare.tensors import compare_tensors, tensor_differences
from harness.observe.codec import encode
from harness.observe.observation import Observation, ObservationError, TensorData, TensorEntry, load, save

Array = NDArray[Any]


def observed(folder: Path, **tensors: Array) -> Observation:
    encoding = encode(tensors)
    entries = {
        name: TensorEntry(array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for name, array in encoding.tensors.items()
    }
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


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            {"w": {"dtype": "F32", "shape": [64], "data_offsets": [0, 999]}},
            "lies in bytes 0 to 999 of 256, and takes 256",
        ),
        ({"w": {"dtype": "F32", "shape": [63], "data_offsets": [0, 256]}}, "and takes 252"),
        ({"w": {"dtype": "F4", "shape": [64], "data_offsets": [0, 256]}}, "dtype F4, which is not known"),
        ({"w": {"dtype": "F32"}}, "shape"),
        (["w"], "tensors.safetensors"),
        ({}, "holds nothing for w, which is float32"),
        ({"w": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 256]}}, r"holds float32\[8, 8\] for w"),
    ],
)
def test_a_header_that_lies_is_an_error_that_names_the_file(tmp_path: Path, header: Any, message: str) -> None:
    old, new = observed(tmp_path / "a", w=base), observed(tmp_path / "b", w=base + 1)
    text = json.dumps(header).encode()
    (tmp_path / "b" / "tensors.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + base.tobytes())
    with pytest.raises(ObservationError, match=message) as caught:
        compare_tensors(old, new)
    assert "tensors.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64", "complex64"),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    ],
)
def test_every_dtype_of_an_observation_is_mapped(tmp_path: Path, dtype: Any) -> None:
    array = np.array([[0, 1, 0], [1, 1, 0]]).astype(dtype)
    new = array.copy()
    new[1, 2] = 1
    old = observed(tmp_path / "a", w=array, scalar=np.array(1).astype(dtype), empty=np.zeros((0, 3), dtype=dtype))
    other = observed(tmp_path / "b", w=new, scalar=np.array(1).astype(dtype), empty=np.zeros((0, 3), dtype=dtype))
    mapped = map_safetensors(tmp_path / "a" / "tensors.safetensors")
    assert mapped["w"].dtype == array.dtype
    assert mapped["w"].tolist() == array.tolist()
    found = {verdict.name: verdict for verdict in compare_tensors(old, other)}
    assert {name: verdict.kind for name, verdict in found.items()} == {
        "empty": "identical",
        "scalar": "identical",
        "w": "different",
    }
    statistics = found["w"].statistics
    assert statistics is not None
    assert statistics.worst is not None
    assert statistics.worst.index == (1, 2)


def test_a_message_names_tensor_worst_element_and_both_tolerances(tmp_path: Path) -> None:
    old = observed(tmp_path / "a", w=base.reshape(8, 8))
    new = observed(tmp_path / "b", w=changed(base, 13, 14.5).reshape(8, 8))
    [verdict] = compare_tensors(old, new)
    assert verdict.message.splitlines() == [
        "w: different",
        "  elements that differ: 1 of 64 (1.562%)",
        "  worst at [1, 5]: old 14.0, new 14.5 (distance 0.5); largest distance of any: 524288 ulp",
        "  relative error 0.00167, of the worst row 0.0125",
        "  shift 0.00781 (+1.0 standard errors), scale 7.97e-05 (+1.0 standard errors)",
        "  allowed: bitwise equality (old ran once); would have passed: relative error 0.00167",
    ]


def test_large_observations_are_not_read_into_memory(tmp_path: Path) -> None:
    large = np.ones((4096, 2048), dtype=np.float32)
    old, new = observed(tmp_path / "a", w=large), observed(tmp_path / "b", w=large + np.float32(1e-6))
    del large
    tracemalloc.start()
    try:
        [verdict] = compare_tensors(old, new)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert verdict.kind == "different"
    assert peak < 16 * 2**20


def judged(tmp_path: Path, *, steps: int, **further: list[Array]) -> Any:
    old, new = observed(tmp_path / "old", w=base), observed(tmp_path / "new", w=moved(base, steps, 99))
    runs = {
        kind: [[observed(tmp_path / f"{kind}{number}", w=array)] for number, array in enumerate(arrays)]
        for kind, arrays in further.items()
    }
    sides = Side("old", "a", {}, [old], **runs), Side("new", "b", {}, [new])  # type: ignore[arg-type]
    return judge("case", *sides, Ledger())


def moved(array: Array, steps: int, seed: int) -> Array:
    away = np.random.default_rng(seed).integers(-steps, steps + 1, array.shape).astype(array.dtype)
    return array + np.spacing(array) * away


def test_differences_that_repeats_show_too_are_within_noise(tmp_path: Path) -> None:
    found = judged(tmp_path, steps=2, repeats=[moved(base, 2, 1), moved(base, 2, 2)])
    assert found.verdict is Verdict.WITHIN_NOISE
    assert not found.differences
    assert [difference.path for difference in found.noise] == ["w"]
    [[tensor]] = found.tensors
    assert (tensor.floor.runs, tensor.floor.source) == (3, "repeats")
    assert "relative error: allowed" in found.why


def test_differences_beyond_repeats_are_a_regression(tmp_path: Path) -> None:
    found = judged(tmp_path, steps=2000, repeats=[moved(base, 2, 1)])
    assert found.verdict is Verdict.REGRESSION
    assert not found.noise


def test_differences_without_further_runs_are_a_regression(tmp_path: Path) -> None:
    assert judged(tmp_path, steps=2).verdict is Verdict.REGRESSION
