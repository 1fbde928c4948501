#!/usr/bin/env bash
# report.sh SESSION: every run of this job in report/, together in report/report.md, and in the step summary.
# Where no run left records (no pin moved, say), the report says so.
set -euo pipefail
parity=.nox/$1/bin/parity
most=65536 # characters of a comment or an issue
mkdir -p report
: >report/report.md

for records in .parity/runs/*/records.jsonl; do
    [ -e "$records" ] || continue
    run=$(dirname "$records")
    name=report/$(basename "$run")
    "$parity" report "$run" --format md -o "$name.md"
    "$parity" report "$run" --format html -o "$name.html"
    if [ "$(cat report/report.md "$name.md" | wc -m)" -le "$most" ]; then
        cat "$name.md" >>report/report.md
    else
        echo "Another run is in the artifact alone: $(basename "$name").md" >>report/report.md
    fi
done
[ -s report/report.md ] || echo 'No case ran: no pin moved, or the run ended before the first one.' >report/report.md
cat report/report.md >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
