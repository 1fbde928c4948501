"""From what two sides saw to one verdict; the table is DESIGN's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.compare.ledger import Change, Ledger
from harness.compare.tensors import tensor_differences
from harness.compare.trees import ABSENT, Difference, Kind, text, tree_differences
from harness.observe.codec import canonical_bytes
from harness.observe.exceptions import ObservedException
from harness.observe.globs import matches
from harness.observe.observation import EncodedMask, Observation


class Verdict(StrEnum):
    """The outcome of one case, best first."""

    IDENTICAL = "identical"
    WITHIN_NOISE = "within_noise"
    DECLARED = "declared"
    MASKED = "masked"
    UNSUPPORTED = "unsupported"
    DRIFT = "drift"
    NOT_RUN = "not_run"
    STALE = "stale"
    BOTH_RAISE = "both_raise"
    REGRESSION = "regression"
    BROKEN = "broken"

    @property
    def fails(self) -> bool:
        """Whether a run that has this verdict fails."""
        return self in (Verdict.STALE, Verdict.BOTH_RAISE, Verdict.REGRESSION, Verdict.BROKEN)


@dataclass(frozen=True)
class Side:
    """What one side gave.

    Attributes:
        name: `old` or `new`.
        stack: the name of its stack.
        versions: distribution → version.
        ranks: one observation per rank; empty if there is a fault.
        fault: why the harness could not get an answer, in one line.
        unavailable: what the host or lane lacks for the case, in one line.
        output: the last lines the side printed.
        seconds: wall time of its case.
    """

    name: str
    stack: str
    versions: Mapping[str, str]
    ranks: Sequence[Observation] = ()
    fault: str | None = None
    unavailable: str | None = None
    output: str = ""
    seconds: float = 0.0

    @property
    def exception(self) -> ObservedException | None:
        """The exception of the lowest rank that raised one."""
        return next((rank.exception for rank in self.ranks if rank.exception), None)


@dataclass(frozen=True)
class Expectation:
    """An exception that a case declares both sides to raise: type, message (glob) and origin."""

    type: str
    message: str
    origin: str

    def meets(self, exception: ObservedException) -> bool:
        """Whether an exception is exactly the expected one."""
        return (
            exception.type == self.type and matches(self.message, exception.message) and exception.origin == self.origin
        )


@dataclass(frozen=True)
class Judged:
    """A verdict with its reasons.

    Attributes:
        why: one line for the table.
        differences: every difference, declared or not.
        undeclared: those that the ledger does not hold.
        declared_by: the ledger's changes that were met.
        stale: the ledger's changes that no longer occur.
        masked: fields that the lane forces and in which the sides differ: name, old value, new value.
    """

    verdict: Verdict
    why: str
    differences: tuple[Difference, ...] = ()
    undeclared: tuple[Difference, ...] = ()
    declared_by: tuple[Change, ...] = ()
    stale: tuple[Change, ...] = ()
    masked: tuple[Difference, ...] = field(default=())


def judge(case: str, old: Side, new: Side, ledger: Ledger, expects: Expectation | None = None) -> Judged:
    """Judge one case.

    Raises:
        ObservationError: a side's tensors cannot be read.
    """
    unavailable = old.unavailable or new.unavailable
    if unavailable and not (old.fault or new.fault):
        return Judged(Verdict.NOT_RUN, unavailable)
    broken = _broken(old) or _broken(new) or _forced_differently(old, new)
    if broken:
        return Judged(Verdict.BROKEN, broken)
    if old.exception and new.exception:
        return _both_raise(old.exception, new.exception, expects)
    changes = ledger.changes_for(case, old.versions, new.versions)
    differences = _differences(old, new)
    masked = _masked_differences(old, new)
    undeclared = [found for found in differences if not any(change.describes(found) for change in changes)]
    met = [change for change in changes if any(change.describes(found) for found in differences)]
    stale = [change for change in changes if change not in met and _could_be_seen(change, old, new)]
    judged = Judged(
        Verdict.IDENTICAL,
        "",
        differences=tuple(differences),
        undeclared=tuple(undeclared),
        declared_by=tuple(met),
        stale=tuple(stale),
        masked=tuple(masked),
    )
    verdict, why = _outcome(judged)
    return Judged(**{**judged.__dict__, "verdict": verdict, "why": why})


def _could_be_seen(change: Change, old: Side, new: Side) -> bool:
    """Where a side raised, only differences of exceptions can be seen."""
    return not (old.exception or new.exception) or change.path.startswith("exception")


def _outcome(judged: Judged) -> tuple[Verdict, str]:
    if judged.undeclared:
        more = f" (+{len(judged.undeclared) - 1} more)" if len(judged.undeclared) > 1 else ""
        return Verdict.REGRESSION, f"{judged.undeclared[0]}{more}"
    if judged.stale:
        change = judged.stale[0]
        return (Verdict.STALE, f"declared, but no longer occurs: {change.path} ({change.reason})")
    if any(change.unsupported for change in judged.declared_by):
        return Verdict.UNSUPPORTED, next(change.reason for change in judged.declared_by if change.unsupported)
    if judged.declared_by:
        more = f" (+{len(judged.declared_by) - 1} more)" if len(judged.declared_by) > 1 else ""
        return Verdict.DECLARED, f"{judged.declared_by[0].reason}{more}"
    if judged.masked:
        return Verdict.MASKED, "the lane forces " + ", ".join(str(mask) for mask in judged.masked)
    return Verdict.IDENTICAL, ""


def _broken(side: Side) -> str | None:
    if side.fault:
        return f"{side.name}: {side.fault}"
    if not side.ranks:
        return f"{side.name}: no observation came back"
    for number, rank in enumerate(side.ranks):
        if rank.exception and rank.exception.ours:
            kind = rank.exception.type.rpartition(":")[2]
            return (
                f"{side.name}: the harness itself raised {kind}: {rank.exception.message} (in {rank.exception.origin})"
            )
        if rank.missing and not side.exception:
            return f"{side.name}: no evidence on rank {number}: {'; '.join(rank.missing)}"
    return None


def _both_raise(old: ObservedException, new: ObservedException, expects: Expectation | None) -> Judged:
    differences = tuple(
        Difference(f"exception.{part}", "changed", getattr(old, part), getattr(new, part))
        for part in ("type", "message", "origin")
        if getattr(old, part) != getattr(new, part)
    )
    if expects and expects.meets(old) and expects.meets(new):
        return Judged(Verdict.UNSUPPORTED, f"both sides raise as expected: {describe(new)}", differences)
    told = "both raise" if not differences else f"new raises {describe(new)}; old"
    return Judged(Verdict.BOTH_RAISE, f"{told} {describe(old)}", differences, differences)


def describe(exception: ObservedException | None) -> str:
    """`Type: message (from module:function)`, or `(absent)`."""
    if exception is None:
        return ABSENT
    return f"{exception.type.rpartition(':')[2]}: {exception.message} (from {exception.origin})"


def _differences(old: Side, new: Side) -> list[Difference]:
    if old.exception or new.exception:
        kind: Kind = "added" if new.exception else "removed"
        return [Difference("exception", kind, describe(old.exception), describe(new.exception))]
    if len(old.ranks) != len(new.ranks):
        return [Difference("ranks", "changed", str(len(old.ranks)), str(len(new.ranks)))]
    pairs = list(zip(old.ranks, new.ranks, strict=True))
    return _merge([tree_differences(a.tree, b.tree) + tensor_differences(a, b) for a, b in pairs])


def _merge(per_rank: list[list[Difference]]) -> list[Difference]:
    """Differences that every rank has, once; the others with their rank before the path."""
    common = [found for found in per_rank[0] if all(found in rank for rank in per_rank)]
    single = [
        Difference(f"rank{number}: {found.path}", found.kind, found.old, found.new)
        for number, rank in enumerate(per_rank)
        for found in rank
        if found not in common
    ]
    return common + single


def _masks(side: Side) -> dict[str, EncodedMask]:
    return {mask.field: mask for rank in side.ranks for mask in rank.masks}


def _forced_differently(old: Side, new: Side) -> str | None:
    """A field that the lane forced to another value on each side: then it compares two different things."""
    ours, theirs = _masks(old), _masks(new)
    for name in sorted(ours.keys() & theirs.keys()):
        if canonical_bytes(ours[name].forced) != canonical_bytes(theirs[name].forced):
            return f"the lane forces {name} to {text(ours[name].forced)} on old and {text(theirs[name].forced)} on new"
    return None


def _masked_differences(old: Side, new: Side) -> list[Difference]:
    """Fields the lane forces and in which the sides' own values differ."""
    ours, theirs = _masks(old), _masks(new)
    return [
        Difference(name, "changed", text(ours[name].own), text(theirs[name].own))
        for name in sorted(ours.keys() & theirs.keys())
        if canonical_bytes(ours[name].own) != canonical_bytes(theirs[name].own)
    ]
