"""Where a rank's tensor lies within the whole one, so that layouts can be compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """What part of a tensor a rank holds. Ranks that say the same hold copies, which must be equal.

    Attributes:
        dim: dimension along which the tensor is sharded; None if each rank holds all of it.
        rank: which shard, counted from 0.
        shards: number of different shards.
        blocks: how many equal blocks of the whole are sharded one by one (2 for gate and up projection, else 1).
        size: true size of the whole along `dim`, where shards hold padding beyond it.
        mean: each of `shards` holds the mean over an equal share, and the whole is the mean of these; `dim` is None.
    """

    dim: int | None = None
    rank: int = 0
    shards: int = 1
    blocks: int = 1
    size: int | None = None
    mean: bool = False
