"""Noise floors: how far a tensor may move and still be called noise, measured and never guessed.

Two kinds of run of `old` give a floor:

* **Repeats** (A/A). Where they are bitwise equal in every tensor of the case, nothing but bitwise is identical. Where
  they are not, `new` may be as far from `old` as `FACTOR` times what the runs of `old` are from each other.
* **Perturbed** runs: `old` again, the inputs of the case moved by one unit in the last place. How far its outputs move
  is the perturbation bound of TTrace (arXiv 2506.09280): what rounding in the inputs may do, rounding inside may do
  too. It admits one benign class, the reassociation of a reduction: a float tensor whose differences are as small as
  that, symmetric about zero, and a few ulp. What is one ulp in one element cannot be told from it.

A norm hides a lost row, and a bound on elements hides a bias, so each floor bounds five quantities (see `judge_noise`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.compare.elements import Array, dtype_named, epsilon
from harness.compare.measure import Statistics, measure

Source = Literal["repeats", "perturbed"]

REPEATS_FACTOR = 4.0
"""What is allowed, in spreads of repeated runs."""

PERTURBED_FACTOR = 32.0
"""The same for perturbed runs of a case in float32 or float64: a perturbation enters once, and its steps cancel in a
reduction over K terms, which rounding makes up to sqrt(K / 2) times worse."""

NARROW_PERTURBED_FACTOR = 1.0
"""The same where the case has narrower floats: reductions run in float32, far below one ulp of such inputs."""

SMALL_SAMPLE = 8.0
"""The factor grows by 1 + 8 / samples: two samples of one number say little of how far a third may be."""

STANDARD_ERRORS = 6.0
"""A bias is one beyond this. Sums of symmetric terms over their own root of squares are sub-Gaussian: exceeded by
chance in less than 2·exp(-18) = 3e-8 of all tensors (self-normalised sums, Efron 1969)."""

COMMON_FACTOR = 4 * 2.0**-24
"""A relative bias no larger than this is one rounded float32 factor that all elements share: a norm, a loss scale."""

MISSED_BY_REPEATS = 20
"""Elements that may differ by an ulp though no repeat showed one: with k repeats, that many by chance are less probable
than (k + 1)^-20. Rounding to bfloat16 turns noise in float32 into a few such elements."""

FEW_ULP, NARROW_FEW_ULP = 128.0, 4.0
"""The most that reassociation moves an element, in ulp of the largest of the element, its row's rms and the tensor's:
in a case of float32 or float64, and in one with narrower floats (in their ulp), where only the last rounding shows."""

FLIPPED_ROWS = 4
"""Where a case has narrower floats, noise in float32 seldom makes one of them round the other way; then all that
follows in its row (its token) is rounded anew, and moves by as much more as their ulp is larger. So many rows may do so
in `new` though none did in a repeat."""


@dataclass(frozen=True)
class Rounding:
    """The coarsest rounding among the float tensors of a case.

    Attributes:
        epsilon: distance from 1 to the next number.
        rows: fewest rows (of the last dimension) of a tensor of that dtype with at least two dimensions, else 1.
    """

    epsilon: float
    rows: int

    @property
    def narrow(self) -> bool:
        """Whether it is coarser than that of the sums that reductions run in."""
        return self.epsilon > epsilon(dtype_named("float32"))


def coarsest(kinds: Iterable[tuple[str, tuple[int, ...]]]) -> Rounding:
    """The coarsest rounding among dtypes and shapes; of integers alone, none."""
    known = [(epsilon(dtype_named(name)), shape) for name, shape in kinds]
    most = max((ulp for ulp, _ in known), default=0.0)
    rows = [math.prod(shape[:-1]) for ulp, shape in known if ulp == most and len(shape) > 1]
    return Rounding(most, max(1, min(rows, default=1)))


@dataclass(frozen=True)
class Floor:
    """How far runs of `old` are apart in one tensor: the largest of each statistic over pairs of runs.

    Attributes:
        source: what runs they are.
        runs: runs of `old` that were compared, the first included.
        pairs: pairs of them: every pair of repeats, each perturbed run with the first.
        factor: how many spreads are allowed.
        zero_signs: most elements that differ in the sign of a zero only.
    """

    source: Source
    runs: int
    pairs: int
    factor: float
    relative_error: float
    row_error: float
    distance: float
    shift: float
    scale: float
    zero_signs: int

    def __str__(self) -> str:
        kind = "" if self.source == "repeats" else "perturbed "
        return f"{self.factor:g} x the spread of {self.runs} {kind}runs of old, {self.relative_error:.3g}"


@dataclass(frozen=True)
class Check:
    """One bound: what the tensor needs, and what its floor allows."""

    quantity: str
    needed: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the floor allows it; NaN is never allowed."""
        return self.needed <= self.allowed

    def __str__(self) -> str:
        return f"{self.quantity}: allowed {self.allowed:.3g}, needed {self.needed:.3g}"


