"""A runner for many seeded faults: what the old side gives without one is asked for once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from harness.cases import Case
from harness.compare import Side, load_ledger
from harness.runner import Runner, new_run_folder
from harness.selection import Selection
from harness.stacks import BuiltStack
from harness.workers.protocol import Limits


class OldOnce(Runner):
    """Runs the old side, and the runs that give its noise floor, once for all faults of the same case without one.

    Attributes:
        both: names of the faults that both sides have.
    """

    def __init__(self, *arguments: Any, both: frozenset[str] = frozenset()) -> None:
        super().__init__(*arguments)
        self.both = both
        self._kept: dict[tuple[str, str], Side] = {}
        self._observe = self._observer.side
        self._observer.side = self._once

    @classmethod
    @contextmanager
    def of(cls, stack: str, folder: Path, **how: Any) -> Iterator[Self]:
        """The stack against itself, in a run below `folder`, without a ledger."""
        sides = Selection(old=stack, new=stack).build(lambda _line: None)
        ledger = load_ledger(folder / "none.toml")
        runner = cls(new_run_folder(folder), sides, ledger, os.getpid(), Limits(seconds=600), **how)
        try:
            yield runner
        finally:
            runner.stop()

    def _once(self, name: str, stack: BuiltStack, case: Case, limits: Limits | None, *more: Any, **how: Any) -> Side:
        seeded = "fault" in case.probe.parameters  # the files of one that writes for another are used up
        if name == "new" or not seeded or case.parameters.get("fault") in self.both:
            return self._observe(name, stack, case, limits, *more, **how)
        clean = replace(case, parameters={key: value for key, value in case.parameters.items() if key != "fault"})
        if (name, clean.id) not in self._kept:
            self._kept[name, clean.id] = self._observe(name, stack, clean, limits, *more, **how)
        return self._kept[name, clean.id]
