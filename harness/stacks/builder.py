"""Where a run takes its stacks from: the package index and clones, or a bundle that was made where those are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.stacks import bundle as bundles
from harness.stacks.build import BuiltStack, build
from harness.stacks.cache import Progress
from harness.stacks.settings import Settings, Stack


@dataclass(frozen=True)
class Builder:
    """Builds stacks, each on the same base.

    Attributes:
        base: see `harness.stacks.build`; None for what the settings say, or with a bundle for this interpreter.
        bundle: the only source of stacks, for a host without a network; None for the usual ones.
        told: called with a line of progress.
    """

    settings: Settings
    base: str | None
    bundle: Path | None
    told: Progress

    def __call__(self, stack: Stack) -> BuiltStack:
        """A stack that can run. Raises StackError."""
        if self.bundle is not None:
            return bundles.use(self.bundle, stack, self.settings, base=self.base, progress=self.told)
        return build(stack, self.settings, base=self.base, progress=self.told)
