"""Which two stacks a run compares: from the options a user gave to two built stacks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.runner import Sides
from harness.stacks import BuiltStack, Settings, build, load_settings, parse_clone

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
        root: folder of the `pyproject.toml` to read; None to look upwards from the working folder.
    """

    old: str | None = None
    new: str | None = None
    pins: Sequence[str] = field(default=())
    old_pins: Sequence[str] = field(default=())
    new_pins: Sequence[str] = field(default=())
    base: str | None = None
    clones: Sequence[str] = field(default=())
    root: Path | None = None

    @property
    def options(self) -> str:
        """The options as one would type them again."""
        pairs = [("--old", self.old), ("--new", self.new), ("--base", self.base)]
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
        old = self._build_old(settings, progress)
        new = self._build(settings, self.new or settings.new, self.new_pins, progress)
        return Sides(old, new, self.options, lambda name: self._build(settings, name, (), progress))

    def build_old(self, progress: Progress) -> BuiltStack:
        """Build the old side's stack alone.

        Raises:
            StackError: as `build`.
        """
        return self._build_old(settings_with(self.clones, self.root), progress)

    def _build_old(self, settings: Settings, progress: Progress) -> BuiltStack:
        return self._build(settings, self.old or settings.old, self.old_pins, progress)

    def _build(self, settings: Settings, name: str, pins: Sequence[str], progress: Progress) -> BuiltStack:
        return build(settings.stack(name, (*self.pins, *pins)), settings, base=self.base, progress=progress)
