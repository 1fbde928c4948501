"""A small language of values, which travels as JSON: a stack builds the real objects, and a reader gets their source.

A JSON scalar stands for itself. Anything else is a list of a form and its arguments:

| form | value |
| --- | --- |
| `["py", text]` | a Python expression over `harness.probes._vocabulary` and a few modules, such as `torch.bfloat16` |
| `["list", …]`, `["tuple", …]`, `["set", …]`, `["frozenset", …]` | a container of the described values |
| `["dict", key, value, …]` | the pairs in their order; `OrderedDict` and `Table` likewise |
| `["fields", key, value, …]` | a dict that no reference reaches, as one made of a config's fields |
| `[CLASS, …]` | an object of a class of the vocabulary, whose fields get the values in their order |
| `["of", expression, field, value, …]` | a shallow copy of an object, with fields set by hand |
| `["call", expression, argument, …]` | what a function returns |
| `["up", n]` | the n-th list, dict or object around this place, the innermost first: a cycle |
| `["again", n]` | the n-th list, dict or object that is complete, the latest first: a shared reference |
| `["deep", n, form, value]` | the value inside n containers of one form |

Every list of forms has a meaning: `up` and `again` count modulo what there is, and are None where there is nothing.
Keys and members of sets must be hashable.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from harness.probes import _vocabulary

Description = Any
"""A JSON scalar, or a list whose first item is the name of a form."""

_MODULES = (
    "collections",
    "datetime",
    "decimal",
    "functools",
    "numpy",
    "omegaconf",
    "pathlib",
    "pkgutil",
    "torch",
    "types",
)
"""What an expression may name besides the vocabulary."""

_FROZEN: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_DICTS: dict[str, Callable[[], dict[Any, Any]]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Table": _vocabulary.Table,
}
_LISTS: dict[str, Callable[[], list[Any]]] = {
    "list": list,
    "Items": _vocabulary.Items,
    "CallableItems": _vocabulary.CallableItems,
}


@dataclass
class Built:
    """A value, and what is needed to see that somebody changed it.

    Attributes:
        parts: every list, dict and object in it, with its items as they were built.
    """

    value: Any
    parts: list[tuple[Any, list[Any]]] = field(default_factory=list)

    def changed(self) -> list[str]:
        """Types of the parts that no longer hold the very items they were built with."""
        return [
            type(part).__name__
            for part, items in self.parts
            if len(now := _items(part)) != len(items) or any(a is not b for a, b in zip(now, items, strict=True))
        ]


def with_sizes(reference: str) -> str:
    """An expression that makes an object of one of Megatron's config classes, `module:name`."""
    return f"pkgutil.resolve_name({reference!r})(num_layers=2, hidden_size=8, num_attention_heads=2)"


def made_with_sizes(reference: str) -> Any:
    """The object that `with_sizes` says, always the same one."""
    return _evaluated(with_sizes(reference))


def overridden(description: Description) -> list[str] | None:
    """The fields that a description of an existing object sets by hand; None of any other."""
    return description[2::2] if isinstance(description, list) and description[0] == "of" else None


def build(description: Description) -> Built:
    """The value that a description stands for."""
    builder = _Builder()
    value = builder.any(description)
    return Built(value, [(part, _items(part)) for part in builder.complete])


class _Builder:
    def __init__(self) -> None:
        self.complete: list[Any] = []
        self._around: list[Any] = []

    def any(self, node: Description) -> Any:
        if type(node) is not list:
            return node
        form, *arguments = node
        if form == "py":
            return _evaluated(arguments[0])
        if form == "up":
            return _counted(self._around, arguments[0])
        if form == "again":
            return _counted(self.complete, arguments[0])
        if form == "deep":
            return self._deep(*arguments)
        if form in _FROZEN:
            return _FROZEN[form]([self.any(argument) for argument in arguments])
        if form == "Pair":
            return _vocabulary.Pair(*map(self.any, arguments[:2]))
        if form == "fields":
            return dict(_pairs([self.any(argument) for argument in arguments]))
        if form == "call":
            return _evaluated(arguments[0])(*[self.any(argument) for argument in arguments[1:]])
        return self._fillable(form, arguments)

    def _fillable(self, form: str, arguments: list[Description]) -> Any:
        """A list, dict or object: it exists before its parts, so that they can refer to it."""
        if form == "of":
            value, names = copy.copy(_evaluated(arguments[0])), arguments[1::2]
            arguments = arguments[2::2]
        else:
            value = (_LISTS.get(form) or _DICTS.get(form) or getattr(_vocabulary, form))()
            names = [] if form in _LISTS or form in _DICTS else field_names(form)
        self._around.append(value)
        parts = [self.any(argument) for argument in arguments]
        self._around.pop()
        if form in _LISTS:
            value.extend(parts)
        elif form in _DICTS:
            value.update(_pairs(parts))
        else:
            for name, part in zip(names, parts, strict=False):
                object.__setattr__(value, name, part)
        self.complete.append(value)
        return value

    def _deep(self, depth: int, form: str, inner: Description) -> Any:
        value = self.any(inner)
        for _ in range(depth):
            value = _FROZEN[form]([value]) if form in _FROZEN else {"inner": value} if form == "dict" else [value]
        return value


