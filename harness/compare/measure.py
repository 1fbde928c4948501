"""How two tensors of one dtype and shape differ, in one pass over their elements.

With old element `a`, new element `b` and `d = b - a`, and norms taken over all elements that are finite on both sides.
Elements are read in chunks that fit a core's cache, and summed by rows (see `_row_size`); products are taken in float32
for float32 and narrower dtypes (in float64 where that could over- or underflow), and summed in float64 over the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from harness.compare.elements import Array, is_float

# Bytes of each tensor that are looked at together: few enough to stay in cache, many enough for numpy's calls to be
# cheap. One thread does it all: between calls of some 20 µs, two spend more on handing each other the interpreter than
# they win.
_CHUNK = 1 << 19
_SHOWN_POSITIONS = 8
_NEAR = 4096
_ROWS = 128
_ROW_SIZES = (1024, 8192)
# Squares of smaller differences, and sums of smaller squares, are not to be trusted to float32 (smallest normal 1e-38).
_SMALL_DIFFERENCE = 1e-16
_SMALL_ENERGY = 1e-28


@dataclass(frozen=True)
class Worst:
    """The element that is furthest off: NaN or infinity on one side only, else the largest |d|, else the first.

    Attributes:
        old: the old value as text; `new` likewise.
        distance: |d|, infinite where NaN or infinity is on one side only.
        magnitude: the largest of |a|, |b| and the root mean square of the old elements around it in its last dimension.
    """

    index: tuple[int, ...]
    old: str
    new: str
    distance: float
    magnitude: float


@dataclass(frozen=True)
class Statistics:
    """How two tensors differ.

    Attributes:
        size: number of elements.
        differing: elements with other bits; NaN equals NaN, whatever its payload.
        zero_signs: elements that differ in the sign of a zero only.
        relative_error: ‖d‖ / ‖a‖, Frobenius norms; infinite where NaN or infinity is on one side only.
        row_error: the largest relative error of a row, ‖d_r‖ / sqrt(‖a_r‖² + w·mean ‖a‖²), with w = min(1, 16 / size
            of a row): a row's own norm, not let fall far below the average row's.
        row_size: elements in a row.
        max_ulp: largest number of steps from one representable number to the next that lie between `a` and `b`
            (Goldberg 1991; the bits of a float, ordered, are consecutive integers). Integers: largest |d|.
        worst: the element that is furthest off, None if all are equal.
        rms: root mean square of `a`.
        shift: mean of d.
        shift_error: standard error of `shift` if differences are symmetric and rows independent: sqrt(Σ (Σ_r d)²) / n.
            Rows, because one rounded factor (a norm, a softmax denominator) moves a whole row one way.
        scale: Σ (a + b)·d / (2·Σ a²), half the relative change of the squared norm. It is δ where b = (1 + δ)·a,
            and, unlike a regression of d on a, not biased by noise that a itself holds.
        scale_error: standard error of `scale`, as above.
        nan: number of NaN elements, old and new.
        inf: number of infinite elements, old and new.
        moved: indices at which NaN or infinity stands on one side only or in another form, the first eight.
    """

    size: int
    differing: int
    zero_signs: int
    relative_error: float
    row_error: float
    row_size: int
    max_ulp: int
    worst: Worst | None
    rms: float
    shift: float
    shift_error: float
    scale: float
    scale_error: float
    nan: tuple[int, int]
    inf: tuple[int, int]
    moved: tuple[tuple[int, ...], ...]

    @property
    def share(self) -> float:
        """Share of the elements that differ."""
        return self.differing / self.size if self.size else 0.0

    @property
    def shift_bias(self) -> float:
        """Signed bias over spread: the mean of d in its standard errors; beyond ±6 it is no symmetric noise."""
        return self.shift / self.shift_error if self.shift_error else 0.0

    @property
    def scale_bias(self) -> float:
        """The same for d taken away from zero: a scale error of a tensor whose mean is zero shows here."""
        return self.scale / self.scale_error if self.scale_error else 0.0


def bitwise_equal(old: Array, new: Array) -> bool:
    """Whether two arrays of one dtype and shape are equal bit for bit; NaN equals NaN in the same place."""
    ours, theirs = old.reshape(-1), new.reshape(-1)
    return all(_equal(ours[part], theirs[part]) for part in _chunks(ours.size, _CHUNK // ours.itemsize))


def measure(old: Array, new: Array) -> Statistics:
    """The statistics of two arrays of one dtype and shape, each row-major and without strides.

    Raises:
        ValueError: dtypes or shapes differ.
    """
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        raise ValueError(f"{old.dtype}{list(old.shape)} cannot be measured against {new.dtype}{list(new.shape)}")
    ours, theirs = _flat(old), _flat(new)
    row = _row_size(ours.size, old.shape[-1] if old.ndim > 1 else 1)
    rows = _Rows.of(-(-ours.size // row))
    chunk = max(1, _CHUNK // max(4, ours.itemsize) // row) * row
    scratch = _Scratch(min(chunk, ours.size))
    found = [
        _look(ours[part], theirs[part], part.start, row, rows.part(part.start // row), scratch)
        for part in _chunks(ours.size, chunk)
    ]
    return _summed(found, rows, row, old, new)


def _chunks(size: int, each: int) -> Iterator[slice]:
    return (slice(start, min(start + each, size)) for start in range(0, size, each))


def _row_size(size: int, last: int) -> int:
    """How many consecutive elements are summed as one row.

    About the tensor's own rows (its last dimension), several where they are short, a part where they are long, and
    never so long that there are fewer than 128 of them: a bias must stand out of that many rows.
    """
    least, most = _ROW_SIZES
    whole = min(most, last * max(1, least // max(1, last)))
    return max(1, min(whole, size // _ROWS))


@dataclass
class _Rows:
    """Sums over the elements of each row, float64: a², d², d, and a·d."""

    energy: Array
    error: Array
    shift: Array
    scale: Array

    @classmethod
    def of(cls, number: int) -> _Rows:
        return cls(*(np.zeros(number) for _ in range(4)))

    def part(self, first: int) -> _Rows:
        return _Rows(self.energy[first:], self.error[first:], self.shift[first:], self.scale[first:])


class _Scratch:
    """Memory for what is computed from a chunk, so that no chunk asks the kernel for fresh pages."""

    def __init__(self, size: int) -> None:
        self.unequal = np.empty(size, dtype=bool)
        self._wide = np.empty((3, size), dtype=np.float64)

    def array(self, number: int, like: Array) -> Array:
        """The array 0, 1 or 2, of the dtype and size of another; what it held is lost."""
        return self._wide[number].view(like.dtype)[: like.size]


@dataclass
class _Found:
    """What one chunk holds; indices are those of the flat tensor."""

    differing: int = 0
    zero_signs: int = 0
    max_ulp: int = 0
    distance: float = 0.0
    furthest: int = -1
    first: int = -1
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    moved: list[int] = field(default_factory=list)


def _flat(array: Array) -> Array:
    """One dimension; a complex number is two elements."""
    flat = array.reshape(-1)
    return flat.view(f"f{flat.itemsize // 2}") if flat.dtype.kind == "c" else flat


def _bits(flat: Array) -> Array:
    return flat.view(f"i{flat.itemsize}")


def _equal(old: Array, new: Array) -> bool:
    if old.itemsize < 8 and old.size * old.itemsize % 8 == 0:
        same = bool(np.array_equal(old.view(np.uint64), new.view(np.uint64)))
    else:
        same = old.tobytes() == new.tobytes()
    if same or not is_float(old.dtype):
        return same
    flat, other = _flat(old), _flat(new)
    unequal = _bits(flat) != _bits(other)
    return bool((np.isnan(flat[unequal]) & np.isnan(other[unequal])).all())


def _look(old: Array, new: Array, start: int, row: int, rows: _Rows, scratch: _Scratch) -> _Found:
    """Measure one chunk, which begins with a row; its sums are written to the first of `rows`."""
    unequal = np.not_equal(_bits(old), _bits(new), out=scratch.unequal[: old.size])
    found = _Found(differing=int(np.count_nonzero(unequal)))
    # Overflow and NaN show in the sums; what they mean is looked at then.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        look = _look_at_floats if is_float(old.dtype) else _look_at_integers
        difference = look(old, new, start, row, rows, scratch, found)
    if found.differing and difference is not None:
        found.first = start + int(unequal.argmax())
        distance = np.abs(difference, out=difference)
        furthest = int(distance.argmax())
        found.furthest, found.distance = start + furthest, float(distance[furthest])
    return found


def _look_at_floats(
    old: Array, new: Array, start: int, row: int, rows: _Rows, scratch: _Scratch, found: _Found
) -> Array | None:
    ours, theirs = _widened(old), _widened(new)
    difference = np.subtract(theirs, ours, out=scratch.array(0, ours)) if found.differing else None
    if _sum_rows(ours, difference, row, rows):
        if difference is not None:
            found.max_ulp, crossing = _max_ulp(_bits(old), _bits(new), scratch)
            if crossing:
                found.zero_signs = found.differing - int(np.count_nonzero(difference != 0))
        return difference
    return _look_at_each(old, new, ours, theirs, start, row, rows, scratch, found)


def _look_at_integers(
    old: Array, new: Array, start: int, row: int, rows: _Rows, scratch: _Scratch, found: _Found
) -> Array:
    # Exact to 63 bits, and then rounded to float64.
    difference = np.subtract(new.astype(np.int64), old.astype(np.int64)).astype(np.float64)
    _sum_rows(old.astype(np.float64), difference, row, rows)
    found.max_ulp = int(np.abs(difference).max())
    return difference


def _look_at_each(
    old: Array,
    new: Array,
    ours: Array,
    theirs: Array,
    start: int,
    row: int,
    rows: _Rows,
    scratch: _Scratch,
    found: _Found,
) -> Array:
    """A chunk with NaN, infinity, or values whose squares float32 cannot hold: slower, and in float64."""
    nans = np.isnan(ours), np.isnan(theirs)
    infs = np.isinf(ours), np.isinf(theirs)
    found.nan = (int(nans[0].sum()), int(nans[1].sum()))
    found.inf = (int(infs[0].sum()), int(infs[1].sum()))
    unequal = scratch.unequal[: old.size]
    unequal &= ~(nans[0] & nans[1])
    found.differing = int(np.count_nonzero(unequal))
    special = nans[0] | nans[1] | infs[0] | infs[1]
    found.moved = [start + int(index) for index in np.flatnonzero(special & unequal)[:_SHOWN_POSITIONS]]
    left, right = (np.where(special, 0.0, side).astype(np.float64) for side in (ours, theirs))
    difference = np.subtract(right, left)
    _sum_rows(left, difference, row, rows)
    if found.differing:
        bits = [np.where(special, 0, _bits(side)).astype(_bits(side).dtype) for side in (old, new)]
        found.max_ulp, _ = _max_ulp(bits[0], bits[1], scratch)
        found.zero_signs = int(np.count_nonzero(unequal & ~special & (difference == 0)))
    return difference


def _widened(flat: Array) -> Array:
    """float32 of narrower floats, exactly; float32 and float64 as they are."""
    if flat.dtype.name == "bfloat16":
        wide = flat.view(np.uint16).astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if flat.itemsize == 1:
        table = np.arange(256, dtype=np.uint8).view(flat.dtype).astype(np.float32)
        return table[flat.view(np.uint8)]
    return flat.astype(np.float32) if flat.itemsize == 2 else flat


def _sum_rows(old: Array, difference: Array | None, row: int, rows: _Rows) -> bool:
    """Add up a chunk by rows; False if NaN, infinity, overflow or underflow make the sums useless."""
    energy = _by_rows(old, old, row, rows.energy)
    narrow = old.dtype == np.float32
    if difference is None:
        return math.isfinite(energy) and (not narrow or energy == 0 or energy > _SMALL_ENERGY)
    error = _by_rows(difference, difference, row, rows.error)
    shift = _by_rows(difference, None, row, rows.shift)
    scale = _by_rows(old, difference, row, rows.scale)
    if not math.isfinite(energy + error + shift + scale):
        return False
    return not narrow or (energy > _SMALL_ENERGY and error > _SMALL_DIFFERENCE**2)


def _by_rows(left: Array, right: Array | None, row: int, out: Array) -> float:
    """Sums of left·right (of left alone without right) by rows into `out`; the last row may be short. Their sum."""
    whole = left.size // row
    body = left[: whole * row].reshape(whole, row)
    if right is None:
        out[:whole] = np.vecdot(body, np.ones(row, dtype=left.dtype))
        tail = left[whole * row :].sum()
    else:
        out[:whole] = np.vecdot(body, right[: whole * row].reshape(whole, row))
        tail = np.dot(left[whole * row :], right[whole * row :])
    if whole * row < left.size:
        out[whole] = tail
        whole += 1
    return float(out[:whole].sum())


def _max_ulp(old: Array, new: Array, scratch: _Scratch) -> tuple[int, bool]:
    """Largest distance of float bits, given as integers, in representable numbers; and whether any sign differs.

    Of one sign, bits are as ordered as magnitudes; across zero, the distance is the sum of both magnitudes.
    """
    distance = np.abs(np.subtract(old, new, out=scratch.array(1, old)), out=scratch.array(1, old))
    signs = np.bitwise_xor(old, new, out=scratch.array(2, old))
    if signs.min() >= 0:
        return int(distance.max()), False
    crossing = signs < 0
    mask = np.iinfo(old.dtype).max
    magnitudes = (old[crossing] & mask).astype(np.uint64) + (new[crossing] & mask).astype(np.uint64)
    return max(int(distance[~crossing].max(initial=0)), int(magnitudes.max())), True


def _summed(parts: list[_Found], rows: _Rows, row: int, old: Array, new: Array) -> Statistics:
    size = old.size * (2 if old.dtype.kind == "c" else 1)
    energy, error = float(rows.energy.sum()), float(rows.error.sum())
    # (a + b)·d = 2·a·d + d²
    scale = 2 * rows.scale + rows.error
    moved = [index for part in parts for index in part.moved]
    floor = min(1.0, 16 / row) * energy / max(1, rows.energy.size)
    per_row = np.sqrt(_ratio(rows.error, rows.energy + floor))
    return Statistics(
        size=size,
        differing=sum(part.differing for part in parts),
        zero_signs=sum(part.zero_signs for part in parts),
        relative_error=math.inf if moved else math.sqrt(_ratio(np.array(error), np.array(energy))),
        row_error=math.inf if moved else float(per_row.max(initial=0.0)),
        row_size=row,
        max_ulp=max((part.max_ulp for part in parts), default=0),
        worst=_worst(parts, moved, old, new),
        rms=math.sqrt(energy / size) if size else 0.0,
        shift=float(rows.shift.sum()) / size if size else 0.0,
        shift_error=float(np.sqrt(np.square(rows.shift).sum())) / size if size else 0.0,
        scale=float(scale.sum()) / (2 * energy) if energy else 0.0,
        scale_error=float(np.sqrt(np.square(scale).sum())) / (2 * energy) if energy else 0.0,
        nan=(sum(part.nan[0] for part in parts), sum(part.nan[1] for part in parts)),
        inf=(sum(part.inf[0] for part in parts), sum(part.inf[1] for part in parts)),
        moved=tuple(_index(old, index) for index in moved[:_SHOWN_POSITIONS]),
    )


def _ratio(above: Array, below: Array) -> Array:
    """Quotients, with 0 / 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above == 0, 0.0, above / below)


def _worst(parts: list[_Found], moved: list[int], old: Array, new: Array) -> Worst | None:
    furthest = max((part for part in parts if part.differing), key=lambda part: part.distance, default=None)
    if furthest is None:
        return None
    first = next(part.first for part in parts if part.differing)
    index = _index(old, moved[0] if moved else furthest.furthest if furthest.distance > 0 else first)
    distance = math.inf if moved else furthest.distance
    values = [complex(side[index]) if side.dtype.kind == "c" else float(side[index]) for side in (old, new)]
    magnitude = max(_rms_around(old, index), *(abs(value) for value in values))
    return Worst(index, str(old[index]), str(new[index]), distance, magnitude)


def _rms_around(array: Array, index: tuple[int, ...]) -> float:
    if not index:
        return 0.0
    last = index[-1]
    near = np.abs(array[index[:-1]][max(0, last - _NEAR) : last + _NEAR]).astype(np.float64)
    finite = near[np.isfinite(near)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def _index(array: Array, flat: int) -> tuple[int, ...]:
    position = flat // (2 if array.dtype.kind == "c" else 1)
    return tuple(int(step) for step in np.unravel_index(position, array.shape))
