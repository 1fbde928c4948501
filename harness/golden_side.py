"""An old side that does not run: the goldens of its stack stand in for it (`old = golden`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.compare import Difference, Expectation, Judged, Ledger, Side, Verdict
from harness.compare.circumstances import hooks, moved_hooks
from harness.compare.ledger import Change
from harness.compare.trees import tree_differences
from harness.compare.verdicts import both_raise, broken_of, could_be_seen, describe, merge_ranks, outcome_of
from harness.goldens import UNRAISED, Golden, GoldenStore, observed_differences
from harness.observe import Observation
from harness.observe.codec import canonical_bytes
from harness.observe.globs import matches
from harness.stacks import GitPin, ReleasePin, Stack

_MARK = "[old = golden]"
_PUT_IN = ("stand_in ", "set_by_hand ")
"""What the harness put in is no part of a golden."""


@dataclass(frozen=True)
class GoldenSide:
    """The goldens of a stack in the place of its runs.

    Attributes:
        stack: the stack with the pins that were asked for; a golden of other pins says nothing of it.
        store: where its goldens are.
        why: why it does not run, and what to type so that it does, in one line.
    """

    stack: Stack
    store: GoldenStore
    why: str

    @property
    def name(self) -> str:
        """The stack's name."""
        return self.stack.name

    @property
    def versions(self) -> Mapping[str, str]:
        """Distribution → version, as the goldens of these pins have them; empty if there are none."""
        return next((golden.versions for golden in self.store.all().values() if self.other_pins(golden) is None), {})

    def other_pins(self, golden: Golden) -> str | None:
        """In which pin a golden's stack is another than the one asked for: `verl 0.7.1 instead of 0.8.0`."""
        recorded, wanted = dict(golden.versions), dict.fromkeys(golden.versions, "none")
        for name, pin in self.stack.pins.items():
            # A tree as it lies on a disk has no name that would say what it was; its version has to do.
            wanted[name] = recorded.get(name, "any")
            if isinstance(pin, GitPin):
                recorded[name] = golden.provenance.get("revisions", {}).get(name, "none")
                wanted[name] = pin.revision
            elif isinstance(pin, ReleasePin):
                wanted[name] = pin.version
        moved = [name for name in sorted(wanted) if recorded.get(name) != wanted[name]]
        return f"{moved[0]} {recorded.get(moved[0], 'none')} instead of {wanted[moved[0]]}" if moved else None

    def judge(
        self, case: str, golden: Golden | None, new: Side, ledger: Ledger, expects: Expectation | None = None
    ) -> Judged:
        """Judge the new side of a case against its golden.

        Raises:
            ObservationError: the side's tensors cannot be read.
        """
        if new.unavailable and not new.fault:
            return Judged(Verdict.NOT_RUN, new.unavailable)
        broken = broken_of(new)
        if broken:
            return Judged(Verdict.BROKEN, broken)
        if golden is None:
            return Judged(Verdict.NOT_RUN, f"{self.name} has no golden of this case, and does not run: {self.why}")
        other = self.other_pins(golden)
        if other:
            return Judged(Verdict.NOT_RUN, f"the golden of {self.name} is of {other}; record it again: {self.why}")
        judged = _judged(golden, new, ledger.changes_for(case, golden.versions, new.versions), expects)
        return replace(judged, why=f"{_MARK} {judged.why}".strip())


def _judged(golden: Golden, new: Side, changes: Sequence[Change], expects: Expectation | None) -> Judged:
    old_raised = next((rank.exception for rank in golden.ranks if rank.exception != UNRAISED), None)
    if old_raised is not None and new.exception is not None:
        expected = bool(expects and expects.meets(new.exception) and matches(expects.described, old_raised))
        return both_raise(old_raised, describe(new.exception), expected, changes)
    raised = old_raised is not None or new.exception is not None
    if expects and not raised:
        return Judged(Verdict.STALE, f"neither side raises {expects.described}")
    ours, theirs = golden.hooks or {}, hooks(new.ranks) if golden.hooks is not None else {}
    return outcome_of(
        observed_differences(golden, new.ranks),
        [
            change
            for change in changes
            if could_be_seen(change, ours, theirs, raised) and not change.path.startswith(_PUT_IN)
        ],
        masked=[] if raised else _masked(golden, new.ranks),
        moved=moved_hooks(ours, theirs, raised),
    )


def _masked(golden: Golden, ranks: Sequence[Observation]) -> list[Difference]:
    """Fields the lane forces and in which the sides differ, or that the new side alone has and had otherwise."""
    if len(golden.ranks) != len(ranks):
        return []
    pairs = zip(golden.ranks, ranks, strict=True)
    return merge_ranks([tree_differences(dict(kept.masks), _own(rank, kept.masks)) for kept, rank in pairs])


def _own(rank: Observation, known: Mapping[str, object]) -> dict[str, object]:
    return {
        mask.field: mask.own
        for mask in rank.masks
        if mask.field in known or canonical_bytes(mask.own) != canonical_bytes(mask.forced)
    }
