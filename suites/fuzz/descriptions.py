"""Hypothesis strategies: descriptions of values and configs (see `harness.probes._values`), and files nearly right."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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
_NUMBERS_AND_TEXTS = st.integers() | FLOATS | st.text(max_size=4)
_REFERENCES = st.sampled_from([[word, number] for word in ("up", "again") for number in range(4)])
_SMALL = st.sampled_from(["", "a", "1", 1, 0, -1, True, None])
_CYCLES = [[form, *key, ["up", 0]] for form, *key in (["list"], ["tuple", ["up", 0]], ["dict", "a"])]
"""The smallest cycles."""
_DEEP = [["deep", depth, form, 1] for depth in (320, 970, 985, 1000) for form in ("list", "dict")]
"""As deep as dumps go on any stack, and a little deeper."""


def _nested(leaves: Descriptions, keys: Descriptions, members: Descriptions, depth: int) -> Descriptions:
    """Leaves, and containers of what is nested less deep."""
    if depth == 0:
        return leaves
    # Few draws for each value, and branches rather than draws within them: a draw is what an example costs.
    inner = _nested(leaves, keys, members, depth - 1)
    items = st.lists(inner, max_size=3)
    pairs = st.lists(st.tuples(keys, inner), max_size=3).map(_flat)
    likely = items.map(_as("list")) | items.map(_as("tuple")) | pairs.map(_as("dict")) | items.map(_as("Config"))
    others = st.tuples(st.sampled_from(_SEQUENCES), items) | st.tuples(st.sampled_from(_DICTS), pairs)
    sets = st.tuples(st.sampled_from(["set", "frozenset"]), st.lists(members, max_size=2))
    twice = st.tuples(inner).map(lambda drawn: ["tuple", *drawn, ["again", 0]])
    return leaves | likely | (others | sets).map(_form) | twice


VALUES = _nested(
    st.sampled_from((*SCALARS, *LEAVES, *_DEEP, *(form for form in CONTAINERS if form[0] == "deep")))
    | st.sampled_from(LIKELY)
    | _NUMBERS_AND_TEXTS
    | _REFERENCES
    | st.sampled_from(_CYCLES),
    keys := st.sampled_from(KEYS) | _SMALL,
    st.sampled_from(HASHABLE) | _SMALL,
    depth=3,
)
"""Any value."""

PLAIN_VALUES = _nested(
    st.sampled_from(_plain((*SCALARS, *LEAVES))) | _NUMBERS_AND_TEXTS | _REFERENCES,
    st.sampled_from(_plain(KEYS)) | _SMALL,
    st.sampled_from(_plain(HASHABLE)) | _SMALL,
    depth=3,
)
"""Any value that needs no stack."""

TOP_LEVEL_DICTS = st.lists(st.tuples(keys, VALUES), max_size=3).map(lambda pairs: ["fields", *_flat(pairs)])
"""What the serialiser's second function alone can be given: a dict with any keys."""


def configs() -> Descriptions:
    """Config objects whose fields hold any value."""
    return st.one_of(*[st.lists(VALUES, max_size=min(3, len(field_names(form)))).map(_as(form)) for form in _OBJECTS])


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
