"""From what two sides saw to one verdict; the table is DESIGN's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.compare.across import unequal_differences, unplaced, whole
from harness.compare.circumstances import (
    PROVENANCE,
    comparable,
    forced_differently,
    masked_differences,
    moved,
    sources,
)
from harness.compare.divergence import Divergence, first_divergence
from harness.compare.ledger import CLASSES, Change, Ledger
from harness.compare.tensors import TensorVerdict, compare_arrays, compare_tensors
from harness.compare.trees import ABSENT, Difference, Kind, tree_differences
from harness.observe.exceptions import ObservedException
from harness.observe.globs import matches
from harness.observe.observation import Observation
from harness.observe.trace import Step


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


_PEER_LEFT = re.compile("Connection (closed|reset) by peer|remote process exited")


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
        repeats: further runs of the same case on this side (A/A), each one observation per rank.
        perturbed: the same with the case's inputs moved by one unit in the last place (see `harness.compare.noise`).
        layout: name of the layout it ran in.
        reads: the run whose files it read, if it read any.
    """

    name: str
    stack: str
    versions: Mapping[str, str]
    ranks: Sequence[Observation] = ()
    fault: str | None = None
    unavailable: str | None = None
    output: str = ""
    seconds: float = 0.0
    repeats: Sequence[Sequence[Observation]] = ()
    perturbed: Sequence[Sequence[Observation]] = ()
    layout: str = "single"
    reads: Side | None = None

    @property
    def exception(self) -> ObservedException | None:
        """The exception of the lowest rank that raised one; upstream's before the harness's own.

        A rank that waits for one that raised fails in turn, wherever it stands: that says nothing, and what names the
        lost connection comes last.
        """
        raised = [rank.exception for rank in self.ranks if rank.exception]
        return min(raised, key=lambda found: (bool(_PEER_LEFT.search(found.message)), found.ours), default=None)


