"""Records of a run, and the views rendered from them."""

from harness.report.as_json import json_report
from harness.report.draft import draft_ledger
from harness.report.html import html_report
from harness.report.junit import case_properties, junit_report
from harness.report.markdown import markdown_report
from harness.report.records import Records, RecordsError, latest_cases
from harness.report.run_view import RunView, read_run, summary_line
from harness.report.tables import print_regressions
from harness.report.terminal import print_run, print_summary

__all__ = [
    "Records",
    "RecordsError",
    "RunView",
    "case_properties",
    "draft_ledger",
    "html_report",
    "json_report",
    "junit_report",
    "latest_cases",
    "markdown_report",
    "print_regressions",
    "print_run",
    "print_summary",
    "read_run",
    "summary_line",
]
