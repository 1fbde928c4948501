"""Which two stacks a run compares: from the options a user gave to two built stacks, or one and the other's goldens."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from harness.golden_side import GoldenSide
from harness.goldens import GoldenStore
from harness.runner import ROLES, Sides
from harness.schedule import LaneChoice
from harness.stacks import (
    Builder,
    BuiltStack,
    Move,
    Settings,
    Stack,
    StackUsageError,
    changed_stack,
    load_settings,
    parse_clone,
)

Progress = Callable[[str], None]


def settings_with(clones: Sequence[str] | None, root: Path | None = None) -> Settings:
    """The settings of a project, with local clones given as `DISTRIBUTION=PATH`.

    Raises:
        StackUsageError: the settings or a clone are not well formed.
    """
    return load_settings(root).with_clones(dict(parse_clone(text) for text in clones or ()))


def goldens_of(stack: str, settings: Settings, lane: LaneChoice) -> GoldenStore:
    """Where the goldens of a stack are: in the lane's folder for the `old` of `[tool.parity]`, below it for others."""
    folder = settings.root / "golden" / lane.golden_folder
    name = stack.partition("@")[0]  # the same stack at an earlier revision of the project
    return GoldenStore(folder if name == settings.old else folder / name)


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
        golden_only: the old side's goldens stand in for it, even if it could run.
        changed_pins: a git revision of the project; old is what the stack that moved since was there, new what it is.
        lane: whose goldens those are.
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
    golden_only: bool = False
    changed_pins: str | None = None
    lane: LaneChoice = field(default=LaneChoice())
    root: Path | None = None

    @property
    def options(self) -> str:
        """The options as one would type them again."""
        pairs = [("--old", self.old), ("--new", self.new), ("--base", self.base), ("--bundle", self.bundle)]
        pairs.append(("--changed-pins", self.changed_pins))
        lists = [
            ("--pin", self.pins),
            ("--old-pin", self.old_pins),
            ("--new-pin", self.new_pins),
            ("--clone", self.clones),
        ]
        words = [word for name, value in pairs if value for word in (name, value)]
        words += [word for name, values in lists for value in values for word in (name, value)]
        words += ["--golden-only"] if self.golden_only else []
        return shlex.join(words)

    @property
    def goldens(self) -> GoldenStore:
        """The goldens of the old side's stack.

        Raises:
            StackUsageError: the settings are not well formed.
        """
        settings = self._settings
        return goldens_of(self._of("old", settings)[0], settings, self.lane)

    @cached_property
    def _settings(self) -> Settings:
        settings = settings_with(self.clones, self.root)
        return settings.with_stack(self._move.old) if self._move else settings

    @cached_property
    def _move(self) -> Move | None:
        """The stack that moved since `changed_pins`."""
        if self.changed_pins is None:
            return None
        if self.old is not None:
            raise StackUsageError(f"--changed-pins says what the old side is; leave out --old {self.old}.")
        return changed_stack(settings_with(self.clones, self.root), self.changed_pins, self.new)

    def build(self, progress: Progress) -> Sides:
        """Build both stacks, or the new one alone where the old one's goldens stand in for it.

        They do where asked to, and where the old side has a git pin that only the network could give.

        Raises:
            GoldenError: a golden is damaged.
            StackError: one cannot be built; its exit code says whether the options or the environment are at fault.
        """
        settings = self._settings
        # The new side first, because what it fetches may be what the old side lacks.
        new = self._build("new", settings, progress)
        old = self._golden_side(self._stack("old", settings), settings) or self._build("old", settings, progress)
        alone = {role: self.alone(role, settings) for role in ROLES}
        return Sides(old, new, self.options, lambda name: self._build_named(name, (), settings, progress), alone)

    def alone(self, role: str, settings: Settings) -> str:
        """The stack of one side, `old` or `new`, as one would type it after `parity check-stack`."""
        name, pins = self._of(role, settings)
        if role == "old" and self._move is not None:  # a revision's stack has no name that could be typed
            now = self._move.new
            moved = [pin.requested for key, pin in self._move.old.pins.items() if now.pins.get(key) != pin]
            name, pins = now.name, (*moved, *pins)
        lists = [("--pin", pins), ("--base", [self.base] if self.base else []), ("--clone", self.clones)]
        return shlex.join([name, *(word for option, values in lists for value in values for word in (option, value))])

    def roles(self) -> tuple[str, ...]:
        """The sides whose stacks differ and can run: `old` and `new`, or `new` alone.

        Raises:
            StackUsageError: a stack or an override is not well formed.
        """
        settings = self._settings
        old, new = (self._stack(role, settings) for role in ROLES)
        return ("new",) if old.pins == new.pins or self._golden_side(old, settings) else ROLES

    def is_one_of(self, role: str, names: Sequence[str]) -> bool:
        """Whether the stack of a side has the pins of one of the named stacks.

        Raises:
            StackUsageError: a stack or an override is not well formed.
        """
        settings = self._settings
        name, pins = self._of(role, settings)
        mine = settings.stack(name, pins).pins
        return any(settings.stack(other).pins == mine for other in names)

    def build_old(self, progress: Progress) -> BuiltStack:
        """Build the old side's stack alone.

        Raises:
            StackError: as `build`.
        """
        return self._build("old", self._settings, progress)

    def _of(self, role: str, settings: Settings) -> tuple[str, tuple[str, ...]]:
        """Name and overrides of the stack of one side."""
        moved = self._move
        if role == "old":
            return moved.old.name if moved else self.old or settings.old, (*self.pins, *self.old_pins)
        return moved.new.name if moved else self.new or settings.new, (*self.pins, *self.new_pins)

    def _stack(self, role: str, settings: Settings) -> Stack:
        return settings.stack(*self._of(role, settings))

    def _golden_side(self, stack: Stack, settings: Settings) -> GoldenSide | None:
        store = goldens_of(stack.name, settings, self.lane)
        if self.golden_only:
            return GoldenSide(stack, store, "run without --golden-only")
        if self.bundle is not None:
            return None
        absent = settings.not_at_hand(stack)
        clones = " ".join(f"--clone {pin.distribution}=PATH" for pin in absent)
        side = GoldenSide(stack, store, f"name a clone: {clones}")
        return side if absent and side.versions else None

    def _build(self, role: str, settings: Settings, progress: Progress) -> BuiltStack:
        name, pins = self._of(role, settings)
        return self._build_named(name, pins, settings, progress)

    def _build_named(self, name: str, pins: Sequence[str], settings: Settings, progress: Progress) -> BuiltStack:
        stack = settings.stack(name, pins)
        return Builder(settings, self.base, Path(self.bundle) if self.bundle else None, progress)(stack)
