"""Profiles of the fuzzers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.statistics import collector

PROFILES = ("ci", "dev", "deep")

_DEV_FACTOR = 10
"""How many times the examples of `ci` the other profiles draw in one turn."""

AVAILABLE_PROVIDERS["every batch anew"] = HypothesisProvider
"""Hypothesis without its mutations: of a batch, they keep all examples but one or two."""

_REJECTED = 0.1
"""Part of what is drawn that may be thrown away before it is checked."""


def _rejected(statistics: Mapping[str, Any]) -> float:
    """The part of the examples that a filter or `assume` threw away."""
    drawn = [case["status"] for case in statistics["generate-phase"]["test-cases"]]
    return drawn.count("invalid") / max(1, drawn.count("invalid") + drawn.count("valid"))


@dataclass(frozen=True)
class Fuzz:
    """Runs properties over drawn examples: in `ci` the same each time, in `deep` new ones until the time is over."""

    profile: str
    seconds: float
    database: Path
    shrink: bool = True

    def __call__(self, strategy: st.SearchStrategy[Any], examples: int, check: Callable[[Any], None]) -> None:
        """Check `examples` drawn values, as many as fit into `ci`; the first that fails is shrunk, and raises."""
        fixed = self.profile == "ci"
        chosen = settings(
            max_examples=examples if fixed else examples * _DEV_FACTOR,
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
            told: list[Mapping[str, Any]] = []
            with collector.with_value(told.append):
                chosen(given(strategy)(check))()
            assert (rejected := _rejected(told[0])) < _REJECTED, f"{rejected:.0%} of what is drawn is thrown away"
            if self.profile != "deep" or time.monotonic() > until:
                return
