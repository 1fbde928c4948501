"""Hypothesis strategies: descriptions of values and configs (see `harness.probes._values`), and files nearly right."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from harness.probes._kinds import CONFIGS, CONTAINERS, HASHABLE, KEYS, LEAVES, LIKELY, SCALARS
from harness.probes._values import Description, field_names

Descriptions = st.SearchStrategy[Description]

_OBJECTS = sorted({form for form, *_ in CONFIGS}, key=lambda form: (len(form), form))
_SEQUENCES = ("list", "tuple", "Items", "CallableItems", "Pair", *_OBJECTS)
_DICTS = ("dict", "OrderedDict", "Table")
_OF_A_STACK = ("torch", "megatron", "omegaconf", "process_group")


def _plain(pool: tuple[Description, ...]) -> list[Description]:
    """What of a pool can be built where nothing but numpy is installed."""
    return [value for value in pool if not any(word in json.dumps(value) for word in _OF_A_STACK)]


def _float(value: float) -> Description:
    return value if math.isfinite(value) else ["py", f"float('{value}')"]


def _flat(pairs: list[tuple[Any, Any]]) -> list[Any]:
    return [item for pair in pairs for item in pair]


def _form(drawn: tuple[str, list[Any]]) -> Description:
    return [drawn[0], *drawn[1]]


def _as(form: str) -> Callable[[list[Any]], Description]:
    return lambda parts: [form, *parts]


FLOATS = st.floats().map(_float)
_SIMPLE = (st.integers(), FLOATS, st.text(max_size=4))
_SMALL = ("", "a", "1", 1, 0, -1, True, None)
_REFERENCES = [[word, number] for word in ("up", "again") for number in range(4)]
_CYCLES = [[form, *key, ["up", 0]] for form, *key in (["list"], ["tuple", ["up", 0]], ["dict", "a"])]
"""The smallest cycles."""
_DEEP = st.sampled_from(
    [
        *(form for form in CONTAINERS if form[0] == "deep"),
        *(["deep", depth, form, 1] for depth in (320, 970, 985, 1000) for form in ("list", "dict")),
    ]
)
"""As deep as dumps go on any stack, and a little deeper; one costs as much as a hundred others."""


class _Hole(enum.Enum):
    """What is drawn in its own turn: a value nested less deep, a key of a dict, a member of a set."""

    VALUE = enum.auto()
    KEY = enum.auto()
    MEMBER = enum.auto()


Shape = Any
"""A description with holes and strategies among its parts, or one of these."""


def _sized(form: str, *parts: _Hole, most: int = 3) -> list[Shape]:
    return [[form, *parts * size] for size in range(most + 1)]


def _sized_each(forms: Sequence[str], *parts: _Hole, most: int = 3) -> list[Shape]:
    return [shape for form in forms for shape in _sized(form, *parts, most=most)]


def _evenly(*kinds: Sequence[Shape], each: int = 17) -> st.SearchStrategy[Shape]:
    """A shape, one kind as likely as another."""
    # One draw, since draws are what an example costs. Hypothesis draws evenly from 256 or fewer.
    return st.sampled_from([kind[number * len(kind) // each] for kind in kinds for number in range(each)])


_CONTAINERS: tuple[list[Shape], ...] = (
    *(_sized(form, _Hole.VALUE) for form in ("list", "tuple", "Config")),
    _sized("dict", _Hole.KEY, _Hole.VALUE),
    [st.sampled_from(_sized_each(_SEQUENCES, _Hole.VALUE))],
    [st.sampled_from(_sized_each(_DICTS, _Hole.KEY, _Hole.VALUE))],
    [st.sampled_from(_sized_each(("set", "frozenset"), _Hole.MEMBER, most=2))],
    [["tuple", _Hole.VALUE, ["again", 0]]],
)


class _Grammar:
    """Draws descriptions of leaves, and of containers of them up to a depth."""

    def __init__(self, leaves: Sequence[Sequence[Shape]], keys: Sequence[Shape], members: Sequence[Shape]) -> None:
        leaves = (*leaves, *([strategy] for strategy in _SIMPLE), _REFERENCES)
        self._leaves = _evenly(*leaves)
        self._values = _evenly(*leaves, *_CONTAINERS)
        self._parts = {_Hole.KEY: st.sampled_from((*_SMALL, *keys)), _Hole.MEMBER: st.sampled_from((*_SMALL, *members))}

    def descriptions(self, *shapes: Sequence[Shape], depth: int = 3) -> Descriptions:
        """Shapes of some kinds, one kind as likely as another, filled with values."""
        return st.composite(self._filled)(_evenly(*shapes), depth)

    def _filled(self, draw: st.DrawFn, shape: Shape, depth: int) -> Description:
        """What a shape becomes when its holes are filled; values in it are nested `depth` deep."""
        if shape is _Hole.VALUE:
            return self._filled(draw, self._values if depth else self._leaves, depth - 1)
        if isinstance(shape, _Hole):
            shape = self._parts[shape]
        if isinstance(shape, st.SearchStrategy):
            return self._filled(draw, draw(shape), depth)
        if type(shape) is not list:
            return shape
        return [self._filled(draw, part, depth) for part in shape]


_ANY = _Grammar(([st.sampled_from((*SCALARS, *LEAVES, *[_DEEP] * 4))], LIKELY, _CYCLES), KEYS, HASHABLE)
VALUES = _ANY.descriptions([_Hole.VALUE])
"""Any value."""

PLAIN_VALUES = _Grammar(([st.sampled_from(_plain((*SCALARS, *LEAVES)))],), _plain(KEYS), _plain(HASHABLE)).descriptions(
    [_Hole.VALUE]
)
"""Any value that needs no stack."""

_CONFIGS = [_sized(form, _Hole.VALUE, most=min(3, len(field_names(form)))) for form in _OBJECTS]
CONFIG_OBJECTS = _ANY.descriptions(*_CONFIGS)
"""Config objects whose fields hold any value."""

CONFIG_OBJECTS_AND_DICTS = _ANY.descriptions(*_CONFIGS, _sized("fields", _Hole.KEY, _Hole.VALUE))
"""What the serialiser's second function alone can be given, too: a dict with any keys."""


