"""Which pins moved between a revision of the project and its working tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.stacks import git
from harness.stacks.errors import NothingMoved, StackError, StackUsageError
from harness.stacks.pins import Pin
from harness.stacks.settings import Settings, Stack, parse_settings


@dataclass(frozen=True)
class Move:
    """A stack whose pins moved.

    Attributes:
        old: its pins at the revision, under the name `NAME@COMMIT`.
        new: its pins now.
    """

    old: Stack
    new: Stack

    def __str__(self) -> str:
        names = sorted(self.old.pins.keys() | self.new.pins.keys())
        pairs = [(name, self.old.pins.get(name), self.new.pins.get(name)) for name in names]
        moved = [f"{name} {_told(old)} → {_told(new)}" for name, old, new in pairs if old != new]
        return f"{self.old.name} → {self.new.name}: {', '.join(moved)}"


def changed_stacks(settings: Settings, revision: str) -> list[Move]:
    """The stacks whose pins moved since a git revision of the project, the new side's first.

    Those are the stack of the new side, whether another was named or its pins moved, and every stack whose own table
    was changed. A stack that moved only because it extends one of them is not listed, nor is one that is new.

    Raises:
        StackUsageError: the revision or its pyproject.toml cannot be read.
    """
    commit, before = _settings_at(settings.root, revision)
    names = {settings.new: before.new} if settings.new in settings.stacks and before.new in before.stacks else {}
    names |= {
        name: name
        for name, table in settings.stacks.items()
        if name in before.stacks and name not in names and table != before.stacks[name]
    }
    pairs = [(before.stack(old), settings.stack(new)) for new, old in names.items()]
    return [Move(_at(old, commit), new) for old, new in pairs if old.pins != new.pins]


def changed_stack(settings: Settings, revision: str, new: str | None = None) -> Move:
    """The one stack to compare with what it was; `new` names it where several moved.

    Raises:
        NothingMoved: there is none.
        StackUsageError: as `changed_stacks`, or there are several and `new` names none of them.
    """
    moved = changed_stacks(settings, revision)
    found = [move for move in moved if new in (None, move.new.name)]
    if len(found) == 1:
        return found[0]
    if not moved:
        raise NothingMoved(nothing_moved(revision))
    if new is not None:
        raise StackUsageError(f"no pin of {new} moved since {revision}; those of {_listed(moved)} did.")
    raise StackUsageError(
        f"pins of {_listed(moved)} moved since {revision}: name one with --new, or run nox -s parity."
    )


def nothing_moved(revision: str) -> str:
    """What to say where there is nothing to compare."""
    return f"no pin in pyproject.toml moved since {revision}: nothing to compare."


def _listed(moves: Sequence[Move]) -> str:
    return ", ".join(move.new.name for move in moves)


def _settings_at(root: Path, revision: str) -> tuple[str, Settings]:
    """The commit that a revision names, and what `[tool.parity]` said there."""
    try:
        inside = git.run(root, "rev-parse", "--show-prefix")
    except StackError:
        raise StackUsageError("git is not installed; --changed-pins asks it for the pins of a revision.") from None
    if inside.returncode != 0:
        raise StackUsageError(f"{root} is not in a git repository; --changed-pins asks git for the pins of a revision.")
    repository = git.Repository(root)
    commit = None if revision.startswith("-") else repository.commit(revision)
    if commit is None:
        shallow = git.run(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
        hint = "this clone is shallow: `git fetch --unshallow`" if shallow else "`git log --oneline --all` lists them"
        raise StackUsageError(f"{root} has no revision {revision!r}; {hint}.")
    text = repository.read(commit, f"{inside.stdout.strip()}pyproject.toml")
    name = f"pyproject.toml at {revision}"
    if text is None:
        raise StackUsageError(f"there is no {name}.")
    return commit, parse_settings(text, root, name)


def _at(stack: Stack, commit: str) -> Stack:
    return Stack(f"{stack.name}@{commit[:9]}", stack.pins)


def _told(pin: Pin | None) -> str:
    return "(absent)" if pin is None else pin.requested.removeprefix(pin.distribution).lstrip("=")
