"""Pins: which version of one distribution a stack holds, and how a pin is written."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.stacks.errors import StackUsageError

FORMS = "NAME==VERSION, NAME=path:DIR or NAME=git:SOURCE@REV"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:", re.IGNORECASE)


@dataclass(frozen=True)
class ReleasePin:
    """A release from the package index."""

    distribution: str
    version: str

    @property
    def requested(self) -> str:
        """The pin as `--pin` takes it."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class GitPin:
    """A revision of a git repository; `source` is a URL or the path of a local clone."""

    distribution: str
    source: str
    revision: str

    @property
    def requested(self) -> str:
        """The pin as `--pin` takes it."""
        return f"{self.distribution}=git:{self.source}@{self.revision}"


@dataclass(frozen=True)
class PathPin:
    """A source tree on this machine, taken as it is now."""

    distribution: str
    path: Path

    @property
    def requested(self) -> str:
        """The pin as `--pin` takes it."""
        return f"{self.distribution}=path:{self.path}"


Pin = ReleasePin | GitPin | PathPin


@dataclass(frozen=True)
class BuiltPin:
    """What a pin became: enough to tell two builds apart, and to check an import against.

    `kind` is "release", "git" or "path"; `version` is what the distribution's metadata in the overlay says; `commit`
    is the full hash (git pins, and path pins inside a checkout); `dirty` says that the package folders differ from
    that commit; `tree_hash` identifies the files of git and path pins; `requested` is the pin as `--pin` takes it.
    """

    distribution: str
    kind: str
    version: str
    commit: str | None
    dirty: bool
    tree_hash: str | None
    requested: str


def is_url(source: str) -> bool:
    """Whether a git source is a URL (`https://…`, `git@host:…`) rather than a path."""
    return _URL.match(source) is not None


def parse_override(text: str, *, relative_to: Path | None = None) -> Pin:
    """Parse a pin from the command line: `NAME==VERSION`, `NAME=path:DIR` or `NAME=git:SOURCE@REV`.

    Relative directories start at `relative_to` (default: the current directory). Raises StackUsageError.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not name or not equals or not value:
        raise StackUsageError(f"{text!r} is not a pin. Write {FORMS}.")
    if value.startswith("="):
        return _release(name, value.removeprefix("=").strip(), text)
    folder = relative_to if relative_to is not None else Path.cwd()
    kind, colon, rest = value.partition(":")
    if kind == "path" and colon and rest:
        return _path(name, rest, text, folder)
    if kind == "git" and colon and rest:
        source, at, revision = rest.rpartition("@")
        if not at:
            raise StackUsageError(f"{text!r} names no revision. Write {name}=git:{rest}@REV.")
        return _git(name, source, revision, text, folder)
    raise StackUsageError(f"{text!r} is not a pin. Write {FORMS}.")


def parse_pin(distribution: str, value: Any, *, relative_to: Path, where: str) -> Pin:
    """Parse a pin from a settings file: `"==0.8.0"`, `{ git = SOURCE, rev = REV }` or `{ path = DIR }`.

    `where` names the table for messages; relative directories start at `relative_to`. Raises StackUsageError.
    """
    shown = f"{where}.{distribution} = {value!r}"
    if isinstance(value, str) and value.strip().startswith("=="):
        return _release(distribution, value.strip().removeprefix("==").strip(), shown)
    if isinstance(value, dict) and all(isinstance(item, str) and item for item in value.values()):
        if set(value) == {"git", "rev"}:
            return _git(distribution, value["git"], value["rev"], shown, relative_to)
        if set(value) == {"path"}:
            return _path(distribution, value["path"], shown, relative_to)
    raise StackUsageError(
        f'{shown} is not a pin. Write "==VERSION", {{ git = SOURCE, rev = REV }} or {{ path = DIR }}.'
    )


def canonical_name(name: str) -> str | None:
    """Return the canonical spelling of a distribution's name, or None where it can't be one."""
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName:
        return None


def _distribution(name: str, shown: str) -> str:
    canonical = canonical_name(name)
    if canonical is None:
        raise StackUsageError(f"{shown!r}: {name!r} is not the name of a distribution. Write {FORMS}.")
    return canonical


def _release(name: str, version: str, shown: str) -> ReleasePin:
    try:
        return ReleasePin(_distribution(name, shown), str(Version(version)))
    except InvalidVersion:
        raise StackUsageError(f"{shown!r}: {version!r} is not one exact version. Write {name}==0.8.0.") from None


def _path(name: str, path: str, shown: str, folder: Path) -> PathPin:
    found = _absolute(path, folder)
    if str(found) != str(found).strip():
        raise StackUsageError(f"{shown!r}: the name of a folder ends with a space, which no pin can say. Rename it.")
    return PathPin(_distribution(name, shown), found)


def _git(name: str, source: str, revision: str, shown: str, folder: Path) -> GitPin:
    # A colon can't be part of a revision; it means that the "@" belonged to a `git@host:…` address.
    if not source or not revision or revision.startswith("-") or re.search(r"[:\s]", revision):
        raise StackUsageError(f"{shown!r} names no usable revision. Write {name}=git:SOURCE@REV.")
    if source.startswith("-"):
        raise StackUsageError(f"{shown!r}: {source!r} is neither a URL nor a path. Write {name}=git:SOURCE@REV.")
    where = source if is_url(source) else str(_absolute(source, folder))
    return GitPin(_distribution(name, shown), where, revision)


def _absolute(path: str, folder: Path) -> Path:
    # Lexical, so that a checkout reached through a link keeps the name that its owner gave it.
    return Path(os.path.abspath(folder / Path(path).expanduser()))  # noqa: PTH100
