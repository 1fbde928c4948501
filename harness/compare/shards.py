"""Put the shards of a layout together, so that layouts can be compared: tp2 against single."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.compare.elements import Array
from harness.compare.measure import bitwise_equal, measure
from harness.observe.placement import Cut


class ShardError(ValueError):
    """Shards that do not make one tensor: copies that differ, a shard that is missing, shapes that do not fit."""


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a tensor.

    Attributes:
        array: its elements.
        cuts: the dimensions that are sharded, and which part of each this is; none if every rank holds all.
        holder: the rank of the whole run that holds it, for messages.
    """

    array: Array
    cuts: tuple[Cut, ...] = ()
    holder: int | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """Which shard this is, along each cut."""
        return tuple(cut.rank for cut in self.cuts)

    @property
    def _form(self) -> tuple[str, tuple[int, ...], tuple[tuple[int, int, int, bool], ...]]:
        cuts = tuple((cut.dim, cut.shards, cut.blocks, cut.zigzag) for cut in self.cuts)
        return self.array.dtype.name, self.array.shape, cuts


def assemble(shards: Sequence[Shard], name: str = "the tensor") -> Array:
    """The whole tensor, from the shards of all ranks in any order.

    Several ranks may hold the same shard (data parallel copies, replicated tensors): they must be equal, bit for bit.

    Raises:
        ShardError: with the tensor's name and, where copies differ, the worst element.
    """
    if not shards:
        raise ShardError(f"{name}: there is no shard")
    first = shards[0]
    for shard in shards:
        if shard._form != first._form:
            raise ShardError(f"{name}: shards of two forms, {_told(first)} and {_told(shard)}")
    if not first.cuts:
        return _one_of(shards, f"{name} is replicated")
    _check_form(first, name)
    shape = list(first.array.shape)
    for cut in first.cuts:
        shape[cut.dim] *= cut.shards
    whole = np.empty(shape, first.array.dtype)
    for place in itertools.product(*(range(cut.shards) for cut in first.cuts)):
        copies = [shard for shard in shards if shard.place == place]
        which = " x ".join(f"{rank} of {cut.shards}" for rank, cut in zip(place, first.cuts, strict=True))
        if not copies:
            raise ShardError(f"{name}: shard {which} is missing")
        part = _one_of(copies, f"{name}, shard {which}, is held by {len(copies)} ranks")
        whole[_indices(copies[0])] = part
    return whole


def assemble_all(ranks: Sequence[Mapping[str, Shard]]) -> dict[str, Array]:
    """Every tensor of a layout. A tensor need not be on every rank: pipeline stages and experts have their own.

    Raises:
        ShardError: see `assemble`.
    """
    names = dict.fromkeys(name for rank in ranks for name in rank)
    return {name: assemble([rank[name] for rank in ranks if name in rank], name) for name in names}


def _check_form(shard: Shard, name: str) -> None:
    shape = shard.array.shape
    for cut in shard.cuts:
        pieces = 2 if cut.zigzag else cut.blocks
        if not -len(shape) <= cut.dim < len(shape) or shape[cut.dim] % pieces:
            raise ShardError(f"{name}: shards of {list(shape)} have no {pieces} blocks in dimension {cut.dim}")


def _indices(shard: Shard) -> tuple[Array, ...]:
    """Where the elements of a shard lie in the whole tensor, as an index for numpy."""
    along: list[Sequence[int]] = [range(size) for size in shard.array.shape]
    for cut in shard.cuts:
        along[cut.dim] = cut.indices(shard.array.shape[cut.dim])
    return np.ix_(*along)


def _one_of(copies: Sequence[Shard], what: str) -> Array:
    first = _dense(copies[0].array)
    for number, copy in enumerate(copies[1:], 1):
        other = _dense(copy.array)
        if not bitwise_equal(first, other):
            found = measure(first, other)
            assert found.worst is not None
            which = "copies" if copy.holder is None else "ranks"
            places = (0, number) if copy.holder is None else (copies[0].holder, copy.holder)
            raise ShardError(
                f"{what}, but {which} {places[0]} and {places[1]} differ in {found.differing} of {found.size} elements,"
                f" worst at {list(found.worst.index)}: {found.worst.old} and {found.worst.new}"
            )
    return first


def _dense(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(array.shape)


def _told(shard: Shard) -> str:
    dtype, shape, cuts = shard._form
    along = [
        f"dimension {dim} by {shards}" + (f" in {blocks} blocks" if blocks > 1 else "") + (" zigzag" if zigzag else "")
        for dim, shards, blocks, zigzag in cuts
    ]
    return f"{dtype}{list(shape)} sharded along {' and '.join(along) or 'nothing'}"
