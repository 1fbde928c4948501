"""The types of a dataclass's fields as JSON."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable
from typing import Any

from harness.probes._other_values import alternatives, annotations_of

_PLAIN = {bool: "bool", int: "int", float: "float", str: "str", type(None): "None"}


def described_fields(kind: Any) -> dict[str, list[Any]]:
    """Name of a field of a dataclass → alternatives of its type, each a name or a list of it and its arguments."""
    types = annotations_of(kind)
    return {field.name: _described(types[field.name]) for field in dataclasses.fields(kind)}


def _described(annotation: Any) -> list[Any]:
    """The members of a union, as JSON."""
    return [_one(alternative) for alternative in alternatives(annotation)]


def _one(annotation: Any) -> Any:
    import torch

    if isinstance(annotation, type) and annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation is torch.dtype:
        return "dtype"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ["enum", f"{annotation.__module__}:{annotation.__qualname__}", *annotation.__members__]
    if isinstance(annotation, str):
        return ["other", annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ["literal", *arguments]
    if annotation in (Callable, typing.Callable) or origin is typing.get_origin(typing.Callable):
        return "callable"
    if origin in (list, tuple, dict) or annotation in (list, tuple, dict):
        return [(origin or annotation).__name__, *(_described(each) for each in arguments if each is not Ellipsis)]
    return ["other", str(annotation)]
