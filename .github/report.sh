#!/usr/bin/env bash
# report.sh SESSION: every run of this job in .parity/report/, together in its report.md, and in the step summary.
# A run's report is cut to what a comment shows; a further one that has no room there is in the artifact. Where no run left
# records (no pin moved, say), the report says so.
set -euo pipefail
parity=.nox/$1/bin/parity
most=65536 # characters of a comment or an issue
out=.parity/report
mkdir -p "$out"
: >"$out/report.md"

for records in .parity/runs/*/records.jsonl; do
    [ -e "$records" ] || continue
    run=$(dirname "$records")
    name=$out/$(basename "$run")
    if "$parity" report "$run" --format md -o "$name.md" --fit comment 2>"$name.txt"; then
        "$parity" report "$run" --format html -o "$name.html"
    else
        cp "$name.txt" "$name.md" # it says why: no environment, no case
    fi
    if [ "$(cat "$out/report.md" "$name.md" | wc -m)" -le "$most" ]; then
        cat "$name.md" >>"$out/report.md"
    else
        echo "Another run is in the artifact alone: $(basename "$name").md" >>"$out/report.md"
    fi
done
[ -s "$out/report.md" ] || echo 'No case ran: no pin moved, or the run ended before the first one.' >"$out/report.md"
cat "$out/report.md" >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
