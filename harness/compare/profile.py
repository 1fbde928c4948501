"""Where in two tensors their difference lies and how it is spread, small enough for a record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.compare.elements import Array

LARGEST = 1 << 24
"""Elements; of more there is no profile."""
DECADES = range(-12, 3)
"""Powers of ten of |d| / rms at which the bins of the histogram part."""
_ROWS, _COLUMNS = 16, 48


@dataclass(frozen=True)
class Profile:
    """The difference `d` of two tensors, in units of the root mean square of the old one (1 where that is 0).

    Attributes:
        histogram: elements by |d|: equal, below the first of `DECADES`, between each two, from the last one on. NaN
            and infinity on one side only count to the last.
        map: the largest |d| in each cell of a grid over the tensor, its last dimension across and all others down;
            None where it is not finite.
        rows: elements down; likewise `columns` across.
    """

    histogram: tuple[int, ...]
    map: tuple[tuple[float | None, ...], ...]
    rows: int
    columns: int


def profile(old: Array, new: Array) -> Profile | None:
    """The profile of two arrays of one dtype and shape; None where they are empty or too large to be worth it."""
    if old.size == 0 or old.size > LARGEST:
        return None
    wide = np.complex128 if old.dtype.kind == "c" else np.float64
    ours, theirs = (side.reshape(-1, side.shape[-1] if side.ndim else 1).astype(wide) for side in (old, new))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(theirs - ours)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    difference = np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))
    finite = np.abs(ours[np.isfinite(ours)])
    relative = difference / ((float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0) or 1.0)
    return Profile(_histogram(relative), _map(relative), *relative.shape)


def _histogram(relative: Array) -> tuple[int, ...]:
    edges = np.array([0.0, *(10.0**decade for decade in DECADES)])
    bins = np.searchsorted(edges, relative.reshape(-1), side="right")
    counts = np.bincount(bins, minlength=len(edges) + 1)
    equal = int(np.count_nonzero(relative == 0))
    return equal, int(counts[1]) - equal, *(int(count) for count in counts[2:])


def _map(relative: Array) -> tuple[tuple[float | None, ...], ...]:
    down, across = (_starts(size, most) for size, most in zip(relative.shape, (_ROWS, _COLUMNS), strict=True))
    cells = np.maximum.reduceat(np.maximum.reduceat(relative, down, axis=0), across, axis=1)
    return tuple(tuple(float(f"{cell:.3g}") if np.isfinite(cell) else None for cell in row) for row in cells)


def _starts(size: int, most: int) -> Array:
    """Where each of at most `most` parts of nearly one size begins."""
    return np.linspace(0, size, min(size, most), endpoint=False).astype(np.int64)
