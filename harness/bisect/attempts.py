"""Attempts: pins in the place of a stack's own, and what a case gives on them."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from harness.answers import Answers
from harness.bisect.candidates import Candidate
from harness.compare import Side
from harness.observe.codec import Encoded
from harness.stacks import BuiltStack, Pin, Settings, Stack, StackError

_IDLE = 2
"""Workers that are kept though nobody waits for them: both ends are asked several times."""


@dataclass
class Attempts:
    """Observes a case on sets of pins, building what they need.

    Attributes:
        stack: name of the stack that holds every other pin.
        pins: overrides of that stack, as typed or parsed.
        build: makes a stack that can run, or raises StackError.
        told: called with a line of progress.
    """

    answers: Answers
    settings: Settings
    build: Callable[[Stack], BuiltStack]
    stack: str
    pins: tuple[str | Pin, ...] = ()
    told: Callable[[str], None] = field(default=lambda _line: None)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._waited_for: Counter[str] = Counter()
        self._idle: OrderedDict[str, BuiltStack] = OrderedDict()

    def __call__(self, candidate: Candidate, sample: int = 0) -> Side:
        """What the case gives on a candidate; what cannot be built is unavailable, with the reason."""
        return self.on(candidate.pins, sample)

    def on(
        self,
        pins: Iterable[Pin],
        sample: int = 0,
        restored: Mapping[str, Encoded] | None = None,
        watched: str | None = None,
    ) -> Side:
        """What the case gives with some pins in the place of the stack's own; arguments as `Answers.side`."""
        stack = self.settings.stack(self.stack, (*self.pins, *pins))
        try:
            built = self.build(stack)
        except StackError as error:
            return Side("attempt", stack.name, {}, unavailable=f"cannot be built: {error}")
        with self._lock:
            self._waited_for[built.key] += 1
            self._idle.pop(built.key, None)
        try:
            return self.answers.side(built, sample, restored, watched, self.told)
        finally:
            self._done(built)

    def _done(self, built: BuiltStack) -> None:
        """Let the workers that have been idle longest end."""
        with self._lock:
            self._waited_for[built.key] -= 1
            if not self._waited_for[built.key]:
                self._idle[built.key] = built
            while len(self._idle) > _IDLE:
                _, longest = self._idle.popitem(last=False)
                self.answers.release(longest)
