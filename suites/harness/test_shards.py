"""Shards of every layout put together, and what does not fit together."""

import numpy as np
import pytest

from harness.compare.elements import Array
from harness.compare.shards import Shard, ShardError, assemble, assemble_all
from harness.compare.tensors import compare_arrays
from harness.observe.placement import Cut

WEIGHT = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)


def split(array: Array, dim: int, world: int, blocks: int = 1, *, zigzag: bool = False) -> list[Shard]:
    """The shards of a tensor: the inverse of `assemble`."""
    cuts = [Cut(dim, rank, world, blocks, zigzag) for rank in range(world)]
    return [Shard(array.take(cut.indices(array.shape[dim] // world), axis=dim), (cut,)) for cut in cuts]


@pytest.mark.parametrize(
    ("dim", "world", "stride"), [(0, 2, 1), (1, 2, 1), (0, 4, 1), (0, 2, 2), (0, 4, 2), (-1, 3, 1)]
)
def test_shards_put_together_are_the_tensor(dim: int, world: int, stride: int) -> None:
    shards = split(WEIGHT, dim, world, stride)
    assert np.array_equal(assemble(shards[::-1]), WEIGHT)


def test_a_gated_layer_holds_its_part_of_the_gate_then_of_the_up_projection() -> None:
    gate, up = WEIGHT[:4], WEIGHT[4:]
    ranks = [np.concatenate([gate[:2], up[:2]]), np.concatenate([gate[2:], up[2:]])]
    shards = [Shard(array, (Cut(0, rank, 2, blocks=2),)) for rank, array in enumerate(ranks)]
    assert np.array_equal(assemble(shards), WEIGHT)
    assert np.array_equal(split(WEIGHT, 0, 2, 2)[1].array, ranks[1])


def test_it_agrees_with_the_probes_index_maps() -> None:
    """`Placed.global_indices`: arange(size * shards).view(blocks, shards, -1)[:, rank]."""
    for blocks in (1, 2):
        for rank, shard in enumerate(split(np.arange(24), 0, 3, blocks)):
            assert shard.array.tolist() == np.arange(24).reshape(blocks, 3, -1)[:, rank].reshape(-1).tolist()


def test_replicated_tensors_are_equal_on_all_ranks() -> None:
    assert np.array_equal(assemble([Shard(WEIGHT), Shard(WEIGHT.copy())]), WEIGHT)
    other = WEIGHT.copy()
    other[1, 2] += 0.5
    with pytest.raises(
        ShardError, match=r"norm.weight is replicated, but copies 0 and 1 differ in 1 of 48 .* \[1, 2\]"
    ):
        assemble([Shard(WEIGHT), Shard(other)], "norm.weight")


def test_data_parallel_copies_of_a_shard_are_equal() -> None:
    left, right = split(WEIGHT, 0, 2)
    assert np.array_equal(assemble([left, right, left, right]), WEIGHT)
    stale = Shard(right.array + 1, right.cuts)
    with pytest.raises(ShardError, match="shard 1 of 2, is held by 2 ranks, but copies 0 and 1 differ"):
        assemble([left, right, left, stale])


def test_ranks_may_hold_different_tensors() -> None:
    first, last = {"embedding": Shard(WEIGHT)}, {"head": Shard(WEIGHT + 1)}
    assert sorted(assemble_all([first, last])) == ["embedding", "head"]


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([], "there is no shard"),
        ([split(WEIGHT, 0, 2)[1]], "shard 0 of 2 is missing"),
        ([Shard(WEIGHT, (Cut(0, 0, 2),)), Shard(WEIGHT, (Cut(1, 1, 2),))], "two forms"),
        ([Shard(WEIGHT, (Cut(0, 0, 1, blocks=3),))], "no 3 blocks in dimension 0"),
        ([Shard(WEIGHT[:7], (Cut(0, 0, 2, zigzag=True),))], "no 2 blocks in dimension 0"),
        ([Shard(WEIGHT, (Cut(5, 0, 1),))], "in dimension 5"),
        ([Shard(WEIGHT, (Cut(0, 0, 2), Cut(1, 1, 2)))], "shard 0 of 2 x 0 of 2 is missing"),
    ],
)
def test_what_is_no_tensor_is_an_error(shards: list[Shard], message: str) -> None:
    with pytest.raises(ShardError, match=message):
        assemble(shards, "w")


def test_a_sequence_shared_in_zigzag_is_put_together() -> None:
    first, last = split(np.arange(8), 0, 2, zigzag=True)
    assert (first.array.tolist(), last.array.tolist()) == ([0, 1, 6, 7], [2, 3, 4, 5])
    assert assemble([last, first]).tolist() == list(range(8))


def test_a_tensor_sharded_in_two_dimensions_is_put_together() -> None:
    ranks = [
        Shard(part.array, (*rows.cuts, *part.cuts), holder)
        for holder, (rows, part) in enumerate(
            (rows, part) for rows in split(WEIGHT, 0, 4, 2) for part in split(rows.array, 1, 2)
        )
    ]
    assert np.array_equal(assemble(ranks[::-1]), WEIGHT)
    ranks.append(Shard(ranks[3].array + 1, ranks[3].cuts, 8))
    with pytest.raises(ShardError, match="shard 1 of 4 x 1 of 2, is held by 2 ranks, but ranks 3 and 8 differ"):
        assemble(ranks)


def test_two_ranks_compare_with_one() -> None:
    ranks = [{"fc1": shard} for shard in split(WEIGHT, 0, 2, 2)]
    [found] = compare_arrays({"fc1": WEIGHT}, assemble_all(ranks))
    assert found.kind == "identical"
    wrong = [{"fc1": Shard(rank["fc1"].array, (Cut(0, number, 2),))} for number, rank in enumerate(ranks)]
    [found] = compare_arrays({"fc1": WEIGHT}, assemble_all(wrong))
    assert found.kind == "different"
