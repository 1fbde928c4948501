"""Dataclasses from JSON: what a file or a message holds is of the shape that was written, or one short error."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any

Reader = Callable[[Any], Any]

_LONGEST = 40


class ShapeError(ValueError):
    """JSON that is not of the shape it should have; the message names the place and what is wrong there."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told
        self.place: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.place)).lstrip('.') or 'the document'} {self.told}"


def shaped[T](kind: type[T], raw: Any) -> T:
    """An object of the dataclass `kind` from its JSON form, which `dataclasses.asdict` gives.

    Its fields may be texts, numbers, booleans, `Any`, literals, tuples (lists in JSON), mappings with texts as keys,
    dataclasses, and any of these or None. A field with a default may be missing.

    Raises:
        ShapeError: a value of another type, a field too many or one that is missing.
    """
    of_any_kind: Any = kind
    made: T = _reader(of_any_kind)(raw)
    return made


@cache
def _reader(kind: Any) -> Reader:
    """What turns JSON into a value of a type, or raises."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda raw: raw
    if is_dataclass(kind):
        return partial(_object, kind, *_fields_of(kind))  # type: ignore[arg-type]
    if origin in (typing.Union, types.UnionType):
        return partial(_optional, _reader(next(each for each in arguments if each is not types.NoneType)))
    if origin is typing.Literal:
        return partial(_plain, lambda raw: isinstance(raw, str) and raw in arguments, f"one of {', '.join(arguments)}")
    if origin is tuple:
        readers = [_reader(each) for each in arguments if each is not Ellipsis]
        return partial(_list, readers, len(readers) if Ellipsis not in arguments else None)
    if origin is not None:
        return partial(_mapping, _reader(arguments[1]))
    if kind is float:
        return partial(_plain, lambda raw: type(raw) in (int, float), "a number")
    return partial(
        _plain, lambda raw: type(raw) is kind, {str: "a text", int: "a whole number", bool: "true or false"}[kind]
    )


def _fields_of(kind: type[Any]) -> tuple[dict[str, Reader], frozenset[str]]:
    """A reader for each field, and the names of those that must be there."""
    hints = typing.get_type_hints(kind)
    own = [each for each in fields(kind) if each.init and each.metadata.get("json", True)]
    required = [each.name for each in own if each.default is MISSING and each.default_factory is MISSING]
    return {each.name: _reader(hints[each.name]) for each in own}, frozenset(required)


def _object(kind: type[Any], readers: dict[str, Reader], required: frozenset[str], raw: Any) -> Any:
    values = _mapping(None, raw)
    if missing := sorted(required - values.keys()):
        raise ShapeError(f"lacks {missing[0]!r}")
    if unknown := sorted(values.keys() - readers.keys()):
        raise ShapeError(f"has a field {unknown[0][:_LONGEST]!r} too many")
    return kind(**{name: _at(f".{name}", readers[name], value) for name, value in values.items()})


def _mapping(reader: Reader | None, raw: Any) -> Any:
    if type(raw) is not dict:
        raise ShapeError("is no object")
    return raw if reader is None else {name: _at(f".{name[:_LONGEST]}", reader, item) for name, item in raw.items()}


def _list(readers: list[Reader], length: int | None, raw: Any) -> Any:
    if type(raw) is not list:
        raise ShapeError("is no list")
    if length not in (None, len(raw)):
        raise ShapeError(f"has {len(raw)} items, not {length}")
    return tuple(_at(f"[{index}]", reader, item) for index, (reader, item) in enumerate(zip(cycle(readers), raw)))


def _optional(reader: Reader, raw: Any) -> Any:
    return None if raw is None else reader(raw)


def _plain(fits: Callable[[Any], bool], expected: str, raw: Any) -> Any:
    if not fits(raw):
        raise ShapeError(f"is not {expected}")
    return raw


def _at(place: str, reader: Reader, raw: Any) -> Any:
    try:
        return reader(raw)
    except ShapeError as error:
        error.place.append(place)
        raise
