"""Values made again from their encoding."""

import enum
import functools
import math
import pathlib
from typing import Any

import pytest

from harness.observe.codec import canonical_bytes, encode
from harness.observe.rebuild import CannotRebuildError, rebuild


class Colour(enum.Enum):
    RED = 1


NAMED = [Colour.RED, Colour, math.hypot, pytest.importorskip]


@pytest.mark.parametrize(
    "value",
    [None, True, -0.0, 2**70, math.inf, "text", [1, [2.5, None]], (1, ("a",)), {"a": {"b": [1]}}, *NAMED],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_a_value_comes_back(value: Any) -> None:
    tree = encode(value).tree
    assert canonical_bytes(encode(rebuild(tree)).tree) == canonical_bytes(tree)


@pytest.mark.parametrize("value", [lambda: 1, functools.partial(len), {1, 2}, {1: 2}, b"x", pathlib.PurePath("a")])
def test_what_says_too_little_is_refused(value: Any) -> None:
    with pytest.raises(CannotRebuildError, match="cannot be made from its encoding"):
        rebuild(encode(value).tree)


@pytest.mark.parametrize("name", ["no_such_module_at_all:X", "math:no_such_name", "enum:Enum.no"])
def test_a_name_that_is_gone_is_refused(name: str) -> None:
    with pytest.raises(CannotRebuildError, match="is not there"):
        rebuild({"$class": name})
