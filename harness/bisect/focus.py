"""What a bisection looks for: one difference between its two ends, and whether a candidate shows exactly that one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bisect.search import Answer
from harness.compare import Judged, Verdict
from harness.compare.trees import Difference
from harness.observe.globs import matches

_NO_ANSWER = (Verdict.BROKEN, Verdict.NOT_RUN)
_EXCEPTION = "exception"
UNAVAILABLE = "unavailable"
"""Path of the difference that one side lacks what the case needs: it says nothing about any other."""


class NoDifferenceError(ValueError):
    """The ends of a bisection do not differ in what it was asked to look for."""


@dataclass(frozen=True)
class Focus:
    """The difference whose origin is sought.

    Attributes:
        difference: as the comparison of the good end with the bad one tells it.
        numeric: it is a tensor's, of which the amount may change on the way; elsewhere the new value must be the same.
        others: how many more differences the two ends have.
    """

    difference: Difference
    numeric: bool = False
    others: int = 0

    def answer(self, judged: Judged) -> tuple[Answer, str]:
        """What a candidate says, compared with the good end, and why."""
        if judged.verdict in _NO_ANSWER:
            return Answer.SKIP, judged.why
        lacking = next((item for item in judged.differences if item.path == UNAVAILABLE), None)
        if lacking:
            return Answer.SKIP, lacking.new
        found = next((item for item in judged.differences if item.path == self.difference.path), None)
        raised = next((item for item in judged.differences if item.path == _EXCEPTION and item.old != item.new), None)
        if raised and self.difference.path != _EXCEPTION:
            return Answer.OTHER, f"raises {raised.new}"
        if found is None or found.old == found.new:
            return Answer.GOOD, ""
        if self.numeric or found.new == self.difference.new:
            return Answer.BAD, f"{found}"
        return Answer.OTHER, f"neither: {found}"


def choose(judged: Judged, wanted: str | None = None) -> Focus:
    """The difference to look for: the first one that fits `wanted` (a glob), undeclared ones first.

    Raises:
        NoDifferenceError: the ends can't be compared, or do not differ there; the message lists what does differ.
    """
    if judged.verdict in _NO_ANSWER:
        raise NoDifferenceError(judged.why)
    found = [*judged.undeclared, *(item for item in judged.differences if item not in judged.undeclared)]
    differing = [item for item in found if item.old != item.new]
    fitting = [item for item in differing if wanted is None or matches(wanted, item.path)]
    if not fitting:
        raise NoDifferenceError(f"good and bad do not differ{f' in {wanted!r}' if wanted else ''}{_listed(differing)}")
    tensors = {tensor.name for rank in judged.tensors for tensor in rank}
    first = fitting[0]
    return Focus(first, first.path.rpartition(": ")[2] in tensors, len(differing) - 1)


def _listed(differing: Sequence[Difference]) -> str:
    raised = next((item for item in differing if item.path == _EXCEPTION), None)
    if raised:
        return f"; they differ in what they raise: {raised.old} → {raised.new}"
    return f"; they differ in {', '.join(item.path for item in differing[:5])}" if differing else ""
