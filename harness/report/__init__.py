"""Records of a run, and the views rendered from them."""

from harness.report.draft import draft_ledger
from harness.report.records import Records, RecordsError, latest_cases
from harness.report.tables import print_regressions, print_save_and_load
from harness.report.terminal import print_run, print_summary, summary_line

__all__ = [
    "Records",
    "RecordsError",
    "draft_ledger",
    "latest_cases",
    "print_regressions",
    "print_run",
    "print_save_and_load",
    "print_summary",
    "summary_line",
]
