"""All modules of an upstream package, and the functions that they and their classes define."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from harness.observe.run import Run

PACKAGES = ("megatron.core", "megatron.training", "megatron.bridge", "mbridge", "verl")


def import_modules(run: Run, package: str) -> Iterator[ModuleType]:
    """Import every module of a package that can be imported; of verl, those that deal with Megatron."""
    run.scans = True
    found = run.upstream(package)
    for info in pkgutil.walk_packages(found.__path__, f"{package}.", onerror=lambda _name: None):
        if not _deals_with_megatron(info.name):
            continue
        try:
            yield importlib.import_module(info.name)
        except Exception as error:  # noqa: BLE001 - a module may need what this base lacks, and say so in any way
            print(f"{info.name} cannot be imported: {error!r}")  # noqa: T201 - to the rank's output


@cache
def sources_of(package: str) -> tuple[str, ...]:
    """The text of every source file of a package; none where there is no such package."""
    try:
        folders = importlib.import_module(package).__path__
    except ImportError:
        return ()
    files = [file for folder in folders for file in sorted(Path(folder).rglob("*.py"))]
    return tuple(file.read_text(errors="replace") for file in files)


def classes_of(module: ModuleType) -> Iterator[type]:
    """The classes that a module defines."""
    # Asked of the class itself: what stands for an absent class answers every other question with an exception.
    yield from (
        value
        for value in vars(module).values()
        if isinstance(value, type) and vars(value).get("__module__") == module.__name__
    )


def function_in(member: Any) -> FunctionType | None:
    """The function of a member of a class, whatever kind of method it is."""
    found = getattr(member, "__func__", member)
    return found if isinstance(found, FunctionType) else None


def package_of(module: str) -> str | None:
    """The upstream package that a module belongs to."""
    return next((name for name in PACKAGES if f"{module}.".startswith(f"{name}.")), None)


def _deals_with_megatron(name: str) -> bool:
    return not name.startswith("verl.") or any(word in name for word in ("megatron", "mcore"))
