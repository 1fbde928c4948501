"""Which two stacks a run compares: from the options a user gave to two built stacks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.runner import ROLES, Sides
from harness.stacks import BuiltStack, Settings, build, load_settings, parse_clone, use_bundle

Progress = Callable[[str], None]


def settings_with(clones: Sequence[str] | None, root: Path | None = None) -> Settings:
    """The settings of a project, with local clones given as `DISTRIBUTION=PATH`.

    Raises:
        StackUsageError: the settings or a clone are not well formed.
    """
    return load_settings(root).with_clones(dict(parse_clone(text) for text in clones or ()))


@dataclass(frozen=True)
class Selection:
    """The options that choose the sides, as typed.

    Attributes:
        old: name of the old side's stack, None for the one `[tool.parity]` names.
        new: the same for the new side.
        pins: overrides for both sides, e.g. `megatron-bridge==0.6.2`.
        old_pins: overrides for the old side only.
        new_pins: overrides for the new side only.
        base: `current`, a path to an interpreter, or None for the locked base.
        clones: `DISTRIBUTION=PATH`, local clones to use in place of URLs.
        bundle: folder of a bundle to take both stacks from, on a host without a network.
        root: folder of the `pyproject.toml` to read; None to look upwards from the working folder.
    """

    old: str | None = None
    new: str | None = None
    pins: Sequence[str] = field(default=())
    old_pins: Sequence[str] = field(default=())
    new_pins: Sequence[str] = field(default=())
    base: str | None = None
    clones: Sequence[str] = field(default=())
    bundle: str | None = None
    root: Path | None = None

    @property
    def options(self) -> str:
        """The options as one would type them again."""
        pairs = [("--old", self.old), ("--new", self.new), ("--base", self.base), ("--bundle", self.bundle)]
        lists = [
            ("--pin", self.pins),
            ("--old-pin", self.old_pins),
            ("--new-pin", self.new_pins),
            ("--clone", self.clones),
        ]
        words = [word for name, value in pairs if value for word in (name, value)]
        words += [word for name, values in lists for value in values for word in (name, value)]
        return shlex.join(words)

    def build(self, progress: Progress) -> Sides:
        """Build both stacks.

        Raises:
            StackError: one cannot be built; its exit code says whether the options or the environment are at fault.
        """
        settings = settings_with(self.clones, self.root)
        old, new = (self._build(role, settings, progress) for role in ROLES)
        alone = {role: self.alone(role, settings) for role in ROLES}
        return Sides(old, new, self.options, lambda name: self._build_named(name, (), settings, progress), alone)

    def alone(self, role: str, settings: Settings) -> str:
        """The stack of one side, `old` or `new`, as one would type it after `parity check-stack`."""
        name, pins = self._of(role, settings)
        lists = [("--pin", pins), ("--base", [self.base] if self.base else []), ("--clone", self.clones)]
        return shlex.join([name, *(word for option, values in lists for value in values for word in (option, value))])

    def roles(self) -> tuple[str, ...]:
        """The sides whose stacks differ: `old` and `new`, or `new` alone where both have the same pins.

        Raises:
            StackUsageError: a stack or an override is not well formed.
        """
        settings = settings_with(self.clones, self.root)
        old, new = (settings.stack(name, pins).pins for name, pins in (self._of(role, settings) for role in ROLES))
        return ("new",) if old == new else ROLES

    def build_old(self, progress: Progress) -> BuiltStack:
        """Build the old side's stack alone.

        Raises:
            StackError: as `build`.
        """
        return self._build("old", settings_with(self.clones, self.root), progress)

    def _of(self, role: str, settings: Settings) -> tuple[str, tuple[str, ...]]:
        """Name and overrides of the stack of one side."""
        if role == "old":
            return self.old or settings.old, (*self.pins, *self.old_pins)
        return self.new or settings.new, (*self.pins, *self.new_pins)

    def _build(self, role: str, settings: Settings, progress: Progress) -> BuiltStack:
        name, pins = self._of(role, settings)
        return self._build_named(name, pins, settings, progress)

    def _build_named(self, name: str, pins: Sequence[str], settings: Settings, progress: Progress) -> BuiltStack:
        stack = settings.stack(name, pins)
        if self.bundle is not None:
            return use_bundle(Path(self.bundle), stack, settings, base=self.base, progress=progress)
        return build(stack, settings, base=self.base, progress=progress)
