"""A fresh process of the stack, in which one package may be absent: neither imported nor found, and of no version.

    python -P -m harness.workers.without REQUEST.json

calls one function of the harness with the run of a single rank; see `harness.probes._without`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.layouts import layout_named
from harness.observe.run import Run
from harness.probes._without import ANSWER, Package
from harness.workers import transformer_engine
from harness.workers.lanes import lane_named


def hide(package: Package) -> None:
    """Let a package be absent in this process, which has not imported it yet."""
    sys.meta_path[:] = [_Hiding(finder, package) for finder in sys.meta_path]
    importlib.invalidate_caches()


class _Hiding(MetaPathFinder):
    """A finder that finds all that another one does, but for one package and its metadata."""

    def __init__(self, finder: Any, package: Package) -> None:
        self._finder = finder
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if f"{fullname}.".startswith(f"{self._package.module}."):
            return None
        found: ModuleSpec | None = self._finder.find_spec(fullname, path, target)
        return found

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        found: Iterable[Distribution] = (
            self._finder.find_distributions(context or DistributionFinder.Context())
            if hasattr(self._finder, "find_distributions")
            else ()
        )
        return (one for one in found if _plain(one.metadata["Name"] or "") != _plain(self._package.distribution))

    def invalidate_caches(self) -> None:
        if hasattr(self._finder, "invalidate_caches"):
            self._finder.invalidate_caches()


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def main(request_file: str) -> None:
    """Do what `call_in_fresh_process` asks."""
    gc.disable()  # most of what it does is to import, and it ends soon
    request = json.loads(Path(request_file).read_text())
    package = Package(**request["package"]) if request["package"] else None
    lane = lane_named(request["lane"])
    if package:
        hide(package)
    lane.prepare()
    if package and package.module == transformer_engine.PACKAGE:
        transformer_engine.uninstall()
    for name in request["preload"]:
        # What fails is silent here: only what upstream itself says may count as said.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    folder = Path(request_file).parent
    run = Run(lane, layout_named("single"), 0, 1, folder)
    lane.enter(run)
    module, _, name = request["function"].partition(":")
    returned = getattr(importlib.import_module(module), name)(run)
    (folder / ANSWER).write_text(json.dumps(returned))


if __name__ == "__main__":
    main(sys.argv[1])
