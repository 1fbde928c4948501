"""Differences have readable paths and texts."""

import collections
import dataclasses
import datetime
import enum
from typing import Any

import pytest

from harness.compare.trees import Difference, tree_differences
from harness.observe import encode


def differences(old: Any, new: Any) -> list[Difference]:
    return tree_differences(encode(old).tree, encode(new).tree)


def config(name: str = "Config", **fields: Any) -> Any:
    return dataclasses.make_dataclass(name, fields)(**fields)


def with_attribute(value: Any, **attributes: Any) -> Any:
    vars(value).update(attributes)
    return value


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"b": True}}, "a.b: 1 → True"),
        ({"a": 0.0}, {"a": -0.0}, "a: 0.0 → -0.0"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "a[1]: 2 → 3"),
        ({"a": [1]}, {"a": [1, 3]}, "a[1]: (absent) → 3"),
        ({"a": [1]}, {"a": (1,)}, "a: [1] → (1)"),
        ({"a": 1}, {}, "a: 1 → (absent)"),
        ({"a": "1"}, {"a": 1}, "a: '1' → 1"),
        ({"a": print}, {"a": len}, "a: builtins:print → builtins:len"),
        ({"a": {"x"}}, {"a": {"x", "y"}}, "a: (absent) → 'y'"),
        (1, 2, "(root): 1 → 2"),
    ],
)
def test_one_difference(old: Any, new: Any, expected: str) -> None:
    assert [str(found) for found in differences(old, new)] == [expected]


def test_new_neutral_fields_are_one_difference_and_the_others_are_listed() -> None:
    old = {"config": config(a=1)}
    new = {"config": config(a=1, b=None, c=False, d=0, e=0.5, f=[])}
    assert [str(found) for found in differences(old, new)] == [
        "config.(new neutral fields): (absent) → b, c, d, f",
        "config.e: (absent) → 0.5",
    ]


def test_removed_fields_and_changed_classes_are_listed_one_by_one() -> None:
    assert [str(found) for found in differences({"c": config("A", x=None, y=1)}, {"c": config("B", y=1)})] == [
        f"c.(class): {__name__}:A → {__name__}:B",
        "c.x: None → (absent)",
    ]


def test_keys_that_are_not_texts_keep_their_type() -> None:
    assert [str(found) for found in differences({1: "a"}, {"1": "a"})] == ["(1): 'a' → (absent)", "1: (absent) → 'a'"]


class Old(enum.Enum):
    RED = 1


class New(enum.Enum):
    RED = 2


New.__qualname__ = Old.__qualname__
HIDDEN = {
    "an enum's value": (Old.RED, New.RED),
    "members of a set of enums": ({Old.RED}, {New.RED}),
    "a private key": ({"__a": 1}, {"__a": 2}),
    "a number and its text as key": ({1: "a"}, {"(1)": "a"}),
    "a function and a class of one name": (print, type("print", (), {"__module__": "builtins"})),
    "constants of a lambda": (lambda x: x * 2, lambda x: x * 3),
    "what a lambda captured": ((lambda a: lambda: a)(1), (lambda a: lambda: a)(2)),
    "the default of a defaultdict": (collections.defaultdict(int), collections.defaultdict(list)),
    "attributes of a list's subclass": (type("L", (list,), {"x": 1})(), [1]),
    "members of a deque": (collections.deque([1]), collections.deque([2])),
    "a date": (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
    "arguments of an exception": (ValueError(1), ValueError(2)),
    "a field that became an attribute": (config(a=1, b=2), with_attribute(config(a=1), b=2)),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_no_difference_hides_behind_another(what: str) -> None:
    old, new = HIDDEN[what]
    found = differences({"here": old, "there": 1}, {"here": new, "there": 2})
    assert "there: 1 → 2" in [str(item) for item in found]
    assert any(item.path.startswith("here") for item in found)
