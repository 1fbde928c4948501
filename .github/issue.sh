#!/usr/bin/env bash
# issue.sh STATUS REPORT: one open issue with the label `nightly` holds the latest report; it is opened by the first night
# that finds something, kept up to date, and closed by a night that finds nothing.
set -euo pipefail
status=$1 report=$2

found=$(gh issue list --label nightly --state open --limit 1 --json number --jq '.[].number')
if [ "$status" = 0 ]; then
    if [ -n "$found" ]; then
        gh issue close "$found" --comment 'Nothing new tonight.'
    fi
elif [ -n "$found" ]; then
    gh issue edit "$found" --body-file "$report"
else
    gh label create nightly --force --description 'The nightly run against the main branches'
    gh issue create --title 'Nightly: main branches differ from the pins' --label nightly --body-file "$report"
fi
