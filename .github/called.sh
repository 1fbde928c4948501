#!/usr/bin/env bash
# called.sh CHECKOUT: $STACK with $DISTRIBUTION from the caller's checkout, or as $PIN says, against what it was before.
set -euo pipefail
caller=$(realpath "$1")

words=(--old "$STACK" --new "$STACK" --only-new)
case $PIN in
    '') words+=(--new-pin "$DISTRIBUTION=path:$caller") ;;
    ==*) words+=(--new-pin "$DISTRIBUTION$PIN") ;;
    *) words+=(--new-pin "$DISTRIBUTION=$PIN") ;;
esac
if [ "$EVENT" = pull_request ]; then
    # The checkout is the merge of the pull request; its first parent is the branch without it.
    words+=(--old-pin "$DISTRIBUTION=git:$caller@HEAD^1")
fi
if [ -n "$CASES" ]; then
    words+=(-k "$CASES")
fi
exec python3 -m nox -s parity -- "${words[@]}"
