"""Which config field causes a difference: fields that changed are set back on the new side, and the case runs again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.bisect.focus import Focus
from harness.bisect.search import Answer
from harness.compare import Ledger, Side, judge
from harness.compare.trees import tree_differences
from harness.explain.minimal import Minimal, Shows
from harness.observe.codec import Encoded, canonical_bytes

Restored = Callable[[Mapping[str, Encoded]], Side]
"""Observes the case on the new side with these fields set back to these values."""


@dataclass(frozen=True)
class Cause:
    """The fields that cause a difference.

    Attributes:
        fields: a minimal set; set back together on the new side, they restore parity. Empty if no field explains it.
        changed: every field in which the resolved configs differ, with both values as text.
        fixed: fields that could not be set back, and why.
        runs: how often the case ran again.
    """

    fields: frozenset[str]
    changed: Mapping[str, tuple[str, str]]
    fixed: Mapping[str, str]
    runs: int


def changed_fields(old: Mapping[str, Encoded], new: Mapping[str, Encoded]) -> dict[str, tuple[Encoded, Encoded]]:
    """Fields that both resolved configs have, with different values: name → (old, new).

    A field that one side lacks can't be set back; what it stands for shows in others or in the code.
    """
    return {
        name: (old[name], new[name])
        for name in sorted(old.keys() & new.keys())
        if canonical_bytes(old[name]) != canonical_bytes(new[name])
    }


def causing_fields(
    case: str,
    old: Side,
    focus: Focus,
    changed: Mapping[str, tuple[Encoded, Encoded]],
    restored: Restored,
    told: Callable[[str], None],
) -> Cause:
    """The fields that cause the difference in focus: with them set back, the sides agree in it.

    Args:
        old: the case on the old side.
        changed: from `changed_fields`.
        restored: see `Restored`.
    """
    texts = {name: _texts(*values) for name, values in changed.items()}
    fixed: dict[str, str] = {}

    def restores(names: frozenset[str]) -> Shows:
        side = restored({name: changed[name][0] for name in names})
        answer, why = focus.answer(judge(case, old, side, Ledger()))
        came = {Answer.GOOD: Shows.YES, Answer.BAD: Shows.NO}.get(answer, Shows.CANNOT_RUN)
        told(f"  {_listed(names)} set back: {'parity' if came is Shows.YES else why or came}")
        if came is Shows.CANNOT_RUN and len(names) == 1:
            fixed[next(iter(names))] = why
        return came

    search = Minimal(restores)
    fields = _found(search, list(changed))
    return Cause(fields, texts, fixed, len(search.tried))


def _found(search: Minimal[str], names: Sequence[str]) -> frozenset[str]:
    if not names:
        return frozenset()
    try:
        return search.find(names)
    except ValueError:
        # All of them together do not restore parity, or can't run together; one alone still may.
        for name in names:
            search.try_(frozenset({name}))
        return search.alone(names)


def _texts(old: Encoded, new: Encoded) -> tuple[str, str]:
    [difference] = tree_differences({"value": old}, {"value": new})[:1]
    return difference.old, difference.new


def _listed(names: frozenset[str]) -> str:
    few = sorted(names)
    return ", ".join(few[:4]) + (f" and {len(few) - 4} more" if len(few) > 4 else "")
