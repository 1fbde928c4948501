"""Classes and functions that a description of a value may name (see `harness.probes._values`).

The source of each, as it stands here, is what a reproduction prints; so each needs no more than the standard library,
torch inside functions, and others of this module.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class PlainEnum(enum.Enum):
    """A plain enum."""

    ONE = "one"


class TextEnum(str, enum.Enum):  # noqa: UP042 - str() of it differs from a StrEnum's
    """An enum whose members are texts, with another `str` than theirs."""

    ONE = "one"


class StringEnum(enum.StrEnum):
    """An enum whose members are texts, also for `str`."""

    ONE = "one"


class NumberEnum(enum.IntEnum):
    """An enum whose members are integers."""

    ONE = 1


class Flags(enum.Flag):
    """An enum whose members combine."""

    ONE = 1
    TWO = 2


class NumberFlags(enum.IntFlag):
    """An enum whose members combine and are integers."""

    ONE = 1
    TWO = 2


class Text(str):
    """A text of another type."""


class Number(int):
    """An integer of another type."""


class Items(list):  # type: ignore[type-arg]
    """A list of another type."""


class CallableItems(list):  # type: ignore[type-arg]
    """A list that can be called."""

    def __call__(self) -> None:
        """Do nothing."""


class Table(dict):  # type: ignore[type-arg]
    """A dict of another type."""


class Pair(NamedTuple):
    """A named tuple."""

    first: Any = None
    second: Any = None


@dataclass
class Config:
    """A dataclass."""

    first: Any = None
    second: Any = None
    third: Any = None


@dataclass(frozen=True)
class FrozenConfig:
    """A dataclass that refuses to be changed."""

    first: Any = None
    second: Any = None


@dataclass(slots=True)
class SlotsConfig:
    """A dataclass without a dict."""

    first: Any = None
    second: Any = None


@dataclass
class DerivedConfig(Config):
    """A dataclass that inherits fields."""

    fourth: Any = None


@dataclass
class UnsetConfig:
    """A dataclass with a field that nothing sets."""

    first: Any = None
    never_set: Any = field(init=False)


@dataclass
class HookedConfig:
    """A dataclass with three of the fields that verl 0.7.1 takes out of a config before it dumps it."""

    first: Any = None
    grad_scale_func: Any = None
    no_sync_func: Any = None
    generation_config: Any = None


def refuse(_: Any) -> Any:
    """Raise."""
    raise RuntimeError("this field cannot be read")


@dataclass
class RaisingConfig:
    """A dataclass with a field that cannot be read."""

    first: Any = None
    second: Any = property(refuse, lambda self, value: None)  # noqa: RUF009 - a descriptor, not a default


class Plain:
    """An object that is no dataclass."""

    first: Any
    second: Any


class Convertible:
    """An object that offers its own form, as configs of transformers do."""

    def to_dict(self) -> dict[str, Any]:
        """The form."""
        return {"first": 1}


class Callable:
    """An object that can be called."""

    def __call__(self) -> None:
        """Do nothing."""


def function() -> None:
    """Do nothing."""


def with_fields(values: dict[str, Any], base: type = object) -> Any:
    """An object of a dataclass that has these fields."""
    return dataclasses.make_dataclass("Section", list(values), bases=(base,), kw_only=True)(**values)


def process_group() -> Any:
    """The group of all ranks, which are one if nobody has started any."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    return torch.distributed.group.WORLD
