"""Differences between two encoded trees, with readable paths.

Equality is equality of canonical bytes; DeepDiff only describes. Before DeepDiff sees them, trees are rendered so that
every leaf is a text that no other value shares, which makes both notions agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from harness.observe.codec import Encoded, canonical_bytes

Kind = Literal["changed", "added", "removed"]
ABSENT = "(absent)"
NEUTRAL_FIELDS = "(new neutral fields)"
_CLASS = "(class)"
_NEUTRAL = frozenset({"None", "False", "0", "0.0", "''", "[]", "()", "{}"})


@dataclass(frozen=True)
class Difference:
    """One difference.

    Attributes:
        path: where, e.g. `ddp_config.grad_reduce_in_fp32` or `rank1: gradients/…`.
        kind: `changed`, `added` (only the new side has it) or `removed`.
        old: the old value as text, `(absent)` where there is none.
        new: the new value as text.
    """

    path: str
    kind: Kind
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old} → {self.new}"


def tree_differences(old: Encoded, new: Encoded) -> list[Difference]:
    """Every difference between two encoded trees, in path order; empty exactly if the trees are equal.

    Fields that only the new dataclass has and whose value is neutral (None, False, zero, empty) are one difference
    per dataclass, `(new neutral fields)`, with their names as its new value.
    """
    if canonical_bytes(old) == canonical_bytes(new):
        return []
    from deepdiff import DeepDiff  # takes as long to import as half of this package, and most trees are equal

    delta = DeepDiff(render(old), render(new), view="tree", threshold_to_diff_deeper=0, ignore_private_variables=False)
    found = [_difference(level) for levels in delta.values() for level in levels]
    return sorted(_gather_neutral(found), key=lambda difference: difference.path) or [
        Difference("(root)", "changed", _digest(old), _digest(new))
    ]


def render(node: Encoded) -> Any:
    """A tree of dicts, lists, tuples and frozensets whose leaves are texts."""
    if isinstance(node, list):
        return [render(item) for item in node]
    if not isinstance(node, dict):
        return _Leaf(repr(node))
    if any(key.startswith("$") for key in node):
        return _render_tagged(node)
    return {_key(key): render(item) for key, item in node.items()}


def _render_tagged(node: dict[str, Encoded]) -> Any:
    match node:
        case {"$tuple": items}:
            return tuple(render(item) for item in items)
        case {"$set": items} | {"$frozenset": items}:
            return frozenset({_whole(item) for item in items} | {f"({next(iter(node))[1:]})"})
        case {"$dict": pairs}:
            return {_key(key): render(item) for key, item in pairs}
        case {"$dataclass": kind, "fields": fields}:
            return {_CLASS: kind, **_keyed(fields), **_apart("(extra)", node.get("extra"))}
        case {"$object": kind, "state": state}:
            return {_CLASS: f"{kind} (object)", **_keyed(state)}
        case {"$subclass": kind, "value": value}:
            inner = render(value)
            fields = inner if isinstance(inner, dict) else {"(value)": inner}
            return {_CLASS: f"{kind} (subclass)", **fields, **_apart("(extra)", node.get("extra"))}
        case {"$partial": function, "with": given}:
            return {"(partial)": render(function), **render(given)}
        case {"$enum": name, "value": value}:
            return _Leaf(text(node), f"{name} = {text(value)}")
    return _Leaf(text(node))


class _Leaf(str):
    """A leaf: the text that is compared, which no other value has, and the one that is shown."""

    __slots__ = ("short",)
    short: str

    def __new__(cls, short: str, whole: str | None = None) -> Self:
        leaf = super().__new__(cls, whole or short)
        leaf.short = short
        return leaf


def _keyed(fields: Encoded) -> dict[str, Any]:
    """Fields of an object; where their names are not all texts they are encoded as pairs."""
    rendered: dict[str, Any] = render(fields)
    return rendered


def _whole(node: Encoded) -> str:
    """What a member of a set is compared by."""
    rendered = render(node)
    return rendered if isinstance(rendered, str) else text(node)


def _apart(name: str, extra: Encoded) -> dict[str, Any]:
    return {name: render(extra)} if extra else {}


def _key(key: Encoded) -> str:
    """A key that is no text stands in brackets, and a text that looks like one in quotes."""
    if not isinstance(key, str):
        return f"({text(key)})"
    return repr(key) if key.startswith(("(", "'", '"')) else key


def text(node: Encoded) -> str:
    """A short text of an encoded value, as a reader would write it."""
    match node:
        case {"$float": value} | {"$dtype": value} | {"$device": value} | {"$int": value}:
            return str(value)
        case {"$enum": name}:
            return str(name).rpartition(":")[2]
        case {"$function": name, "code": code}:
            return f"{name} #{code}"
        case {"$function": name}:
            return str(name)
        case {"$class": name}:
            return f"class {name}"
        case {"$tensor": name}:
            return f"tensor {name}"
        case {"$ref": path}:
            return f"cycle to {path or 'the root'}"
        case dict():
            return json.dumps(node, sort_keys=True)
    return repr(node)


def _difference(level: Any) -> Difference:
    kind: Kind = "added" if "added" in level.report_type else "removed" if "removed" in level.report_type else "changed"
    old = ABSENT if kind == "added" else _shown(level.t1)
    new = ABSENT if kind == "removed" else _shown(level.t2)
    if old == new:
        old, new = str(level.t1), str(level.t2)
    return Difference(_path(level.path(output_format="list")), kind, old, new)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return getattr(value, "short", value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    brackets = "()" if isinstance(value, tuple) else "{}" if isinstance(value, frozenset) else "[]"
    return brackets[0] + ", ".join(_shown(item) for item in value) + brackets[1]


def _path(steps: Iterable[Any]) -> str:
    path = ""
    for step in steps:
        if step is None:  # DeepDiff's step into a set, whose members have no place
            continue
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path or "(root)"


def _gather_neutral(found: list[Difference]) -> list[Difference]:
    neutral = [
        difference
        for difference in found
        if difference.kind == "added" and difference.new in _NEUTRAL and "." in difference.path
    ]
    by_parent: dict[str, list[str]] = {}
    for difference in neutral:
        parent, _, name = difference.path.rpartition(".")
        by_parent.setdefault(parent, []).append(name)
    gathered = [
        Difference(f"{parent}.{NEUTRAL_FIELDS}", "added", ABSENT, ", ".join(sorted(names)))
        for parent, names in by_parent.items()
    ]
    return [difference for difference in found if difference not in neutral] + gathered


def _digest(tree: Encoded) -> str:
    return canonical_bytes(tree).decode()[:80]
