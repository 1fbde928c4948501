"""The names that one package takes from another: does each exist, and does it still take what it is given?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _symbols
from harness.probes.registry import probe

PRELOAD = ("megatron.bridge", "megatron.core")


@probe(returns=("names", "unresolved", "refused", "undecided", "replaced", "foreign", "absent"))
def upstream_symbols(run: Run, *, user: str = "verl") -> Mapping[str, Any]:
    """Every name that a package's source takes from those below it, functions' own imports among them.

    The source is read, not run: each name is then looked up in this stack, and each call of one held against the
    signature it has here. Methods of objects are seen where a name leads to them (`Class.method`, `super().method`); a
    method of what some function returned is not.

    Args:
        user: `verl`, `mbridge` or `megatron.bridge`.

    Returns:
        names: name → what it `is` here (`function`, `class`, `module` or the type of a value), `private` (a part begins
            with an underscore), and `calls`: the worst of `refused`, `undecided` and `accepted`, or `none`.
        unresolved: name that is not here → `why`, and for each place that needs it what happens there.
        refused: name → place → why a call cannot be bound.
        undecided: name → place → why nothing can be said of a call (what it unpacks, no signature).
        replaced: name → function that is put in its place → parameters that it lacks.
        foreign: name → where it is really defined, where that is in another package.
        absent: packages that the stack does not have, whose names are not looked up.
    """
    return _symbols.report_on(run, user)
