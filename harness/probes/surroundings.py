"""What a stack imports besides what its pins name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.patches import imported_versions
from harness.observe.run import HarnessFault, Run
from harness.probes import _engine
from harness.probes._without import call_in_fresh_process
from harness.probes.registry import probe

PRELOAD = _engine.PRELOAD


@probe(returns=("packages.torch",))
def surroundings(run: Run) -> Mapping[str, Any]:
    """Distributions of which something is imported once verl's Megatron engine is, in a fresh process.

    Which functions another package has put in the place of a module's own is in every observation's environment.

    Returns:
        `packages`: distribution → version.
    """
    answer = call_in_fresh_process(run, PRELOAD, f"{__name__}:{imported.__name__}")
    if answer.returned is None:
        raise HarnessFault(f"the fresh process gave no answer: {answer.output.splitlines()[-1:]}")
    return {"packages": answer.returned}


def imported(_run: Run) -> dict[str, str]:
    """Version of every distribution of which this process has imported something."""
    return imported_versions()
