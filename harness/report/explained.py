"""An explanation in a few lines that can be pasted into an issue, and everything that was tried below them."""

from __future__ import annotations

from collections.abc import Iterable

from harness.explain.explanation import Explanation
from harness.explain.minimal import Shows
from harness.explain.pins import Guilty
from harness.explain.sources import Sources

_MOST_FIELDS = 12
_MOST_FILES = 4
_LONGEST = 120


def explained_lines(case: str, found: Explanation, sides: str, again: str) -> list[str]:
    """The difference, the pin, the field or the module, and the command; five lines at most.

    Args:
        sides: the two stacks, as a reader calls them.
        again: shows the difference.
    """
    return [f"{case}: {found.focus.difference} ({sides})", _pin(found), *_cause(found), f"again: {again}"]


def tried_lines(found: Explanation) -> list[str]:
    """Every combination of pins and what it came to; fields that changed, with both values."""
    lines = ["pins of the new side in the old one:"]
    for pins, (came, why) in found.guilty.tried.items():
        lines.append(f"  {_names(pins)}: {_CAME[came]}{f' ({why})' if why and came is not Shows.YES else ''}")
    if found.cause is None:
        return lines
    lines.append(f"{len(found.cause.changed)} fields of the resolved configs differ:")
    shown = sorted(found.cause.changed, key=lambda name: (name not in found.cause.fields, name))  # type: ignore[union-attr]
    for name in shown[:_MOST_FIELDS]:
        old, new = found.cause.changed[name]
        fixed = f"; cannot be set back: {_short(found.cause.fixed[name])}" if name in found.cause.fixed else ""
        lines.append(f"  {'*' if name in found.cause.fields else ' '} {name}: {old} → {new}{fixed}")
    if len(shown) > _MOST_FIELDS:
        lines.append(f"    and {len(shown) - _MOST_FIELDS} more")
    return lines


_CAME = {Shows.YES: "it differs", Shows.NO: "it does not", Shows.CANNOT_RUN: "says nothing"}


def _pin(found: Explanation) -> str:
    moves = " and ".join(f"{old} → {new}" for old, new in (found.changed[name] for name in sorted(found.guilty.pins)))
    innocent = found.guilty.innocent(list(found.changed))
    rest = f"; {_names(innocent)} {'plays' if len(innocent) == 1 else 'play'} no part" if innocent else ""
    return f"comes with {moves}{rest}{_put_back(found.guilty)}"


def _put_back(guilty: Guilty) -> str:
    if guilty.restores is None:
        return " (putting it back alone on the new side says nothing)"
    return " (put back on the new side, it is gone)" if guilty.restores else " (put back on the new side, it stays)"


def _cause(found: Explanation) -> list[str]:
    cause = found.cause
    if cause is not None and cause.fields:
        moves = ", ".join(f"{name} {' → '.join(cause.changed[name])}" for name in sorted(cause.fields))
        return [f"caused by {moves}: set back, the sides agree"]
    about = "no config was resolved"
    if cause is not None:
        changed = len(cause.changed)
        about = f"none of {changed} changed config fields explains it" if changed else "no config field changed"
    return [f"{about}; {found.parting.why or 'no module was traced'}{_sources(found.sources)}"]


def _sources(found: Sources | None) -> str:
    """The files to read, few enough for a line."""
    if found is None:
        return ""
    if not found.changed:
        return f"; no source file of {found.where} changed"
    more = f" and {len(found.changed) - _MOST_FILES} more" if len(found.changed) > _MOST_FILES else ""
    return f"; changed of {found.where}: {', '.join(found.changed[:_MOST_FILES])}{more}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _names(names: Iterable[str]) -> str:
    return " + ".join(sorted(names)) or "nothing"
