"""What the entries of a sharded state dict say of themselves, without the data they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

PRELOAD = ("megatron.core.dist_checkpointing.mapping",)

_LONGEST = 32
"""A sequence of more numbers than this is data (a state of a random number generator), and its length stands for it."""


def described(value: Any) -> Any:
    """A sharded state dict without data.

    A sharded tensor or object becomes a mapping of all fields that its class has, but for functions; a factory also
    `builds` what it would write; an object that is not saved says so; tensors and arrays become dtype and shape.
    Everything else stays as it is.
    """
    from megatron.core.dist_checkpointing.mapping import (
        LocalNonpersistentObject,
        ShardedObject,
        ShardedTensor,
        ShardedTensorFactory,
    )

    if isinstance(value, (ShardedObject, ShardedTensor, ShardedTensorFactory)):
        said = {field.name: getattr(value, field.name) for field in fields(value)}
        built = {"builds": value.build()} if isinstance(value, ShardedTensorFactory) else {}
        kept = {name: each for name, each in said.items() if not callable(each)} | built
        return {"kind": type(value).__name__} | {name: described(each) for name, each in kept.items()}
    if isinstance(value, LocalNonpersistentObject):
        return {"kind": type(value).__name__, "object": described(value.unwrap())}
    if isinstance(value, Mapping):
        return {name: described(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return _sequence(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return {"dtype": str(value.dtype), "shape": list(value.shape)}
    return value


def _sequence(value: list[Any] | tuple[Any, ...]) -> Any:
    if len(value) > _LONGEST and all(isinstance(each, (int, float)) for each in value):
        return f"{len(value)} numbers"
    return [described(each) for each in value] if isinstance(value, list) else tuple(map(described, value))
