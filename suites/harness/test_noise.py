"""What a noise floor allows, and what it does not."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from harness.compare.measure import measure
from harness.compare.noise import Rounding, coarsest, judge_noise, measure_floor
from harness.compare.tensors import TensorVerdict, compare_arrays

Array = NDArray[Any]
BASE = np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
LARGE = 1e-3


def noisy(seed: int, size: float = LARGE, array: Array = BASE) -> Array:
    noise = np.random.default_rng(seed).normal(size=array.shape) * size
    return (array.astype(np.float64) * (1 + noise)).astype(array.dtype)


def verdict(new: Array, *, repeats: tuple[Array, ...] = (), perturbed: tuple[Array, ...] = ()) -> TensorVerdict:
    [found] = compare_arrays(
        {"w": BASE}, {"w": new}, [{"w": run} for run in repeats], [{"w": run} for run in perturbed]
    )
    return found


def failed(found: TensorVerdict) -> list[str]:
    return [check.quantity for check in found.checks if not check.passed]


def test_without_further_runs_only_bitwise_is_identical() -> None:
    assert verdict(BASE.copy()).kind == "identical"
    found = verdict(np.nextafter(BASE, np.inf))
    assert (found.kind, found.floor, found.allowed) == ("different", None, 0.0)
    assert "allowed: bitwise equality (old ran once)" in found.message


def test_repeats_that_are_bitwise_equal_allow_nothing_else() -> None:
    found = verdict(np.nextafter(BASE, np.inf), repeats=(BASE.copy(), BASE.copy()))
    assert (found.kind, found.floor) == ("different", None)
    assert "old repeats itself bit for bit" in found.message


def test_as_much_as_repeats_are_apart_is_noise() -> None:
    found = verdict(noisy(2), repeats=(noisy(1),))
    assert found.kind == "within_noise", found.message
    assert found.floor is not None
    assert (found.floor.source, found.floor.runs, found.floor.pairs, found.floor.factor) == ("repeats", 2, 1, 4.0)
    assert found.needed <= found.allowed


def test_every_pair_of_repeats_counts() -> None:
    found = verdict(noisy(2), repeats=(noisy(1), noisy(3), noisy(4)))
    assert found.floor is not None
    assert (found.floor.runs, found.floor.pairs) == (4, 6)


def test_more_than_repeats_are_apart_is_a_difference_that_tells_both_tolerances() -> None:
    found = verdict(noisy(2, 10 * LARGE), repeats=(noisy(1),))
    assert found.kind == "different"
    assert failed(found)[0] == "relative error"
    assert found.needed > found.allowed > 0
    assert f"relative error: allowed {found.allowed:.3g}, needed {found.needed:.3g}" in found.message


def lost_row(array: Array) -> Array:
    copy = array.copy()
    copy[3] = 0
    return copy


@pytest.mark.parametrize(
    ("fault", "quantity"),
    [
        (lambda array: array * np.float32(1 + LARGE), "scale"),
        (lambda array: array + np.float32(LARGE), "shift"),
        (lost_row, "distance of the worst element"),
        (lambda array: np.where(array == array.max(), np.nan, array), "NaN and infinity in other places"),
    ],
)
def test_a_fault_within_the_norm_of_the_noise_is_found_by_another_bound(fault: Any, quantity: str) -> None:
    found = verdict(fault(noisy(2)), repeats=(noisy(1), noisy(3)))
    assert quantity in failed(found), found.message


def test_a_zero_that_changes_its_sign_is_no_noise() -> None:
    old, repeat, new = BASE.copy(), noisy(1), noisy(2)
    for array in (old, repeat, new):
        array[0, 0] = 0.0
    new[0, 0] = -0.0
    [found] = compare_arrays({"w": old}, {"w": new}, [{"w": repeat}])
    assert failed(found) == ["zeros of another sign"]


def reordered(order: int, left: Array, right: Array) -> Array:
    permutation = np.random.default_rng(order).permutation(left.shape[1])
    total = np.zeros((left.shape[0], right.shape[1]), dtype=np.float32)
    for piece in np.array_split(permutation, 8):
        total += left[:, piece] @ right[piece]
    return total


def test_reassociation_is_noise_only_against_perturbed_runs() -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=shape).astype(np.float32) for shape in ((128, 512), (512, 64)))
    old, new = {"y": left @ right}, {"y": reordered(1, left, right)}
    perturbed = [{"y": (left + np.spacing(left) * rng.choice([-1, 1], left.shape)).astype(np.float32) @ right}]
    [alone] = compare_arrays(old, new, [old])
    [against] = compare_arrays(old, new, [old], perturbed)
    assert alone.kind == "different"
    assert against.kind == "within_noise", against.message
    assert against.floor is not None
    assert against.floor.source == "perturbed"
    [scaled] = compare_arrays(old, {"y": new["y"] * np.float32(1 + 1e-6)}, [old], perturbed)
    assert failed(scaled) == ["scale"]


def test_integers_are_never_reassociated() -> None:
    old = np.arange(10)
    [found] = compare_arrays({"w": old}, {"w": old + 1}, perturbed=[{"w": old + 1}])
    assert found.kind == "different"


def test_a_tensor_that_a_further_run_lacks_has_no_floor() -> None:
    [found] = compare_arrays({"w": BASE}, {"w": noisy(1)}, [{}])
    assert (found.kind, found.why) == ("different", "a further run of old (repeats) lacks it")


def test_a_tensor_on_one_side_only_is_different_whatever_the_floor() -> None:
    kinds = {
        found.name: found.kind for found in compare_arrays({"w": BASE}, {"w": noisy(2), "v": BASE}, [{"w": noisy(1)}])
    }
    assert kinds == {"v": "different", "w": "within_noise"}


def test_a_tensor_that_chance_left_bitwise_equal_may_move_by_ulps_where_others_are_noisy() -> None:
    loss = np.array(3.0, dtype=np.float32)
    old = {"loss": loss, "w": BASE}
    repeat = {"loss": loss, "w": noisy(1)}
    for steps, kind in ((2, "within_noise"), (1000, "different")):
        new = {"loss": np.float32(loss + steps * np.spacing(loss)).reshape(()), "w": noisy(2)}
        assert [found.kind for found in compare_arrays(old, new, [repeat])] == [kind, "within_noise"]


def test_the_coarsest_rounding_of_a_case() -> None:
    assert coarsest([("float32", (9, 9)), ("bfloat16", (8, 4)), ("bfloat16", (2, 3, 4)), ("int64", (5,))]) == Rounding(
        float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps), 6
    )
    assert not coarsest([("float32", (9, 9))]).narrow
    assert coarsest([("int64", (5,))]) == Rounding(0.0, 1)


def test_nan_in_a_floor_allows_nothing() -> None:
    broken = BASE.copy()
    broken[0, 0] = np.nan
    rounding = coarsest([("float32", BASE.shape)])
    floor = measure_floor("repeats", BASE, [broken], rounding)
    checks = {check.quantity: check for check in judge_noise(measure(BASE, broken), floor, "float32", rounding)}
    assert not checks["NaN and infinity in other places"].passed


def test_a_floor_takes_a_further_run() -> None:
    with pytest.raises(ValueError, match="at least one"):
        measure_floor("repeats", BASE, [], coarsest([]))
