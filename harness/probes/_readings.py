"""What a reader of configs made of one: in a form in which stacks can be compared, exceptions included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pprint import pformat
from typing import Any

from harness.observe.exceptions import portable
from harness.probes._values import Built, Description, build


def attempt(read: Callable[[Built], Mapping[str, str]], config: Description) -> dict[str, Any]:
    """The answer of a reader that gives the `fates` of fields.

    Returns:
        fates: name of a field → what became of it; none where the reader raises.
        raised: the exception, or None.
        broken: properties that do not hold: the config that was read is no longer what it was.
    """
    built = build(config)
    fates: Mapping[str, str] = {}
    raised = None
    try:
        fates = read(built)
    except Exception as error:  # noqa: BLE001 - whatever upstream raises is the answer
        raised = portable(f"{type(error).__name__}: {error}", {})
    broken = sorted({f"changed its input: {name}" for name in built.changed()})
    return {"fates": dict(fates), "raised": raised, "broken": broken}


def same(found: Any, given: Any) -> bool:
    """Whether a value is the one that was given, or its like."""
    return found is given or (type(found) is type(given) and repr(found) == repr(given))


def text_of(value: Any) -> str:
    """A value in a line that is the same in every run."""
    # pprint puts sets in order.
    return " ".join(portable(pformat(value), {}).split())
