"""What one package takes from another in the same stack is there, and takes what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _symbols, upstream_symbols
from harness.probes.registry import consistency_probe

PRELOAD = upstream_symbols.PRELOAD


@consistency_probe(returns=("expected", "actual"))
def symbols_fit(run: Run, *, user: str = "verl") -> Mapping[str, Any]:
    """No name that a package takes from those below it is absent, and no call of one is refused.

    Args:
        user: as `upstream_symbols`.

    Returns:
        Nothing under `expected`. Under `actual`, `unresolved`: name → place that needs it → what happens there;
        `refused`: name → place → why; `replaced`: name → function put in its place → parameters that it lacks, if any.
    """
    tree = _symbols.report_on(run, user)
    lacking = {
        name: lacks
        for name, functions in tree["replaced"].items()
        if (lacks := {k: v for k, v in functions.items() if v})
    }
    nothing: dict[str, Any] = {"unresolved": {}, "refused": {}, "replaced": {}}
    return {
        "expected": nothing,
        "actual": {"unresolved": tree["unresolved"], "refused": tree["refused"], "replaced": lacking},
    }