@dataclass(frozen=True)
class Expectation:
    """An exception that a case declares both sides to raise: type, message (glob) and origin."""

    type: str
    message: str
    origin: str

    @property
    def described(self) -> str:
        """Glob over what `describe` tells of the exception."""
        return f"{self.type.rpartition(':')[2]}: {self.message} (from {self.origin})"

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
        noise: differences of tensors that the measured noise floor allows; not among `differences`.
        tensors: per rank, every tensor that is not bitwise equal, with its statistics, floor and bounds.
        drift: how the old side differs from its golden.
        divergence: where tensors that differ undeclared part, if the probe traced its modules.
    """

    verdict: Verdict
    why: str
    differences: tuple[Difference, ...] = ()
    undeclared: tuple[Difference, ...] = ()
    declared_by: tuple[Change, ...] = ()
    stale: tuple[Change, ...] = ()
    masked: tuple[Difference, ...] = field(default=())
    noise: tuple[Difference, ...] = ()
    tensors: tuple[tuple[TensorVerdict, ...], ...] = ()
    drift: tuple[Difference, ...] = ()
    divergence: Divergence | None = None


def judge(case: str, old: Side, new: Side, ledger: Ledger, expects: Expectation | None = None) -> Judged:
    """Judge one case.

    Raises:
        ObservationError: a side's tensors cannot be read.
    """
    return _judge(old, new, ledger.changes_for(case, old.versions, new.versions), expects)


def judge_stack(case: str, expected: Side, actual: Side, ledger: Ledger) -> Judged:
    """Judge a check of one stack: what it expects, in the place of the old side, against what is there.

    Raises:
        ObservationError: tensors cannot be read.
    """
    return _judge(expected, actual, ledger.violations_for(case, actual.versions))


def _judge(old: Side, new: Side, changes: Sequence[Change], expects: Expectation | None = None) -> Judged:
    if old.unavailable and new.unavailable and not (old.fault or new.fault):
        return Judged(Verdict.NOT_RUN, new.unavailable)
    broken = broken_of(old) or broken_of(new) or forced_differently(old.ranks, new.ranks)
    if broken:
        return Judged(Verdict.BROKEN, broken)
    if old.unavailable or new.unavailable:
        kind: Kind = "added" if new.unavailable else "removed"
        lacks = Difference("unavailable", kind, old.unavailable or ABSENT, new.unavailable or ABSENT)
        return outcome_of([lacks], [change for change in changes if change.path == lacks.path])
    if expects and not (old.exception or new.exception):
        return Judged(Verdict.STALE, f"neither side raises {expects.type.rpartition(':')[2]}: {expects.message}")
    if old.exception and new.exception:
        expected = bool(expects and expects.meets(old.exception) and expects.meets(new.exception))
        return both_raise(describe(old.exception), describe(new.exception), expected, changes)
    if old.layout != new.layout and not (old.exception or new.exception):
        unknown = unplaced(old.ranks) or unplaced(new.ranks)
        if unknown:
            return Judged(Verdict.BROKEN, unknown)
        differences, tensors = _across_layouts(old, new)
    else:
        tensors = _tensors(old, new)
        differences = _differences(old, new, tensors)
    raised = bool(old.exception or new.exception)
    judged = outcome_of(
        differences,
        [change for change in changes if could_be_seen(change, *sources(old.ranks, new.ranks), raised)],
        masked=masked_differences(old.ranks, new.ranks),
        noise=_noise(tensors),
        moved=moved(old.ranks, new.ranks, one_layout=old.layout == new.layout),
        tensors=tensors,
    )
    return _with_divergence(judged, old, new)


def outcome_of(
    differences: Sequence[Difference],
    changes: Sequence[Change],
    *,
    masked: Sequence[Difference] = (),
    noise: Sequence[Difference] = (),
    moved: Sequence[Difference] = (),
    tensors: Sequence[Sequence[TensorVerdict]] = (),
) -> Judged:
    """The verdict on differences, given the changes that the ledger declares and that could be seen.

    Args:
        moved: hooks and functions that come from another module (`provenance.…`). Declared, they do not keep a case
            from being identical: what came out is; undeclared, they are a regression.
    """
    found = [*differences, *moved]
    met = [change for change in changes if any(change.describes(item) for item in [*found, *noise])]
    judged = Judged(
        Verdict.IDENTICAL,
        "",
        differences=tuple(found),
        undeclared=tuple(item for item in found if not any(change.describes(item) for change in changes)),
        declared_by=tuple(met),
        stale=tuple(change for change in changes if change not in met),
        masked=tuple(masked),
        noise=tuple(noise),
        tensors=tuple(tuple(tensor for tensor in rank if tensor.kind != "identical") for rank in tensors),
    )
    verdict, why = _outcome(judged)
    return replace(judged, verdict=verdict, why=why)


def _with_divergence(judged: Judged, old: Side, new: Side) -> Judged:
    """A verdict on tensors that differ undeclared, with the first module in which they do."""
    if old.layout != new.layout:
        return judged
    names = {tensor.name for rank in judged.tensors for tensor in rank if tensor.kind == "different"}
    if not any(found.path.rpartition(": ")[2] in names for found in judged.undeclared):
        return judged
    again = ([_traces(run) for run in runs] for runs in (old.repeats, old.perturbed))
    found = first_divergence(_traces(old.ranks), _traces(new.ranks), *again)
    return replace(judged, why=f"{judged.why}; {found.why}", divergence=found) if found.why else judged


def _traces(ranks: Sequence[Observation]) -> list[Sequence[Step]]:
    return [rank.trace for rank in ranks]


def could_be_seen(change: Change, ours: Mapping[str, str], theirs: Mapping[str, str], raised: bool) -> bool:
    """Where a side raised, only exceptions can be seen; where a hook plays no part, not where it comes from."""
    if change.path.startswith(PROVENANCE):
        names = {name for side in comparable(ours, theirs, raised) for name in side}
        return any(matches(change.path, f"{PROVENANCE}{name}") for name in names)
    return not raised or change.path.startswith("exception")


def _outcome(judged: Judged) -> tuple[Verdict, str]:
    if judged.undeclared:
        return Verdict.REGRESSION, _first(judged.undeclared)
    if judged.stale:
        change = judged.stale[0]
        return Verdict.STALE, f"declared, but no longer occurs: {change.path} ({change.reason})"
    declared = [change for change in judged.declared_by if not change.path.startswith(PROVENANCE)]
    if any(change.unsupported for change in declared):
        return Verdict.UNSUPPORTED, next(change.reason for change in declared if change.unsupported)
    if declared:
        return Verdict.DECLARED, _first([change.reason for change in sorted(declared, key=_rank_of_class)])
    if judged.masked:
        return Verdict.MASKED, "the lane forces " + ", ".join(str(mask) for mask in judged.masked)
    if judged.noise:
        return Verdict.WITHIN_NOISE, _first(judged.noise)
    return Verdict.IDENTICAL, ""


def _rank_of_class(change: Change) -> int:
    return CLASSES.index(change.class_)


def _first(items: Sequence[object]) -> str:
    """The first of some, and how many more there are."""
    return f"{items[0]} (+{len(items) - 1} more)" if len(items) > 1 else f"{items[0]}"


def broken_of(side: Side) -> str | None:
    """Why a side gave nothing that can be judged, None if it did."""
    if side.fault:
        return f"{side.name}: {side.fault}"
    if not side.ranks and not side.unavailable:
        return f"{side.name}: no observation came back"
    if side.exception and side.exception.ours:
        kind, where = side.exception.type.rpartition(":")[2], side.exception.origin
        return f"{side.name}: the harness itself raised {kind}: {side.exception.message} (in {where})"
    for number, rank in enumerate(side.ranks):
        if rank.missing and not side.exception:
            return f"{side.name}: no evidence on rank {number}: {'; '.join(rank.missing)}"
    return None


def both_raise(old: str, new: str, expected: bool, changes: Sequence[Change]) -> Judged:
    """The verdict where both sides raise.

    Args:
        old: the old side's exception, as `describe` tells it; `new` likewise.
        expected: whether the case expects exactly these.
    """
    raised = Difference("exception", "changed", old, new)
    declared = tuple(change for change in changes if change.unsupported and change.describes(raised))
    if declared:
        return Judged(Verdict.UNSUPPORTED, declared[0].reason, (raised,), declared_by=declared)
    if expected:
        return Judged(Verdict.UNSUPPORTED, f"both sides raise as expected: {new}", (raised,))
    why = f"both raise {old}" if old == new else f"old raises {old}, new raises {new}"
    return Judged(Verdict.BOTH_RAISE, why, (raised,), (raised,))


def describe(exception: ObservedException | None) -> str:
    """`Type: message (from module:function)`, or `(absent)`."""
    if exception is None:
        return ABSENT
    return f"{exception.type.rpartition(':')[2]}: {exception.message} (from {exception.origin})"


def _tensors(old: Side, new: Side) -> list[list[TensorVerdict]]:
    """Per rank, the verdict of every tensor; nothing where a side raised or has another number of ranks."""
    if old.exception or new.exception or len(old.ranks) != len(new.ranks):
        return []
    return [
        compare_tensors(
            ours,
            theirs,
            [run[number] for run in old.repeats if number < len(run)],
            [run[number] for run in old.perturbed if number < len(run)],
        )
        for number, (ours, theirs) in enumerate(zip(old.ranks, new.ranks, strict=True))
    ]


def _across_layouts(old: Side, new: Side) -> tuple[list[Difference], list[list[TensorVerdict]]]:
    """Differences, and the verdict of every tensor, of two layouts: each side's ranks are put together first."""
    ours, theirs = whole(old.ranks), whole(new.ranks)
    unequal = ours.unequal.keys() | theirs.unequal.keys()
    tensors = [
        tensor
        for tensor in compare_arrays(
            ours.arrays,
            theirs.arrays,
            [whole(run).arrays for run in old.repeats],
            [whole(run).arrays for run in old.perturbed],
            few_ulp=False,
        )
        if tensor.name not in unequal
    ]
    plain = [{path: value for path, value in side.plain.items() if path not in unequal} for side in (ours, theirs)]
    found = [difference for tensor in tensors if tensor.kind == "different" and (difference := tensor.difference)]
    return [*unequal_differences(ours, theirs), *tree_differences(*plain), *found], [tensors]


