"""The codec is lossless for what upstream uses, and refuses what it cannot hold."""

import collections
import dataclasses
import enum
import functools
import json
import logging
import math
import pathlib
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compare.trees import tree_differences
from harness.observe import EncodingError, canonical_bytes, encode


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Config:
    size: int = 1
    inner: Any = None


@dataclasses.dataclass(frozen=True)
class Twin:
    size: int = 1
    inner: Any = None


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x


def with_extra() -> Config:
    config = Config()
    config.surplus = 3  # type: ignore[attr-defined]
    return config


Pair = collections.namedtuple("Pair", "a b")

DISTINCT: list[Any] = [
    None,
    True,
    False,
    1,
    0,
    1.0,
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    2**70,
    2**70 + 1,
    "1",
    "",
    "\ud800",
    b"1",
    bytearray(b"1"),
    1 + 0j,
    [],
    (),
    {},
    set(),
    frozenset(),
    [1],
    (1,),
    {1},
    {"a": 1},
    {"a": 1.0},
    {1: "a"},
    {"1": "a"},
    {"$float": "nan"},
    collections.OrderedDict(a=1),
    Pair(1, 2),
    [1, 2],
    Colour.RED,
    Number.ONE,
    Config(),
    with_extra(),
    Twin(),
    Config(2),
    Slotted(1),
    Slotted(2),
    pathlib.Path("a"),
    functools.partial(print, 1),
    functools.partial(print, 2),
    print,
    len,
    int,
    json,
    json.dumps,
    lambda x: x,
    lambda x: x + 1,
    np.float32(1),
    np.float64(1),
    np.int64(1),
    np.str_("1"),
    logging.getLogger("a"),
    "print",
]


def test_different_values_have_different_encodings_and_equal_ones_the_same() -> None:
    encoded = [canonical_bytes(encode(value).tree) for value in DISTINCT]
    assert len(set(encoded)) == len(DISTINCT)
    assert encoded == [canonical_bytes(encode(value).tree) for value in DISTINCT]


def test_order_of_keys_and_members_does_not_count() -> None:
    left, right = encode({"a": {3, 1, 2}, "b": 1}), encode({"b": 1, "a": {2, 3, 1}})
    assert canonical_bytes(left.tree) == canonical_bytes(right.tree)


def test_a_cycle_is_a_reference_and_a_shared_value_is_not() -> None:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    shared = [1]
    assert encode({"loop": loop}).tree == {"loop": [1, {"again": {"$ref": "loop"}}]}
    assert encode([shared, shared]).tree == [[1], [1]]


def test_arrays_become_named_tensors() -> None:
    encoding = encode({"weights": {"layer": np.arange(6, dtype=np.float32).reshape(2, 3).T}})
    assert encoding.tree == {"weights": {"layer": {"$tensor": "weights/layer"}}}
    assert encoding.tensors["weights/layer"].shape == (3, 2)
    assert encoding.tensors["weights/layer"].flags.c_contiguous


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (threading.Lock(), "lock"),
        ({"a": [iter(())]}, "a/0"),
        (np.array(["text"]), "dtype"),
        ({1: np.zeros(1), "1": np.ones(1)}, "read alike"),
        ({"\ud800": np.zeros(1)}, "no UTF-8"),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_place(value: Any, told: str) -> None:
    with pytest.raises(EncodingError, match=told):
        encode(value)


def test_depth_beyond_the_recursion_limit_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EncodingError, match="deeper"):
        encode(deep)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=3)
    | st.sampled_from([Colour.RED, Number.ONE, print, int, pathlib.Path("a")])
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.frozensets(leaves, max_size=3)
        | st.builds(Config, inner=inner)
    ),
    max_leaves=8,
)


@settings(deadline=None)  # on a busy host, or where it is the first to import DeepDiff, one example takes long
@given(trees, trees)
def test_a_description_is_empty_exactly_for_equal_trees(left: Any, right: Any) -> None:
    ours, theirs = encode(left).tree, encode(right).tree
    assert (tree_differences(ours, theirs) == []) == (canonical_bytes(ours) == canonical_bytes(theirs))
    assert tree_differences(ours, ours) == []


@settings(deadline=None)
@given(trees)
def test_encodings_are_strict_json_and_do_not_change_their_input(value: Any) -> None:
    before = repr(value)
    tree = encode(value).tree
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree
    assert repr(value) == before