def measure_floor(source: Source, old: Array, runs: Sequence[Array], rounding: Rounding) -> Floor:
    """The floor of one tensor, from further runs of `old` in the same dtype and shape.

    Raises:
        ValueError: there is no further run, or one has another dtype or shape.
    """
    if not runs:
        raise ValueError("a floor takes at least one further run of old")
    pairs = itertools.combinations([old, *runs], 2) if source == "repeats" else ((old, run) for run in runs)
    found = [measure(one, other) for one, other in pairs]
    perturbed = NARROW_PERTURBED_FACTOR if rounding.narrow else PERTURBED_FACTOR
    return Floor(
        source=source,
        runs=1 + len(runs),
        pairs=len(found),
        factor=REPEATS_FACTOR if source == "repeats" else perturbed,
        relative_error=max(pair.relative_error for pair in found),
        row_error=max(pair.row_error for pair in found),
        distance=max(pair.worst.distance if pair.worst else 0.0 for pair in found),
        shift=max(abs(pair.shift) for pair in found),
        scale=max(abs(pair.scale) for pair in found),
        zero_signs=max(pair.zero_signs for pair in found),
    )


def judge_noise(
    found: Statistics, floor: Floor, dtype: str, rounding: Rounding, *, few_ulp: bool = True
) -> tuple[Check, ...]:
    """Every bound on a tensor that differs; it is within noise exactly if all pass.

    * no NaN or infinity moved, and no zero changed its sign alone (unless zeros do so in the floor);
    * relative error, error of the worst row, distance of the worst element: at most the factor times the floor's, which
      counts as at least what runs so few may have missed (see `_missed`);
    * shift and scale: at most 6 standard errors, or one float32 factor's rounding, or the factor times the spread of
      repeats;
    * against perturbed runs: only floats, and the worst element a few ulp.

    Args:
        few_ulp: False for two layouts, between which every reduction is reassociated at once: the first step of Adam
            divides a gradient by its own size, and where that is next to nothing its rounding becomes many ulp of the
            parameter. The bounds that follow from the measured floor hold all the same.
    """
    ulp = epsilon(dtype_named(dtype))
    repeats = floor.source == "repeats"
    worst = found.worst.distance if found.worst else 0.0
    magnitude = max(found.worst.magnitude if found.worst else 0.0, found.rms)
    common = COMMON_FACTOR * min(1.0, ulp / epsilon(dtype_named("float32")))
    missed = _missed(found, floor, ulp, rounding)

    def within(spread: float, resolution: float, samples: int) -> float:
        few = 1 + SMALL_SAMPLE / max(1, samples * floor.pairs)
        return max(floor.factor * spread * (few if repeats else 1), REPEATS_FACTOR * resolution * few)

    def unbiased(error: float, spread: float, resolution: float) -> float:
        return max(STANDARD_ERRORS * error, floor.factor * spread if repeats else 0.0, resolution)

    checks = [
        Check("NaN and infinity in other places", len(found.moved), 0),
        Check("zeros of another sign", found.zero_signs, found.size if floor.zero_signs else 0),
        Check("relative error", found.relative_error, within(floor.relative_error, missed.relative, found.size)),
        Check("relative error of the worst row", found.row_error, within(floor.row_error, missed.row, found.row_size)),
        Check("distance of the worst element", worst, within(floor.distance, missed.element * magnitude, found.size)),
        Check("shift", abs(found.shift), unbiased(found.shift_error, floor.shift, common * found.rms)),
        Check("scale", abs(found.scale), unbiased(found.scale_error, floor.scale, common)),
    ]
    if not repeats:
        unit = (max(ulp, rounding.epsilon) if ulp else 0.0) * magnitude
        few = NARROW_FEW_ULP if rounding.narrow else FEW_ULP
        distance = worst / unit if unit else math.inf
        checks.append(Check("ulp of the worst element", distance, few if few_ulp or not unit else math.inf))
    return tuple(checks)


@dataclass(frozen=True)
class _Missed:
    """What the runs of a floor may have missed, relative: of the whole tensor, of a row, of an element."""

    relative: float
    row: float
    element: float


def _missed(found: Statistics, floor: Floor, ulp: float, rounding: Rounding) -> _Missed:
    """At least one ulp in a row, and in `MISSED_BY_REPEATS` elements of the tensor.

    In a case with narrower floats, a few rows rounded anew: a tensor of that dtype moves there by an ulp, and one in
    float32 by what its floor shows times the ratio of both ulp (one that is too small to show it, by a row's part).
    """
    elements = math.sqrt(min(1.0, MISSED_BY_REPEATS / max(1, found.size)))
    if not ulp or not rounding.narrow or floor.source == "perturbed":
        return _Missed(ulp * elements, ulp, ulp)
    rows = math.sqrt(min(1.0, FLIPPED_ROWS / rounding.rows))
    if rounding.epsilon <= ulp:
        return _Missed(ulp * max(elements, rows), ulp, ulp)
    more = rounding.epsilon / ulp
    small = rounding.epsilon / rounding.rows if found.size <= MISSED_BY_REPEATS else ulp * elements
    return _Missed(
        relative=max(small, more * rows * floor.relative_error),
        row=max(ulp, small, more * floor.row_error),
        element=max(ulp, small, more * _relative_distance(found, floor)),
    )


def _relative_distance(found: Statistics, floor: Floor) -> float:
    magnitude = max(found.worst.magnitude if found.worst else 0.0, found.rms)
    return floor.distance / magnitude if magnitude else 0.0
