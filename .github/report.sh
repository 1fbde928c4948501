#!/usr/bin/env bash
# report.sh SESSION: the latest run as report/report.md and report/report.html, and in the step summary.
# Where no run left records (no pin moved, say), the summary says so.
set -euo pipefail
parity=.nox/$1/bin/parity
mkdir -p report

if compgen -G '.parity/runs/*/records.jsonl' >/dev/null; then
    "$parity" report --format md -o report/report.md
    "$parity" report --format html -o report/report.html
else
    echo 'No case ran: no pin moved, or the run ended before the first one.' >report/report.md
fi
cat report/report.md >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