def source(description: Description, name: str = "value") -> str:
    """Python that makes the same value under `name`, with every import and definition it needs."""
    writer = _Writer()
    expression = writer.any(description)
    lines = [*writer.lines, f"{name} = {expression}"]
    definitions, imports = _definitions("\n".join(lines))
    return "\n".join([*(f"import {module}" for module in imports), "", *definitions, *lines])


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._complete: list[str] = []
        self._around: list[str] = []
        self._count = 0

    def any(self, node: Description) -> str:
        if type(node) is not list:
            return repr(node)
        form, *arguments = node
        if form == "py":
            return str(arguments[0])
        if form in ("up", "again"):
            return str(_counted(self._around if form == "up" else self._complete, arguments[0]))
        if form == "deep":
            return self._deep(*arguments)
        if form == "call":
            return f"{arguments[0]}({', '.join(self.any(argument) for argument in arguments[1:])})"
        if form in _FROZEN or form in ("Pair", "fields"):
            parts = [self.any(argument) for argument in arguments]
            if form == "fields":
                return f"{{{', '.join(f'{key}: {value}' for key, value in _pairs(parts))}}}"
            return f"Pair({', '.join(parts[:2])})" if form == "Pair" else f"{form}([{', '.join(parts)}])"
        return self._fillable(form, arguments)

    def _fillable(self, form: str, arguments: list[Description]) -> str:
        self._count += 1
        name, made = f"{form.lower()}{self._count}", f"{_qualified(form)}()"
        names = field_names(form) if hasattr(_vocabulary, form) else []
        if form == "of":
            made, names, arguments = f"copy.copy({arguments[0]})", arguments[1::2], arguments[2::2]
        self.lines.append(f"{name} = {made}")
        self._around.append(name)
        parts = [self.any(argument) for argument in arguments]
        self._around.pop()
        self._complete.append(name)
        if form in _LISTS:
            self.lines.append(f"{name}.extend([{', '.join(parts)}])")
        elif form in _DICTS:
            pairs = ", ".join(f"({key}, {value})" for key, value in _pairs(parts))
            self.lines.append(f"{name}.update([{pairs}])")
        else:
            self.lines += [
                f"object.__setattr__({name}, {field!r}, {part})" for field, part in zip(names, parts, strict=False)
            ]
        return name

    def _deep(self, depth: int, form: str, inner: Description) -> str:
        self._count += 1
        name = f"deep{self._count}"
        around = f"{form}([{name}])" if form in _FROZEN else f"{{'inner': {name}}}" if form == "dict" else f"[{name}]"
        self.lines += [f"{name} = {self.any(inner)}", f"for _ in range({depth}):", f"    {name} = {around}"]
        return name


@cache
def field_names(form: str) -> list[str]:
    """The fields of a class of the vocabulary in the order in which a description gives their values."""
    bases = reversed(getattr(_vocabulary, form).__mro__)
    return [name for base in bases for name in inspect.get_annotations(base)]


@cache
def _evaluated(expression: str) -> Any:
    names = {**vars(_vocabulary), **{name: importlib.import_module(name) for name in _named(expression, _MODULES)}}
    return eval(expression, names)


def _pairs(parts: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(parts[::2], parts[1::2], strict=False))


def _counted(values: list[Any], number: int) -> Any:
    return values[-1 - number % len(values)] if values else None


def _items(part: Any) -> list[Any]:
    if isinstance(part, list):
        return list(part)
    if isinstance(part, Mapping):
        return [item for pair in part.items() for item in pair]
    slots = [name for name in getattr(type(part), "__slots__", ()) if hasattr(part, name)]
    # In the order of their names: an attribute that is taken out and put back has changed its place and nothing else.
    state = sorted(getattr(part, "__dict__", {}).items())
    return [item for pair in state for item in pair] + [getattr(part, name) for name in slots]


def _definitions(text: str) -> tuple[list[str], list[str]]:
    """Source of the vocabulary that a text names, each before its first use, and the modules to import."""
    known = [
        name for name, value in vars(_vocabulary).items() if getattr(value, "__module__", "") == _vocabulary.__name__
    ]
    wanted: dict[str, str] = {}
    frontier = _named(text, known)
    while frontier:
        name = frontier.pop()
        wanted[name] = inspect.getsource(getattr(_vocabulary, name))
        frontier += [other for other in _named(wanted[name], known) if other not in wanted]
    ordered = [wanted[name] for name in known if name in wanted]
    modules = _named("\n".join([*ordered, text]), (*_MODULES, "copy", "dataclasses", "enum"))
    head = ["from dataclasses import dataclass, field", "from typing import Any, NamedTuple"] if ordered else []
    return [*head, "", *ordered], modules


def _named(text: str, names: Any) -> list[str]:
    words = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
    return [name for name in names if name in words]


def _qualified(form: str) -> str:
    return f"collections.{form}" if form == "OrderedDict" else form
