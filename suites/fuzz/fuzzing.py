"""Profiles of the fuzzers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.statistics import collector

PROFILES = ("ci", "dev", "deep")

_DEV_FACTOR = 10
"""How many times the examples of `ci` are drawn in `dev`."""

AVAILABLE_PROVIDERS["every batch anew"] = HypothesisProvider
"""Hypothesis without its mutations: of a batch, they keep all examples but one or two."""

_REJECTED = 0.1
"""Part of what is drawn that may be thrown away before it is checked."""


@dataclass(frozen=True)
class Fuzz:
    """Runs properties over drawn examples: in `ci` the same each time, in `deep` new ones until the time is over.

    Attributes:
        drawn: how many examples have been `valid`, and how many a filter or `assume` has thrown away as `invalid`.
    """

    profile: str
    seconds: float
    database: Path
    shrink: bool = True
    drawn: Counter[str] = field(default_factory=Counter)

    def __call__(self, strategy: st.SearchStrategy[Any], examples: int, check: Callable[[Any], None]) -> None:
        """Check `examples` drawn values, as many as fit into `ci`; the first that fails is shrunk, and raises."""
        fixed = self.profile == "ci"
        chosen = settings(
            max_examples=examples * (_DEV_FACTOR if self.profile == "dev" else 1),
            backend="every batch anew",
            derandomize=fixed,
            database=None if fixed else DirectoryBasedExampleDatabase(self.database),
            deadline=None,
            phases=[Phase.reuse, Phase.generate, *([Phase.shrink] if self.shrink else [])],
            print_blob=False,
            report_multiple_bugs=False,
        )
        until = time.monotonic() + self.seconds
        while True:
            with collector.with_value(self._count):
                chosen(given(strategy)(check))()
            assert self.rejected < _REJECTED, f"{self.rejected:.0%} of what is drawn is thrown away"
            if self.profile != "deep" or time.monotonic() > until:
                return

    @property
    def rejected(self) -> float:
        """The part of what was drawn that a filter or `assume` threw away."""
        return self.drawn["invalid"] / max(1, self.drawn["invalid"] + self.drawn["valid"])

    def _count(self, statistics: Mapping[str, Any]) -> None:
        # Nothing is drawn once an example fails that an earlier run kept.
        drawn = statistics.get("generate-phase", {"test-cases": []})
        self.drawn.update(case["status"] for case in drawn["test-cases"])
