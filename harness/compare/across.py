"""Two sides in different layouts: what the ranks of each hold is put together, then compared as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.compare.elements import Array, ObservedTensors
from harness.compare.shards import Shard, ShardError, assemble
from harness.compare.trees import Difference, text
from harness.observe.codec import Encoded, canonical_bytes
from harness.observe.observation import Observation
from harness.observe.placement import Cut, Placement


@dataclass(frozen=True)
class Whole:
    """What the ranks of one run hold together.

    Attributes:
        arrays: every tensor, put together, and every fractional number of the tree as float32 without dimensions: it
            comes from a float32 computation, and so may be judged by a noise floor.
        plain: every other value of the tree, by path.
        unequal: what ranks should hold alike and do not: path → how they differ.
    """

    arrays: Mapping[str, Array]
    plain: Mapping[str, Encoded]
    unequal: Mapping[str, str] = field(default_factory=dict)


def unplaced(ranks: Sequence[Observation]) -> str | None:
    """The first tensor of which the probe does not say what part of it a rank holds, in words."""
    for number, rank in enumerate(ranks):
        for name in rank.tensors:
            if name not in rank.placement:
                return f"rank {number} does not say what part of {name} it holds, so layouts cannot be compared"
    return None


def whole(ranks: Sequence[Observation]) -> Whole:
    """Put together what the ranks of one run hold. A tensor or value need not be on every rank.

    Raises:
        ObservationError: the elements of a tensor cannot be read.
    """
    unequal: dict[str, str] = {}
    arrays: dict[str, Array] = {}
    tensors = [ObservedTensors(rank) for rank in ranks]
    for name in dict.fromkeys(name for rank in ranks for name in rank.tensors):
        holders = [number for number, rank in enumerate(ranks) if name in rank.tensors]
        shards = [_shard(tensors[number].array(name), ranks[number].placement[name], number) for number in holders]
        try:
            arrays[name] = _true_size(assemble(shards, name), ranks[holders[0]].placement[name])
        except ShardError as error:
            unequal[name] = str(error)
    plain: dict[str, Encoded] = {}
    first_on: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        for path, value in _leaves(rank.tree, ""):
            if path not in plain:
                plain[path], first_on[path] = value, number
            elif canonical_bytes(plain[path]) != canonical_bytes(value):
                unequal.setdefault(
                    path, f"{text(plain[path])} on rank {first_on[path]}, {text(value)} on rank {number}"
                )
    numbers = {path: value for path, value in plain.items() if isinstance(value, float)}
    return Whole(
        arrays={**arrays, **{path: np.asarray(value, np.float32) for path, value in numbers.items()}},
        plain={path: value for path, value in plain.items() if path not in numbers},
        unequal=unequal,
    )


def unequal_differences(old: Whole, new: Whole) -> list[Difference]:
    """What the ranks of a side should hold alike and do not, each with the ranks that differ."""
    alike = "the ranks agree"
    return [
        Difference(path, "changed", old.unequal.get(path, alike), new.unequal.get(path, alike))
        for path in dict.fromkeys([*old.unequal, *new.unequal])
    ]


def _shard(array: Array, place: Placement, holder: int) -> Shard:
    if place.mean_of is None:
        return Shard(array, place.cuts, holder)
    rank, shares = place.mean_of
    return Shard(array.reshape(1, *array.shape), (Cut(0, rank, shares),), holder)


def _true_size(array: Array, place: Placement) -> Array:
    if place.mean_of is not None:
        return array.mean(axis=0, dtype=np.float64).astype(array.dtype)
    for cut in place.cuts:
        if cut.size is not None:
            array = array.take(range(cut.size), axis=cut.dim)
    return array


def _leaves(node: Encoded, path: str) -> list[tuple[str, Encoded]]:
    """Values of a tree by path, but for tensors; what is no plain mapping is one value."""
    if not isinstance(node, dict) or any(key.startswith("$") for key in node):
        tensor = isinstance(node, dict) and "$tensor" in node
        return [] if tensor else [(path or "(root)", node)]
    return [leaf for key, item in node.items() for leaf in _leaves(item, f"{path}.{key}" if path else key)]
