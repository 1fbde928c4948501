"""Around the imports of a stack, thousands of modules."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from harness.observe.run import Lane


@contextmanager
def importing(lane: Lane) -> Iterator[None]:
    """What the lane watches; and no collection of garbage, which takes a sixth of the time and finds next to none."""
    gc.disable()
    try:
        with lane.importing():
            yield
    finally:
        gc.enable()