@st.composite
def batches(draw: st.DrawFn, of: Descriptions, size: int) -> list[Any]:
    """Up to `size` examples for one request, half as many on average; one is left of a batch that fails."""
    return [draw(of) for _ in range(draw(st.integers(1, size)))]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def near(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one part replaced or left out."""
    if not isinstance(document, (dict, list)) or not document or not draw(st.integers(0, 7)):
        return draw(JSON_VALUES)
    key = draw(st.sampled_from(sorted(document) if isinstance(document, dict) else range(len(document))))
    changed = document.copy()
    if draw(st.integers(0, 7)):
        changed[key] = draw(near(document[key]))
    else:
        del changed[key]
    return changed


def files_like(document: Any) -> st.SearchStrategy[bytes]:
    """What may stand in a JSON file: nearly the document, part of it, or anything."""
    whole = json.dumps(document).encode()
    cut = st.integers(0, len(whole)).map(lambda length: whole[:length])
    return near(document).map(lambda changed: json.dumps(changed).encode()) | cut | st.binary(max_size=20) | _DEEP_JSON


_DEEP_JSON = st.sampled_from([b"[" * 100_000, b'{"format":' * 100_000, b"\xff\xfe", b"", b"NaN", b'"\\ud800"'])


def toml_like(document: Any) -> st.SearchStrategy[bytes]:
    """What may stand in a TOML file: nearly the document, or anything."""
    return near(document).map(lambda changed: _toml(changed).encode(errors="replace")) | st.binary(max_size=20)


def _toml(document: Any) -> str:
    """A document as one inline value per key; what TOML cannot say is left as it is, which no reader takes."""
    if not isinstance(document, dict):
        return str(document)
    return "\n".join(f"{json.dumps(key)} = {_inline(value)}" for key, value in document.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)
