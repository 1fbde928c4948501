"""Where no config field explains a difference: the first module that diverges, and what changed of its sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.compare import Side
from harness.compare.divergence import Divergence

Watching = Callable[[str], tuple[Side, Side]]
"""Observes the case on the old and on the new side with the source files of one module asked for."""


@dataclass(frozen=True)
class Sources:
    """The source files that may hold the change.

    Attributes:
        where: what was looked at, in a few words.
        changed: those of its files that differ between the sides, or that one side alone enters.
    """

    where: str
    changed: tuple[str, ...]


def changed_sources(parting: Divergence, old: Side, new: Side, watching: Watching) -> Sources:
    """The files entered within the first module that diverges; without one, those of the functions of the evidence.

    Args:
        parting: where the modules of `old` and `new` part.
    """
    if parting.module:
        before, after = (_of_ranks(side) for side in watching(parting.module))
        return Sources(parting.module, _changed(before, after))
    return Sources("what the probe must enter", _changed(_of_evidence(old), _of_evidence(new)))


def _of_ranks(side: Side) -> dict[str, str]:
    return {file: digest for rank in side.ranks for file, digest in rank.environment.get("sources", {}).items()}


def _of_evidence(side: Side) -> dict[str, str]:
    """By the end of its path that names its module."""
    found = {}
    for entry in (entry for rank in side.ranks for entry in rank.entered):
        module = entry.function.partition(":")[0].replace(".", "/")
        found[module + entry.file.rpartition(f"/{module}")[2]] = entry.sha256
    return found


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(file for file in old.keys() | new.keys() if old.get(file) != new.get(file)))
