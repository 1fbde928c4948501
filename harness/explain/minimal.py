"""The smallest set of changes that makes a difference: delta debugging, with changes that can't run on their own.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise


class Shows(StrEnum):
    """What a set of changes, applied to the old side, came to."""

    YES = "yes"
    NO = "no"
    CANNOT_RUN = "cannot run"


@dataclass
class Minimal[T]:
    """Finds a minimal set among changes that make the difference together.

    Attributes:
        shows: applies a set of changes to the old side; called once for each set.
        tried: every set that was tried, in order, with what it came to.
    """

    shows: Callable[[frozenset[T]], Shows]
    tried: dict[frozenset[T], Shows] = field(default_factory=dict)

    def find(self, changes: Sequence[T]) -> frozenset[T]:
        """A set of which no change can be left out: without any one, the difference is gone (or it can't run).

        Every change is tried alone first, so that each that suffices alone is among `alone` afterwards.

        Raises:
            ValueError: all changes together do not make the difference.
        """
        everything = frozenset(changes)
        if self.try_(everything) is not Shows.YES:
            raise ValueError(f"all changes together: {self.tried[everything]}")
        for change in changes:
            self.try_(frozenset({change}))
        return self.alone(changes) or self._reduced(list(changes))

    def alone(self, changes: Iterable[T]) -> frozenset[T]:
        """The first change that makes the difference alone, as a set; empty if none does."""
        found = [change for change in changes if self.tried.get(frozenset({change})) is Shows.YES]
        return frozenset(found[:1])

    def try_(self, changes: frozenset[T]) -> Shows:
        """What a set came to, tried now if it was not before. No change at all makes no difference."""
        if not changes:
            return Shows.NO
        if changes not in self.tried:
            self.tried[changes] = self.shows(changes)
        return self.tried[changes]

    def _reduced(self, changes: list[T]) -> frozenset[T]:
        parts = 2
        while len(changes) > 1:
            pieces = _split(changes, parts)
            smaller = self._smaller(changes, pieces)
            if smaller is not None:
                changes, parts = smaller, max(parts - 1, 2) if len(smaller) > len(pieces[0]) else 2
            elif parts >= len(changes):
                break
            else:
                parts = min(2 * parts, len(changes))
        return frozenset(changes)

    def _smaller(self, changes: list[T], pieces: list[list[T]]) -> list[T] | None:
        """A piece that makes the difference, or the rest without a piece."""
        rests = [[change for change in changes if change not in piece] for piece in pieces]
        return next((part for part in [*pieces, *rests] if self.try_(frozenset(part)) is Shows.YES), None)


def _split[T](items: list[T], parts: int) -> list[list[T]]:
    """`items` in `parts` pieces of nearly one length, none empty."""
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(bounds) if start < end]
