"""The config classes that a stack really has, and the types of their fields."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes._other_values import alternatives, annotations_of
from harness.probes._values import made_with_sizes
from harness.probes.config_values import PRELOAD as PRELOAD
from harness.probes.config_values import converse
from harness.probes.registry import probe

_TRANSFORMER_CONFIG = "megatron.core.transformer.transformer_config:TransformerConfig"
_PLAIN = {bool: "bool", int: "int", float: "float", str: "str", type(None): "None"}


@probe(enters=(f"{_TRANSFORMER_CONFIG}.__post_init__",), returns=("ended",))
def config_classes(run: Run, *, listen: str) -> Mapping[str, Any]:
    """Answers any question with the classes derived from Megatron-Core's TransformerConfig, and itself.

    An answer has `classes`: reference → field → alternatives, each the name of a type or a list of a name and its
    arguments; and `refused`: reference → why it could not be made with a few sizes.
    """
    kinds = [run.upstream(_TRANSFORMER_CONFIG), *_derived(run.upstream(_TRANSFORMER_CONFIG))]
    references = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in kinds}
    classes: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for reference, kind in sorted(references.items()):
        try:
            made_with_sizes(reference)
        except Exception as error:  # noqa: BLE001 - what a class refuses is listed
            refused[reference] = f"{type(error).__name__}: {error}"
            continue
        types = annotations_of(kind)
        classes[reference] = {field.name: _described(types[field.name]) for field in dataclasses.fields(kind)}
    converse(listen, lambda _: {"classes": classes, "refused": refused})
    return {"ended": True}


def _derived(kind: type) -> Iterator[type]:
    for derived in kind.__subclasses__():
        if dataclasses.is_dataclass(derived) and "<locals>" not in derived.__qualname__:
            yield derived
            yield from _derived(derived)


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
