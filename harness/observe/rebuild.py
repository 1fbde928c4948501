"""A value made again from its encoding, where that is possible without running anything of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from harness.observe.codec import Encoded


class CannotRebuildError(ValueError):
    """An encoding that says what a value was, but not how to make one."""


def rebuild(tree: Encoded) -> Any:
    """The value that `encode` was given: plain values, lists, tuples, enums, dtypes, named classes and functions.

    Modules are imported to find enums, classes and functions.

    Raises:
        CannotRebuildError: for anything else, or a name that is not there.
    """
    if isinstance(tree, list):
        return [rebuild(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tags = [key for key in tree if key.startswith("$")]
    if not tags:
        return {key: rebuild(item) for key, item in tree.items()}
    make = _MAKERS.get(tags[0])
    if make is None or (tags[0] == "$function" and len(tree) > 1):
        raise CannotRebuildError(f"a {tags[0]} cannot be made from its encoding")
    return make(tree[tags[0]])


def _named(reference: str) -> Any:
    module, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise CannotRebuildError(f"{reference} is not there: {error}") from None
    return found


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$int": lambda text: int(text, 16),
    "$tuple": lambda items: tuple(rebuild(items)),
    "$dtype": lambda name: _named(name.replace("torch.", "torch:", 1)),
    "$enum": _named,
    "$class": _named,
    "$function": _named,
}
