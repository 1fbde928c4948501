"""Faults seeded into `numpy_step.training_step`, and how each comparison takes them.

Run as a script, it writes DETECTION.md anew (the base environment must be there).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors.numpy
from numpy_step import DTYPES, Array, Inputs, Tensors, make_inputs, moved_by_one_ulp, training_step
from upstream_faults import section

from harness.compare.tensors import TensorVerdict, compare_arrays
from harness.stacks.base import ensure
from harness.stacks.settings import load_settings

FLOORS = ("bitwise", "repeats", "perturbed")
COSINE = 0.99
CLEAN = 1000
DETECTION = Path(__file__).with_name("DETECTION.md")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: of the fault, and of the step's switch where `change` is None.
        change: what is done to the tensors of a right step.
        below: floors (`repeats`, `perturbed`) under which it lies by its nature, with the dtype they were measured in.
    """

    name: str
    change: Callable[[Tensors], None] | None = None
    below: frozenset[str] = frozenset()


def _element(name: str, index: tuple[int, ...], value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name][index] = value

    return change


def _flipped(name: str, bit: int) -> Callable[[Tensors], None]:
    """Flip one bit, counted from the lowest of a float32 (of the upper half in bfloat16)."""

    def change(tensors: Tensors) -> None:
        flat = tensors[name].reshape(-1)
        bits = flat.view(f"u{flat.itemsize}")
        # The largest element: a bit of one that is nearly zero is worth nothing.
        place = int(np.abs(flat.astype(np.float64)).argmax())
        bits[place] ^= 1 << max(0, bit - (32 - 8 * flat.itemsize))

    return change


