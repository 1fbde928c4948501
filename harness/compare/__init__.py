"""Compare what two sides saw: trees, tensors, the ledger, and the verdict."""

from harness.compare.ledger import Ledger, LedgerError, load_ledger
from harness.compare.trees import Difference
from harness.compare.triage import Triage, triage, triage_check
from harness.compare.verdicts import Expectation, Judged, Side, Verdict, judge, judge_stack

__all__ = [
    "Difference",
    "Expectation",
    "Judged",
    "Ledger",
    "LedgerError",
    "Side",
    "Triage",
    "Verdict",
    "judge",
    "judge_stack",
    "load_ledger",
    "triage",
    "triage_check",
]
