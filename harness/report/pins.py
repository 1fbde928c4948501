"""Which pins a run moves: old and new version, a link to what lies between them, and how many commits that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.stacks.git import Repository
from harness.stacks.git import run as git
from harness.stacks.settings import Source

RecordedPin = Mapping[str, Any]
"""A `BuiltPin` as the records keep it."""

NO_PIN = "(not pinned)"


@dataclass(frozen=True)
class MovedPin:
    """A distribution that the two sides pin differently.

    Attributes:
        old: what the old side pins, for a reader; likewise `new`.
        versions: both versions alone, as an option takes them; None where a side pins no release.
        link: a page that compares the two; None where the host of one is not known.
        commits: how many commits of the new side the old one lacks; None without a clone.
    """

    distribution: str
    old: str
    new: str
    versions: tuple[str, str] | None = None
    link: str | None = None
    commits: int | None = None

    @property
    def between(self) -> str:
        """`3 commits`; empty without a clone."""
        return "" if self.commits is None else counted(self.commits, "commit")


def counted(number: int, noun: str) -> str:
    """`1 case`, `2,000 cases`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def moved_pins(
    old: Mapping[str, RecordedPin],
    new: Mapping[str, RecordedPin],
    sources: Mapping[str, Source],
    clones: Mapping[str, Path],
) -> list[MovedPin]:
    """The distributions that differ, by name.

    Args:
        old: distribution → pin; likewise `new`.
        sources: where distributions are developed.
        clones: local clones, in which commits are counted.
    """
    return [
        _moved(name, old.get(name), new.get(name), sources.get(name), clones.get(name))
        for name in sorted(old.keys() | new.keys())
        if _identity(old.get(name)) != _identity(new.get(name))
    ]


def _moved(
    name: str, old: RecordedPin | None, new: RecordedPin | None, source: Source | None, clone: Path | None
) -> MovedPin:
    versions = (str(old["version"]), str(new["version"])) if _released(old) and _released(new) else None  # type: ignore[index]
    ends = [_revision(pin, source) for pin in (old, new)] if source else [None, None]
    both = ends[0] is not None and ends[1] is not None
    return MovedPin(
        name,
        _described(old),
        _described(new),
        versions,
        f"{source.repository}/compare/{ends[0]}...{ends[1]}" if source and both else None,
        _count(clone, *ends) if clone and both else None,
    )


def _identity(pin: RecordedPin | None) -> tuple[Any, ...] | None:
    return None if pin is None else tuple(pin.get(key) for key in ("version", "commit", "dirty", "tree_hash"))


def _released(pin: RecordedPin | None) -> bool:
    return pin is not None and pin.get("kind") == "release"


def _described(pin: RecordedPin | None) -> str:
    if pin is None:
        return NO_PIN
    commit = str(pin.get("commit") or "")[:9]
    if _released(pin):
        return str(pin["version"])
    tree = "" if commit else f"tree {str(pin.get('tree_hash') or '')[:9]}"
    parts = [commit or tree, "a path" if pin.get("kind") == "path" else "", "dirty" if pin.get("dirty") else ""]
    return f"{pin['version']} ({', '.join(part for part in parts if part)})"


def _revision(pin: RecordedPin | None, source: Source) -> str | None:
    """The tag or commit that a pin is, None where no page shows it."""
    if pin is None or pin.get("dirty"):
        return None
    return source.tag.format(version=pin["version"]) if _released(pin) else pin.get("commit")


def _count(clone: Path, old: str | None, new: str | None) -> int | None:
    repository = Repository(clone)
    ends = [repository.commit(revision) for revision in (old or "", new or "")]
    if not clone.is_dir() or None in ends:
        return None
    return int(git(clone, "rev-list", "--count", f"{ends[0]}..{ends[1]}").stdout)