def _replaced(name: str, by: Callable[[Array], Array]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = by(tensors[name])

    return change


def _dropped(tensors: Tensors) -> None:
    del tensors["state/second"]


def _added(tensors: Tensors) -> None:
    tensors["parameters/bias"] = np.zeros(4, dtype=np.float32)


def _rows_exchanged(array: Array) -> Array:
    copy = array.copy()
    copy[[17, 18]] = copy[[18, 17]]
    return copy


def _scaled(array: Array, factor: float) -> Array:
    return (array.astype(np.float32) * np.float32(factor)).astype(array.dtype)


def _shifted(array: Array) -> Array:
    return array + array.std() * np.float32(0.01)


def _one_off_by_a_tenth(array: Array) -> Array:
    copy = array.copy()
    # A typical element, so that a tenth of it is a tenth of the tensor's spread.
    place = int(np.abs(np.abs(array.astype(np.float64)) - array.astype(np.float64).std()).argmin())
    copy.reshape(-1)[place] = float(array.reshape(-1)[place]) * 1.1
    return copy


def _widened(array: Array) -> Array:
    return array.astype(np.float64 if array.dtype == np.float32 else np.float32)


def _narrowed(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16).astype(array.dtype)


def _towards_zero(array: Array) -> Array:
    """Every element a step nearer to zero, as truncation in the place of rounding would leave half of them."""
    bits = array.view(f"i{array.itemsize}")
    odd = np.arange(array.size).reshape(array.shape) % 2
    return np.where(array == 0, bits, bits - odd).astype(bits.dtype).view(array.dtype)


LOGITS = "activations/logits"
FAULTS = (
    *(
        Fault(name)
        for name in (
            "logits scaled by 0.1 %",
            "heads swapped",
            "weight transposed",
            "position ids off by one",
            "gradient dropped on a rank",
            "gradients summed, not averaged",
            "tensor parallel mean, not sum",
            "tensor parallel rank not reduced",
            "an expert skipped",
            "second best expert for a token",
            "router share not applied",
            "auxiliary loss added twice",
            "RNG not advanced",
            "attention dropout left on",
            "attention scaled by the hidden size",
            "a token sees the next",
            "gate and up exchanged",
            "GELU in the place of SiLU",
            "epsilon of the norm",
            "norm weight counted from one",
            "residual after the norm",
            "labels shifted",
            "loss mask ignored",
            "loss mask shifted",
            "loss over all tokens",
            "optimizer state stale",
            "a parameter not updated",
            "no bias correction",
            "no weight decay",
            "gradients not clipped",
            "learning rate a step late",
            "epsilon under the root",
        )
    ),
    Fault(
        "lowest bit of one element flipped",
        _flipped("updated/head", 0),
        frozenset({"float32 repeats", "float32 perturbed", "bfloat16 repeats", "bfloat16 perturbed"}),
    ),
    Fault("one bit flipped in the exponent", _flipped(LOGITS, 24)),
    Fault("one row of 4096 lost", _element("updated/head", (1234,), 0.0)),
    Fault("two rows of 4096 exchanged", _replaced("updated/head", _rows_exchanged)),
    Fault("one logit of 131072 off by a tenth", _replaced(LOGITS, _one_off_by_a_tenth)),
    Fault("updated parameter scaled by 0.1 %", _replaced("updated/head", lambda array: _scaled(array, 1.001))),
    Fault("activations scaled by 1 %", _replaced(LOGITS, lambda array: _scaled(array, 1.01))),
    Fault("gradient shifted by 1 % of its spread", _replaced("gradients/head", _shifted)),
    Fault(
        "half the logits an ulp nearer to zero",
        _replaced(LOGITS, _towards_zero),
        frozenset({"float32 repeats", "float32 perturbed"}),
    ),
    Fault("float32 passed through bfloat16", _replaced("updated/head", _narrowed)),
    Fault("one NaN", _element(LOGITS, (1, 2, 3), np.nan)),
    Fault("one infinity", _element("gradients/head", (7, 7), np.inf)),
    Fault("sign of a zero", _element("parameters/embedding", (0, 3), -0.0)),
    Fault("dtype widened", _replaced(LOGITS, _widened)),
    Fault("dimensions exchanged", _replaced("gradients/head", lambda array: np.ascontiguousarray(array.T))),
    Fault("a tensor missing", _dropped),
    Fault("a tensor too many", _added),
)


@dataclass(frozen=True)
class Bench:
    """The right step of one model, everything its floors are measured from, and a new run in another order."""

    dtype: str
    seed: int = 0

    @functools.cached_property
    def _inputs(self) -> Inputs:
        return make_inputs(self.seed, self.dtype)

    def old(self, floor: str) -> Tensors:
        return training_step(self._inputs, order=1 if floor == "repeats" else None)

    def runs(self, floor: str) -> dict[str, list[Tensors]]:
        inputs = self._inputs
        if floor == "repeats":
            return {"repeats": [training_step(inputs, order=2), training_step(inputs, order=3)]}
        if floor == "perturbed":
            return {"perturbed": [training_step(moved_by_one_ulp(inputs, number)) for number in range(3)]}
        return {"repeats": [training_step(inputs)]}

    def new(self, floor: str, fault: Fault | None = None, order: int = 4) -> Tensors:
        switches = () if fault is None or fault.change else (fault.name,)
        tensors = training_step(self._inputs, switches, None if floor == "bitwise" else order)
        if fault and fault.change:
            fault.change(tensors)
        return tensors


def alarms(verdicts: Iterable[TensorVerdict]) -> list[TensorVerdict]:
    return [verdict for verdict in verdicts if verdict.kind == "different"]


@functools.cache
def detections(dtype: str, floor: str) -> Mapping[str, bool]:
    """Fault → whether the comparison finds it above one floor."""
    bench = Bench(dtype)
    old, runs = bench.old(floor), bench.runs(floor)
    return {fault.name: bool(alarms(compare_arrays(old, bench.new(floor, fault), **runs))) for fault in FAULTS}


def cosine_detects(old: Tensors, new: Tensors) -> bool:
    """The plain test: the same names and sizes, and a cosine of at least 0.99 between each two."""
    if old.keys() != new.keys() or any(old[name].size != new[name].size for name in old):
        return True
    for name in old:
        ours, theirs = (side[name].astype(np.float64).reshape(-1) for side in (old, new))
        with np.errstate(invalid="ignore"):
            if not ours @ theirs >= COSINE * np.sqrt((ours @ ours) * (theirs @ theirs)):
                return True
    return False


def write_pairs(folder: Path) -> None:
    """Every fault's pair of a right and a faulty step, as safetensors files, for `torch.testing.assert_close`."""
    for dtype in DTYPES:
        bench = Bench(dtype)
        safetensors.numpy.save_file(bench.old("bitwise"), folder / f"{dtype}-right.safetensors")
        for number, fault in enumerate(FAULTS):
            safetensors.numpy.save_file(bench.new("bitwise", fault), folder / f"{dtype}-{number}.safetensors")


def assert_close_detects(folder: Path, python: str) -> dict[str, dict[str, bool]]:
    """dtype → fault → whether `torch.testing.assert_close` at its defaults raises, in an interpreter that has torch."""
    script = Path(__file__).with_name("assert_close_script.py")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # tensors are small: more threads take four times as long
    words = [python, str(script), str(folder)]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300, env=one_thread)
    found: Mapping[str, bool] = json.loads(told.stdout)
    return {dtype: {fault.name: found[f"{dtype}-{number}"] for number, fault in enumerate(FAULTS)} for dtype in DTYPES}


