"""Configs of the classes that stacks really have, drawn from the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import config_classes
from conversation import Stacks
from descriptions import FLOATS, VALUES, Descriptions
from hypothesis import strategies as st

from harness.probes._values import Description, with_sizes

Fields = Mapping[str, list[Any]]
"""Name of a field → the alternatives of its type, see `config_classes`."""

_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int64")
_PLAIN: dict[str, Descriptions] = {
    "None": st.none(),
    "bool": st.booleans(),
    "int": st.integers(-2, 2**40),
    "float": FLOATS,
    "str": st.text(max_size=4),
    "dtype": st.sampled_from([["py", f"torch.{name}"] for name in _DTYPES]),
    "callable": st.sampled_from([["py", "function"], ["py", "functools.partial(function)"], ["py", "Callable()"]]),
}


_FEW: dict[str, list[Description]] = {
    "None": [None],
    "bool": [True, False],
    "int": [0, 1, 2, 8],
    "float": [0.5],
    "str": ["", "text"],
    "dtype": [["py", "torch.float16"]],
    "callable": [["py", "function"]],
}


def shared_classes(stacks: Stacks, names: Sequence[str]) -> dict[str, Fields]:
    """The config classes that all stacks have, with the fields, and of their types the alternatives, that all have."""
    told = [stacks.talk(name, f"{config_classes.__file__}::config_classes").ask([None])[0] for name in names]
    first, *others = [answer["classes"] for answer in told]
    return {
        reference: common([fields, *(other[reference] for other in others)])
        for reference, fields in first.items()
        if all(reference in other for other in others)
    }


def common(of_each: Sequence[Fields]) -> Fields:
    """The fields that all classes have, and of their types the alternatives that all have."""
    first, *others = of_each
    return {
        name: [each for each in types if all(each in other[name] for other in others)]
        for name, types in first.items()
        if all(name in other for other in others)
    }


def real_configs(classes: Mapping[str, Fields]) -> Descriptions:
    """Objects of the classes in which up to three fields hold a value of their type, or any value."""
    values = {
        (reference, name): typed(types) | VALUES
        for reference, fields in classes.items()
        for name, types in fields.items()
    }
    names = {reference: sorted(fields) for reference, fields in classes.items()}

    @st.composite
    def config(draw: st.DrawFn) -> Description:
        reference = draw(st.sampled_from(sorted(names, key=len)))
        description = ["of", with_sizes(reference)]
        for name in draw(st.lists(st.sampled_from(names[reference]), min_size=1, max_size=3, unique=True)):
            description += [name, draw(values[reference, name])]
        return description

    return config()


def typed(types: list[Any]) -> Descriptions:
    """Values of these alternatives of a type; any value where there is none."""
    return st.one_of(*map(_one, types)) if types else VALUES


def few(types: list[Any]) -> list[Description]:
    """Some values of each of these alternatives of a type."""
    return [value for kind in types for value in _few(kind)]


def _few(kind: Any) -> list[Description]:
    if isinstance(kind, str):
        return _FEW.get(kind, [])
    name, *arguments = kind
    if name == "literal":
        return arguments
    if name == "enum":
        return [["py", f"pkgutil.resolve_name({arguments[0]!r}).{member}"] for member in arguments[1:]]
    return [[name]] if name in ("list", "dict") else []


def _one(kind: Any) -> Descriptions:
    if isinstance(kind, str):
        return _PLAIN[kind]
    name, *arguments = kind
    match name:
        case "literal":
            return st.sampled_from(arguments)
        case "enum":
            reference, *members = arguments
            return st.sampled_from([["py", f"pkgutil.resolve_name({reference!r}).{member}"] for member in members])
        case "list" | "tuple" | "dict":
            parts = [st.one_of(*map(_one, each)) for each in arguments] or [VALUES]
            items = st.tuples(*parts).map(list) if len(parts) > 1 else st.lists(parts[0], max_size=2)
            return items.map(lambda drawn: [name, *drawn])
    return VALUES
