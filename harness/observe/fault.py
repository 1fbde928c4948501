"""Faults put in the place of upstream functions, to see that a check finds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from harness.observe.run import Run

Change = Callable[..., Any]
"""What stands in the place of an upstream function: it gets that function, then the arguments of the call."""


def seed_fault(
    run: Run,
    place: str,
    change: Change,
    *,
    seen_as: Callable[[inspect.Signature], inspect.Signature] | None = None,
    disguised: bool = True,
) -> None:
    """Put `change` in the place of the upstream function `module:name` or `module:Class.name`, in this rank alone.

    Args:
        seen_as: makes the signature that the replacement shows of the original's, where that is the fault.
        disguised: whether the replacement says that it comes from where the original does.

    Raises:
        MissingSymbol: the pin has no such function.
    """
    module, _, path = place.partition(":")
    owner_path, _, name = path.rpartition(".")
    owner = run.upstream(f"{module}:{owner_path}")
    original = getattr(owner, name)

    def replaced(*arguments: Any, **keywords: Any) -> Any:
        return change(original, *arguments, **keywords)

    if seen_as is not None:
        replaced.__signature__ = seen_as(inspect.signature(original))  # type: ignore[attr-defined]
    if disguised:
        replaced.__module__, replaced.__qualname__ = original.__module__, original.__qualname__
    setattr(owner, name, replaced)


def is_new(run: Run) -> bool:
    """Whether this rank is of the new side: a run's folder is `<case>/<side>/scratch`."""
    return run.folder.parent.name == "new"