def detection_report() -> str:
    """The text of DETECTION.md, from comparing everything again.

    Raises:
        StackError: the base environment, in which torch is, cannot be had.
    """
    ours = {(dtype, floor): detections(dtype, floor) for dtype in DTYPES for floor in FLOORS}
    cosine = {}
    for dtype in DTYPES:
        right = Bench(dtype).old("bitwise")
        cosine[dtype] = {fault.name: cosine_detects(right, Bench(dtype).new("bitwise", fault)) for fault in FAULTS}
    with tempfile.TemporaryDirectory() as folder:
        write_pairs(Path(folder))
        base = ensure(load_settings(), "locked", lambda _line: None)
        close = assert_close_detects(Path(folder), str(base.python))
    return render(ours, close, cosine) + section()


def render(
    ours: Mapping[tuple[str, str], Mapping[str, bool]],
    close: Mapping[str, Mapping[str, bool]],
    cosine: Mapping[str, Mapping[str, bool]],
) -> str:
    """The text of DETECTION.md."""
    columns = [
        *((f"{dtype}, {floor}", ours[dtype, floor]) for dtype in DTYPES for floor in FLOORS),
        *((f"assert_close {dtype}", close[dtype]) for dtype in DTYPES),
        *((f"cosine {dtype}", cosine[dtype]) for dtype in DTYPES),
    ]
    heads = ["fault", *(head for head, _ in columns)]
    lines = [" | ".join(heads), " | ".join(["---"] * len(heads))]
    for fault in FAULTS:
        marks = []
        for head, found in columns:
            below = head.replace(",", "") in fault.below
            marks.append("yes" if found[fault.name] else "below" if below else "**no**")
        lines.append(" | ".join([fault.name, *marks]))
    totals = [f"{sum(found.values())}/{len(FAULTS)}" for _, found in columns]
    lines.append(" | ".join(["**detected**", *totals]))
    return _HEAD + "\n".join(f"| {line} |" for line in lines) + "\n"


_HEAD = f"""# What the comparison detects

Written by `python suites/harness/seeded_faults.py`; `test_seeded_faults.py` fails where it is out of date.

{len(FAULTS)} faults, each put into a training step of a small model (`numpy_step.py`: attention, experts, loss,
backward of the output layer, gradient reduction, AdamW; 11 tensors of up to 131072 elements), in float32 and bfloat16.

* **bitwise**: `old` repeats itself bit for bit, and only bit for bit is identical.
* **repeats**: `old` sums in another order each time; the floor is the spread of three runs, and the faulty run has an
  order of its own.
* **perturbed**: `old` repeats itself, the faulty run sums in another order, and the floor is how far three runs of
  `old` move when the embeddings are moved by one ulp.
* **assert_close**: `torch.testing.assert_close` (torch 2.11) at its defaults, tensor by tensor, on the bitwise pair.
* **cosine**: fails below {COSINE}, tensor by tensor, on the bitwise pair.

*below*: the fault is no larger than what rounding does on that floor; it is found bitwise. **no**: missed.
Against them stand {CLEAN} comparisons without a fault, of other models and other orders, that must give no alarm
(`test_clean_comparisons_give_no_alarm`): 200 bitwise, 400 against repeats, 400 against perturbed runs.

"""


if __name__ == "__main__":
    DETECTION.write_text(detection_report())
