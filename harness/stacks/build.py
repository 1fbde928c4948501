"""From a stack to an interpreter that can run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.stacks import base as bases
from harness.stacks import overlay, python
from harness.stacks.pins import BuiltPin
from harness.stacks.resolve import resolve
from harness.stacks.settings import Settings, Stack


@dataclass(frozen=True)
class BuiltStack:
    """A stack that can run: start `python` with PYTHONPATH beginning at `overlay`.

    `key` names the overlay and changes with any pin; `base_key` changes with the base environment; `pins` are in the
    order of their names. `site`, of a bundle, holds what the interpreter lacks; it comes after the overlay.
    """

    name: str
    python: Path
    overlay: Path
    key: str
    pins: tuple[BuiltPin, ...]
    base_key: str = ""
    site: Path | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Distribution → version."""
        return {pin.distribution: pin.version for pin in self.pins}


def build(stack: Stack, settings: Settings, *, base: str | None = None, progress: Callable[[str], None]) -> BuiltStack:
    """Build what is missing of a stack, reuse the rest.

    `base` is "locked", "current", the path of an interpreter or of a requirement file (None: what the settings say);
    `progress` gets lines for a terminal. Several processes may build at once; a failed or interrupted build leaves
    nothing that a later one would reuse. Raises StackError.
    """
    # Pins first: a mistake in one is told at once, not after the minutes a base may take.
    pins = resolve(stack, settings, progress)
    environment = bases.ensure(settings, base, progress)
    key = overlay.key_of(pins, python.VERSION)
    folder = overlay.ensure(stack.name, pins, key, environment.python, settings, progress)
    return BuiltStack(stack.name, environment.python, folder, key, tuple(pin.built for pin in pins), environment.key)
