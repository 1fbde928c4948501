"""The same imports in another order: is every function where it was?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from harness.observe.patches import foreign_functions
from harness.observe.run import HarnessFault, Run
from harness.probes import _checkpoint, _peft
from harness.probes._without import call_in_fresh_process
from harness.probes.registry import consistency_probe

PRELOAD = (*_peft.PRELOAD, *_checkpoint.PRELOAD)


@consistency_probe(returns=("modules",))
def import_order(run: Run) -> Mapping[str, Any]:
    """Functions that another package put in the place of a module's own, in this process and in a fresh one.

    The fresh process imports verl's and Megatron-Bridge's modules in the reverse order. What ends up where must not
    depend on it.

    Returns:
        By place, who put a function there, under `expected` in this process, under `actual` in the other one; only of
        modules that both have imported. `modules`: how many those are.
    """
    answer = call_in_fresh_process(run, sorted(PRELOAD, reverse=True), f"{__name__}:{imported.__name__}")
    if answer.returned is None:
        raise HarnessFault(f"the fresh process gave no answer: {answer.output.splitlines()[-1:]}")
    here, there = imported(run), answer.returned
    both = set(here["modules"]) & set(there["modules"])
    return {
        "expected": {"modules are imported": True} | _of(both, here["patched"]),
        "actual": {"modules are imported": bool(both)} | _of(both, there["patched"]),
        "modules": len(both),
    }


def imported(_run: Run) -> dict[str, Any]:
    """Names of the imported modules, and the functions that another package put into them."""
    return {"modules": sorted(sys.modules), "patched": foreign_functions()}


def _of(modules: set[str], patched: Mapping[str, str]) -> dict[str, str]:
    return {place: home for place, home in patched.items() if place.partition(":")[0] in modules}
