"""What became of every value of a config in the JSON that was written of it.

Config and output are laid beside each other, without any idea of how the writer works: an item that the output does not
have was dropped, one whose `str` stands in its place was written as text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import math
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

_ABSENT = object()

HOOKS = frozenset(
    [
        "finalize_model_grads_func",
        "grad_scale_func",
        "no_sync_func",
        "grad_sync_func",
        "param_sync_func",
        "generation_config",
        "_pg_collection",
    ]
)
"""Fields of configs that only a run fills; verl 0.7.1 takes them out of a config while it dumps it."""

_MOST_DIGITS = 4300
"""Python writes no integer with more (`sys.set_int_max_str_digits`)."""

_IMPOSSIBLE = 100
_MISFIT = {"dropped": 1, "merged": 1, **dict.fromkeys(("null", "other", "invented"), _IMPOSSIBLE), "lost": 100_000}
"""What counts less is the likelier, however often it occurs in one value."""


class Fate(NamedTuple):
    """What became of a kind of value at a kind of place.

    Attributes:
        place: `field` of the config, `hook` if it is one that only a run fills, `inside` of another value, `name` of a
            field or `key` of a mapping; `pair` where a key and its value are gone and either may be the reason.
        kind: name of the value's type; what a type does not say is added (`nan`, `cycle`, …).
        fate: `same`, `value` (what an enum, a numpy scalar or a subclass stands for), `text` (its `str`), `json` (what
            JSON writes of a key), `array`, `object`, `null`, `dropped`, `lost` (dropped without a reason, see
            `may_be_dropped`), `merged` (a key that another reads like), `invented` (nothing in the config accounts for
            it), or `other`.
    """

    place: str
    kind: str
    fate: str


def fates(config: Any, output: Mapping[str, Any]) -> set[Fate]:
    """What became of every value of a config, or of a dict that stands for one, in the parsed JSON `output`."""
    found: list[Fate] = []
    _of_pairs(fields_of(config), output, {id(config)}, found, ("name", "field"))
    return set(found)


def fields_of(config: Any) -> Mapping[Any, Any]:
    """The fields of a config: of a dataclass, else whatever was set on it."""
    members = members_of(config)
    return members if isinstance(members, Mapping) else vars(config)


def kind_of(value: Any) -> str:
    """The name of a value's type, and what that does not say of numbers and texts that JSON cannot hold.

    Of dataclasses and enums, their own names do not matter.
    """
    name = _kind_of_type(value.__class__)
    if isinstance(value, float) and not math.isfinite(value) and not isinstance(value, enum.Enum):
        return f"{name} {'nan' if math.isnan(value) else 'infinity'}"
    if type(value) is int and value.bit_length() > 63:
        return f"int beyond {'4300 digits' if value.bit_length() > _MOST_DIGITS * math.log2(10) else '64 bits'}"
    return name


@cache
def _kind_of_type(type_: type) -> str:
    if dataclasses.is_dataclass(type_):
        return "dataclass"
    if issubclass(type_, enum.Enum):
        return " ".join([*(base.__name__ for base in (str, int) if issubclass(type_, base)), "enum"])
    numpy = sys.modules.get("numpy")
    return f"{'numpy ' if numpy and issubclass(type_, numpy.generic) else ''}{type_.__name__}"


def may_be_dropped(value: Any, around: Container[int] = ()) -> bool:
    """Whether there is a reason to leave a value out: it can be called, closes a cycle, or JSON has no form for it.

    JSON has one for None, numbers, texts, enums, numpy scalars, torch dtypes, lists, tuples and dicts.

    Args:
        around: identities of what the value is in.
    """
    return id(value) in around or callable(value) or not _has_json_form(value)


def _has_json_form(value: Any) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if value is None or isinstance(value, (int, float, str, enum.Enum, list, tuple, dict)):
        return True
    return bool((numpy and isinstance(value, numpy.generic)) or (torch and type(value) is torch.dtype))


def members_of(value: Any) -> Mapping[Any, Any] | Sequence[Any] | None:
    """The pairs of a mapping, the readable fields of a dataclass, the items of a sequence or set; None of all else."""
    match _form_of_type(value.__class__):
        case "mapping":
            return value
        case "items":
            return list(value)
        case "dataclass":
            return _readable_fields(value)
    return None


@cache
def _form_of_type(type_: type) -> str:
    """`mapping`, `items` or `dataclass`, or nothing if its values have no members."""
    if issubclass(type_, Mapping):
        return "mapping"
    if issubclass(type_, (list, tuple, set, frozenset)):
        return "items"
    return "dataclass" if dataclasses.is_dataclass(type_) else ""


def _readable_fields(value: Any) -> dict[str, Any]:
    fields = {}
    for name in _field_names(value.__class__):
        # A field that is not set, and the vocabulary's that cannot be read.
        with contextlib.suppress(AttributeError, RuntimeError):
            fields[name] = getattr(value, name)
    return fields


@cache
def _field_names(type_: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(type_))


def _of_value(value: Any, output: Any, place: str, around: set[int], found: list[Fate]) -> None:
    """Add to `found` what became of a value, and of all that is in it."""
    fate = _dropped(may_be_dropped(value, around)) if output is _ABSENT else _fate(value, output)
    found.append(Fate(place, _kind(value, around), fate))
    members = members_of(value) if fate in ("array", "object") and id(value) not in around else None
    if members is None:
        return
    around.add(id(value))
    of_members: Any = _of_pairs if fate == "object" else _of_items
    of_members(members, output, around, found)
    around.remove(id(value))


def _kind(value: Any, around: set[int]) -> str:
    return "cycle" if id(value) in around else kind_of(value)


def _dropped(with_reason: bool) -> str:
    return "dropped" if with_reason else "lost"


def _fate(value: Any, output: Any) -> str:
    if output is None and value is not None and _plain(value) is not None:
        return "null"
    if isinstance(output, list):
        return "array" if _form_of_type(value.__class__) == "items" else "other"
    if isinstance(output, dict):
        return "object" if _form_of_type(value.__class__) in ("mapping", "dataclass") else "other"
    if _same(value, output):
        return "same"
    if _same(_plain(value), output):
        return "value"
    # The str of what has members is nobody's idea of JSON, and may read what cannot be read.
    return (
        "text" if isinstance(output, str) and not _form_of_type(value.__class__) and output == str(value) else "other"
    )


def _same(value: Any, output: Any) -> bool:
    return type(value) is type(output) and bool(value == output or (value != value and output != output))


def _plain(value: Any) -> Any:
    """What an enum, a numpy scalar or a subclass of a built-in type stands for."""
    if isinstance(value, enum.Enum):
        return value.value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    return next((base(value) for base in (int, float) if isinstance(value, base)), _text(value))


def _text(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else _ABSENT


def _of_items(items: Sequence[Any], output: list[Any], around: set[int], found: list[Fate]) -> None:
    """Items in their order; where the output has fewer, those were dropped without which the rest fits best."""
    if len(items) <= len(output):
        for item, written in zip(items, output, strict=False):
            _of_value(item, written, "inside", around, found)
        found += [Fate("inside", "(no item)", "invented")] * (len(output) - len(items))
        return
    best: dict[int, list[Fate]] = {0: []}
    for index, item in enumerate(items):
        longer = {}
        for taken in range(max(0, len(output) - len(items) + index + 1), min(index + 1, len(output)) + 1):
            dropped = [*best[taken], *_inside(item, _ABSENT, around)] if taken in best else None
            kept = [*best[taken - 1], *_inside(item, output[taken - 1], around)] if taken - 1 in best else None
            longer[taken] = min((each for each in (kept, dropped) if each is not None), key=_misfit)
        best = longer
    found += best[len(output)]


def _inside(item: Any, output: Any, around: set[int]) -> list[Fate]:
    found: list[Fate] = []
    _of_value(item, output, "inside", around, found)
    return found


def _misfit(found: list[Fate]) -> int:
    """How badly a config and its output fit; what was dropped counts less than what cannot have come from there."""
    kept_cycles = sum(fate.kind == "cycle" and fate.fate != "dropped" for fate in found)
    return _IMPOSSIBLE * kept_cycles + sum(_MISFIT.get(each.fate, 0) for each in found)


def _of_pairs(
    pairs: Mapping[Any, Any],
    output: Mapping[str, Any],
    around: set[int],
    found: list[Fate],
    places: tuple[str, str] = ("key", "inside"),
) -> None:
    of_key, of_value = places
    written = _written_keys(pairs, output)
    owners = _owners(pairs, output, written, around)
    for key, value in pairs.items():
        place = "hook" if of_value == "field" and key in HOOKS else of_value
        text, fate = written.get(key, (None, "dropped"))
        if text is None:
            found.append(_absent_pair(key, value, (of_key, place), around))
        elif owners[text] is not key:
            found.append(Fate(of_key, kind_of(key), "merged"))
        else:
            found.append(Fate(of_key, kind_of(key), fate))
            _of_value(value, output[text], place, around, found)
    found += [Fate(of_key, "(no key)", "invented")] * len(output.keys() - owners.keys())


def _absent_pair(key: Any, value: Any, places: tuple[str, str], around: set[int]) -> Fate:
    of_key, of_value = places
    if type(key) is str:
        return Fate(of_value, _kind(value, around), _dropped(may_be_dropped(value, around)))
    if value is None or type(value) in (bool, int, float, str):
        return Fate(of_key, kind_of(key), _dropped(may_be_dropped(key)))
    with_reason = may_be_dropped(key) or may_be_dropped(value, around)
    return Fate("pair", f"{kind_of(key)}: {_kind(value, around)}", _dropped(with_reason))


def _written_keys(pairs: Mapping[Any, Any], output: Mapping[str, Any]) -> dict[Any, tuple[str, str]]:
    """The text that each key has become, and how; a text that is a key itself is another's only if nothing else is."""
    own = {key for key in pairs if type(key) is str}
    found = {}
    for key in pairs:
        if type(key) is str:
            if key in output:
                found[key] = (key, "same")
            continue
        forms = [form for form in _forms(key) if form[0] in output]
        chosen = next((form for form in forms if form[0] not in own), forms[0] if forms else None)
        if chosen is not None:
            found[key] = chosen
    return found


def _owners(
    pairs: Mapping[Any, Any], output: Mapping[str, Any], written: Mapping[Any, tuple[str, str]], around: set[int]
) -> dict[str, Any]:
    """The key whose value stands under each text: of keys that read alike, the last of those that fit best."""

    def misfit(key: Any) -> int:
        return _misfit(_inside(pairs[key], output[written[key][0]], around))

    owners: dict[str, Any] = {}
    for key, (text, _) in written.items():
        if text not in owners or misfit(key) <= misfit(owners[text]):
            owners[text] = key
    return owners


def _forms(key: Any) -> Iterator[tuple[str, str]]:
    """The texts that a writer may make of a key that is none."""
    plain = key if key is None or isinstance(key, (bool, int, float)) else _plain(key)
    if type(plain) is float and str(plain) != str(key):
        # What is written of a float16 in full may stand beside another key that reads like its short form.
        yield str(plain), "value"
    yield str(key), "text"
    if plain is None or isinstance(plain, (bool, int, float)):
        yield json.dumps(plain), "json"
    if plain is not _ABSENT:
        yield str(plain), "value"
    if isinstance(key, tuple):
        yield str(list(key)), "array"
