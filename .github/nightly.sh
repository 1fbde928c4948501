#!/usr/bin/env bash
# nightly.sh [ARGS]: $STACK against itself with the main branches of verl, Megatron-Bridge and Megatron-Core.
# The status goes to the step's output; findings (1) do not fail the step, since an issue tells of them.
set -euo pipefail

status=0
python3 -m nox -s parity -- --old "$STACK" --new "$STACK" --only-new \
    --new-pin verl=git:https://github.com/verl-project/verl.git@main \
    --new-pin megatron-bridge=git:https://github.com/NVIDIA-NeMo/Megatron-Bridge.git@main \
    --new-pin megatron-core=git:https://github.com/NVIDIA/Megatron-LM.git@main "$@" || status=$?
echo "status=$status" >>"$GITHUB_OUTPUT"
[ "$status" -le 1 ]
