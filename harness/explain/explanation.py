"""The whole explanation: which pin, which field, and where the modules part if no field explains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.bisect.attempts import Attempts
from harness.bisect.focus import Focus, NoDifferenceError, choose
from harness.bisect.search import Answer
from harness.compare import Ledger, Side, judge
from harness.compare.divergence import Divergence, first_divergence
from harness.explain.fields import Cause, causing_fields, changed_fields
from harness.explain.pins import Guilty, guilty_pins
from harness.explain.sources import Sources, changed_sources
from harness.observe.codec import Encoded
from harness.stacks import Pin


@dataclass(frozen=True)
class Explanation:
    """What was found.

    Attributes:
        changed: pins that differ: distribution → (old, new), as typed.
        cause: None where no resolved config was kept, so that no field could be set back.
        parting: where the modules part at the guilty step; without a module where none was traced, or none diverges.
        sources: where to read; None where a field is the cause.
    """

    focus: Focus
    changed: Mapping[str, tuple[str, str]]
    guilty: Guilty
    cause: Cause | None
    parting: Divergence
    sources: Sources | None = None


def explain(
    case: str,
    attempts: Attempts,
    old: Mapping[str, Pin],
    new: Mapping[str, Pin],
    wanted: str | None,
    told: Callable[[str], None],
) -> Explanation:
    """Explain one difference of a case between two sets of pins.

    Args:
        attempts: on the old side's stack.
        old: distribution → pin; `new` likewise.
        wanted: glob of the difference; None for the first one.

    Raises:
        NoDifferenceError: the sides do not differ there, can't be compared, or do not give the same twice.
    """
    kept: dict[str, Encoded] = {}
    before, after = attempts.on((), restored=kept), attempts.on(new.values(), restored=kept)
    judged = judge(case, before, after, Ledger())
    focus = choose(judged, wanted)
    told(f"looking for {focus.difference}" + (f" (one of {focus.others + 1})" if focus.others else ""))
    _verify_steady(case, before, focus, attempts.on((), 1, kept), attempts.on(new.values(), 1, kept))
    changed = {
        name: (old[name].requested if name in old else f"no {name}", new[name].requested)
        for name in sorted(new)
        if old.get(name) != new[name]
    }

    def swapped(names: frozenset[str]) -> Side:
        return attempts.on([new[name] for name in sorted(names)], restored=kept)

    guilty = guilty_pins(case, before, focus, list(changed), swapped, told)
    pins = [new[name] for name in sorted(guilty.pins)]
    cause = _cause(case, before, focus, attempts, pins, told)
    stepped = attempts.on(pins, restored=kept)
    parting = first_divergence([rank.trace for rank in before.ranks], [rank.trace for rank in stepped.ranks])

    def watching(module: str) -> tuple[Side, Side]:
        told(f"source files entered within {module}")
        return attempts.on((), watched=module), attempts.on(pins, watched=module)

    sources = None if cause and cause.fields else changed_sources(parting, before, stepped, watching)
    return Explanation(focus, changed, guilty, cause, parting, sources)


def _verify_steady(case: str, old: Side, focus: Focus, old_again: Side, new_again: Side) -> None:
    """A single run of each combination is believed, so the difference must be there in every run, and only on new."""
    answers = [focus.answer(judge(case, old, side, Ledger()))[0] for side in (old_again, new_again)]
    if answers != [Answer.GOOD, Answer.BAD]:
        raise NoDifferenceError(
            f"{focus.difference.path} is not the same twice (old again: {answers[0]}, new again: {answers[1]}): "
            "explain believes single runs; `parity bisect` measures how often a case fails"
        )


def _cause(
    case: str, old: Side, focus: Focus, attempts: Attempts, pins: Sequence[Pin], told: Callable[[str], None]
) -> Cause | None:
    before, after = _configs(old), _configs(attempts.on(pins, restored={}))
    if not before or not after:
        return None
    changed = changed_fields(before, after)
    told(f"{len(changed)} fields of the resolved configs differ")
    return causing_fields(case, old, focus, changed, lambda values: attempts.on(pins, restored=dict(values)), told)


def _configs(side: Side) -> dict[str, Encoded]:
    """`config.field` → value, of the configs that the lowest rank kept."""
    kept = side.ranks[0].environment.get("configs", {}) if side.ranks else {}
    return {f"{config}.{name}": value for config, fields in kept.items() for name, value in fields.items()}
