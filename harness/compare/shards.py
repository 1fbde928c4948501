"""Put the shards of a layout together, so that layouts can be compared: tp2 against single."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.compare.elements import Array
from harness.compare.measure import bitwise_equal, measure


class ShardError(ValueError):
    """Shards that do not make one tensor: copies that differ, a shard that is missing, shapes that do not fit."""


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a tensor.

    Attributes:
        array: its elements.
        partition_dim: dimension of the tensor that is sharded; None if every rank holds all of it.
        rank: which shard this is, counted within the group that shares the tensor, from 0.
        world: number of different shards.
        stride: number of equal blocks of the tensor that are sharded one by one, Megatron's `partition_stride`: 2 for
            the first layer of a gated MLP, where a rank holds its part of the gate, then of the up projection.
        holder: the rank of the whole run that holds it, for messages.
    """

    array: Array
    partition_dim: int | None = None
    rank: int = 0
    world: int = 1
    stride: int = 1
    holder: int | None = None

    @property
    def _form(self) -> tuple[str, tuple[int, ...], int | None, int, int]:
        return self.array.dtype.name, self.array.shape, self.partition_dim, self.world, self.stride


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
    if first.partition_dim is None:
        return _one_of(shards, f"{name} is replicated")
    parts = []
    for rank in range(first.world):
        copies = [shard for shard in shards if shard.rank == rank]
        if not copies:
            raise ShardError(f"{name}: shard {rank} of {first.world} is missing")
        parts.append(_one_of(copies, f"{name}, shard {rank} of {first.world}, is held by {len(copies)} ranks"))
    return _interleaved(parts, first.partition_dim, first.stride, name)


def assemble_all(ranks: Sequence[Mapping[str, Shard]]) -> dict[str, Array]:
    """Every tensor of a layout. A tensor need not be on every rank: pipeline stages and experts have their own.

    Raises:
        ShardError: see `assemble`.
    """
    names = dict.fromkeys(name for rank in ranks for name in rank)
    return {name: assemble([rank[name] for rank in ranks if name in rank], name) for name in names}


def split(array: Array, partition_dim: int, world: int, stride: int = 1) -> list[Shard]:
    """The shards of a tensor: the inverse of `assemble`.

    Raises:
        ShardError: the dimension does not divide.
    """
    size = array.shape[partition_dim]
    if size % (world * stride):
        raise ShardError(f"dimension {partition_dim} of {list(array.shape)} is no multiple of {world} x {stride}")
    pieces = np.split(array, world * stride, axis=partition_dim)
    return [
        Shard(np.concatenate(pieces[rank::world], axis=partition_dim), partition_dim, rank, world, stride)
        for rank in range(world)
    ]


def _interleaved(parts: Sequence[Array], dim: int, stride: int, name: str) -> Array:
    if not -parts[0].ndim <= dim < parts[0].ndim or parts[0].shape[dim] % stride:
        raise ShardError(f"{name}: shards of {list(parts[0].shape)} have no {stride} blocks in dimension {dim}")
    blocks = [np.split(part, stride, axis=dim) for part in parts]
    return np.concatenate([blocks[rank][block] for block in range(stride) for rank in range(len(parts))], axis=dim)


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
    dtype, shape, dim, world, stride = shard._form
    return f"{dtype}{list(shape)} sharded along {dim} by {world}, stride {stride}"
