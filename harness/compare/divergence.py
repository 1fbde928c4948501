"""First divergence: in the order of execution, the first module whose inputs agree and whose outputs do not.

Modules end before those that hold them, so the innermost is named; what goes wrong between the modules inside another
is named by that other. Agreement is bit for bit: where sides differ by rounding from early on, that is what is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.compare.module_errors import Call, ModuleError, keyed, module_errors
from harness.observe.trace import Step, TracedTensor

Trace = Sequence[Step]


@dataclass(frozen=True)
class Divergence:
    """Where two sides part.

    Attributes:
        why: one clause, for the verdict's line.
        module: global name of the module; empty where no module diverges.
        phase: `forward` or `backward`.
        ranks: the ranks on which it does.
        detail: what went in and came out, old and new, a line per tensor that differs.
        modules: how far off every module's outputs are, in the order of execution.
    """

    why: str
    module: str = ""
    phase: str = ""
    ranks: tuple[int, ...] = ()
    detail: tuple[str, ...] = ()
    modules: tuple[ModuleError, ...] = ()


@dataclass(frozen=True)
class _Parting:
    """What one rank's traces say.

    Attributes:
        diverged: position and key of the first step whose inputs agree and whose outputs do not.
        entered: the same of the first step that differs at all.
        note: how the two traces differ in their modules.
    """

    old: Mapping[Call, Step] = field(default_factory=dict)
    new: Mapping[Call, Step] = field(default_factory=dict)
    diverged: tuple[int, Call] | None = None
    entered: tuple[int, Call] | None = None
    note: str = ""


def first_divergence(
    old: Sequence[Trace],
    new: Sequence[Trace],
    repeats: Sequence[Sequence[Trace]] = (),
    perturbed: Sequence[Sequence[Trace]] = (),
) -> Divergence:
    """Where two sides part.

    Args:
        old: one trace per rank; likewise `new`.
        repeats: further runs of old. That old parts from itself is said.
        perturbed: the same with the case's inputs moved; with `repeats` they say how far off noise is.
    """
    if not any(old) or not any(new):
        return Divergence("no trace of modules" if any(old) or any(new) else "")
    if len(old) != len(new):
        return Divergence(f"{len(old)} ranks have a trace on old and {len(new)} on new")
    found = replace(_parted(old, new), modules=module_errors(old, new, [*repeats, *perturbed]))
    itself = next((again for run in repeats if len(run) == len(old) and (again := _parted(old, run)).module), None)
    if itself is None:
        return found
    return replace(found, why=f"{found.why}; old parts from itself in {itself.module} ({itself.phase})")


def _parted(old: Sequence[Trace], new: Sequence[Trace]) -> Divergence:
    ranks = [_parting(ours, theirs) for ours, theirs in zip(old, new, strict=True)]
    note = next((rank.note for rank in ranks if rank.note), "")
    diverged = [rank.diverged for rank in ranks if rank.diverged]
    if not diverged:
        entered = [rank.entered for rank in ranks if rank.entered]
        return Divergence(_clauses(_from_outside(entered), note))
    _, key = min(diverged, key=_in_time)
    module, phase, _ = key
    where = tuple(number for number, rank in enumerate(ranks) if rank.diverged and rank.diverged[1] == key)
    first = ranks[where[0]]
    ours, theirs = first.old[key], first.new[key]
    own = ", whose own parameters differ" if ours.parameters != theirs.parameters else ""
    on = "" if len(where) == len(ranks) else f" on rank {', '.join(map(str, where))}"
    return Divergence(
        why=_clauses(f"first diverges in {module} ({phase}){on}{own}", note),
        module=module,
        phase=phase,
        ranks=where,
        detail=(
            *_changes("parameter", ours.parameters, theirs.parameters),
            *_changes("output", ours.outputs, theirs.outputs),
        ),
    )


def _parting(old: Trace, new: Trace) -> _Parting:
    ours, theirs = keyed(old), keyed(new)
    common = [key for key in ours if key in theirs]
    differing = [(at, key) for at, key in enumerate(common) if ours[key] != theirs[key]]
    diverged = (item for item in differing if ours[item[1]].inputs == theirs[item[1]].inputs)
    changed = (item for item in diverged if ours[item[1]].outputs != theirs[item[1]].outputs)
    return _Parting(
        ours,
        theirs,
        diverged=next(changed, None),
        entered=next(iter(differing), None),
        note=_other_modules(ours, theirs, common),
    )


def _in_time(item: tuple[int, Call]) -> tuple[bool, int]:
    at, (_, phase, _) = item
    return phase == "backward", at


def _from_outside(entered: Sequence[tuple[int, Call]]) -> str:
    """What is to say where no module diverges."""
    if not entered:
        return "every module agrees: the difference arises outside of them (gradient reduction, optimizer)"
    module, phase, _ = min(entered, key=_in_time)[1]
    return f"no module diverges: the difference enters {module} ({phase}) from outside"


def _other_modules(ours: Mapping[Call, Step], theirs: Mapping[Call, Step], common: Sequence[Call]) -> str:
    parts = [
        f"{len(only)} steps on {side} only, first {only[0][0]} ({only[0][1]})"
        for side, has, lacks in (("old", ours, theirs), ("new", theirs, ours))
        if (only := [key for key in has if key not in lacks])
    ]
    if list(common) != [key for key in theirs if key in ours]:
        parts.append("modules run in another order")
    return f"traces: {', '.join(parts)}" if parts else ""


def _changes(what: str, old: Sequence[TracedTensor], new: Sequence[TracedTensor]) -> list[str]:
    if len(old) != len(new):
        return [f"{len(old)} {what}s → {len(new)}"]
    pairs = enumerate(zip(old, new, strict=True))
    return [f"{what} {number}: {ours} → {theirs}" for number, (ours, theirs) in pairs if ours != theirs]


def _clauses(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
