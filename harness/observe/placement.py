"""Where a rank's tensor lies within the whole one, so that layouts can be compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cut:
    """One dimension along which a tensor is sharded.

    Attributes:
        dim: the dimension.
        rank: which shard a rank holds, counted from 0.
        shards: number of different shards.
        blocks: how many equal blocks of the whole are sharded one by one (2 for gate and up projection, else 1).
        zigzag: whether shard `r` of `n` is the `r`-th of 2n equal pieces and the one as far from the end, as context
            parallel ranks share a sequence.
        size: true size of the whole along `dim`, where shards hold padding beyond it.
    """

    dim: int
    rank: int
    shards: int
    blocks: int = 1
    zigzag: bool = False
    size: int | None = None

    def indices(self, held: int) -> list[int]:
        """The whole's indices along `dim` of the `held` elements that the rank has, in its own order."""
        if self.zigzag:
            piece = held // 2
            starts = [self.rank * piece, (2 * self.shards - 1 - self.rank) * piece]
        else:
            piece = held // self.blocks
            starts = [(block * self.shards + self.rank) * piece for block in range(self.blocks)]
        return [index for start in starts for index in range(start, start + piece)]


@dataclass(frozen=True)
class Placement:
    """What part of a tensor a rank holds. Ranks that say the same hold copies, which must be equal.

    Attributes:
        cuts: one for each dimension that is sharded; none if the rank holds all of the tensor.
        mean_of: `(rank, shares)` where the rank holds the mean over one of so many equal shares, and the whole is the
            mean of these; then there are no cuts.
    """

    cuts: tuple[Cut, ...] = ()
    mean_of: tuple[int, int] | None = None