def _noise(tensors: list[list[TensorVerdict]]) -> list[Difference]:
    return merge_ranks(
        [
            [found for tensor in rank if tensor.kind == "within_noise" and (found := tensor.difference)]
            for rank in tensors
        ]
    )


def _differences(old: Side, new: Side, tensors: list[list[TensorVerdict]]) -> list[Difference]:
    if old.exception or new.exception:
        kind: Kind = "added" if new.exception else "removed"
        return [Difference("exception", kind, describe(old.exception), describe(new.exception))]
    if len(old.ranks) != len(new.ranks):
        return [Difference("ranks", "changed", str(len(old.ranks)), str(len(new.ranks)))]
    return merge_ranks(
        [
            _of_trees(ours, theirs)
            + [found for tensor in rank if tensor.kind == "different" and (found := tensor.difference)]
            for ours, theirs, rank in zip(old.ranks, new.ranks, tensors, strict=True)
        ]
    )


def _of_trees(old: Observation, new: Observation) -> list[Difference]:
    """Differences of the trees, but for tensors that one side lacks, which the tensors' own comparison tells."""
    names = {f"tensor {name}" for name in {*old.tensors, *new.tensors}}
    found = tree_differences(old.tree, new.tree)
    return [difference for difference in found if not {difference.old, difference.new} & names]


def merge_ranks(per_rank: list[list[Difference]]) -> list[Difference]:
    """Differences that every rank has, once; the others with their rank before the path."""
    common = [found for found in per_rank[0] if all(found in rank for rank in per_rank)] if per_rank else []
    single = [
        Difference(f"rank{number}: {found.path}", found.kind, found.old, found.new)
        for number, rank in enumerate(per_rank)
        for found in rank
        if found not in common
    ]
    return common + single
