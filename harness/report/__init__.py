"""Records of a run, and the views rendered from them."""

from harness.report.draft import draft_ledger
from harness.report.records import Records, RecordsError, latest_cases
from harness.report.terminal import print_run, print_summary, summary_line

__all__ = ["Records", "RecordsError", "draft_ledger", "latest_cases", "print_run", "print_summary", "summary_line"]
