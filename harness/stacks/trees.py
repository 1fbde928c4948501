"""Source trees: a commit of a repository, or a folder on disk, seen in one way."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from harness.stacks import git
from harness.stacks.errors import StackError

_NOT_SOURCE = ("__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints")


class SourceTree(Protocol):
    """What a distribution's packages are taken from. Paths are relative to the tree, with forward slashes."""

    def is_package(self, folder: str) -> bool:
        """Whether `folder` directly holds a Python file."""

    def read(self, file: str) -> str | None:
        """Return the text of `file`, or None where there is none."""

    def digest(self, prefix: str, folders: tuple[str, ...]) -> str:
        """Return a hash of every file below `prefix + folder`, for each of `folders`.

        Equal packages have equal digests within one kind of tree, wherever they lie.
        """

    def copy(self, prefix: str, folders: tuple[str, ...], destination: Path) -> None:
        """Copy `prefix + folder` to `destination / folder` for each of `folders`. Raises StackError."""


@dataclass(frozen=True)
class CommitTree:
    """The tree of one commit."""

    repository: git.Repository
    commit: str

    def is_package(self, folder: str) -> bool:
        """See SourceTree."""
        listed = self.repository.entries(self.commit, f"{folder}/")
        return any(kind == "blob" and path.endswith(".py") for kind, _, path in listed)

    def read(self, file: str) -> str | None:
        """See SourceTree."""
        return self.repository.read(self.commit, file)

    def digest(self, prefix: str, folders: tuple[str, ...]) -> str:
        """See SourceTree."""
        entries = self.repository.entries(self.commit, *(prefix + folder for folder in folders))
        listed = sorted((path.removeprefix(prefix), digest) for _, digest, path in entries)
        return hashlib.sha256(repr(listed).encode()).hexdigest()

    def copy(self, prefix: str, folders: tuple[str, ...], destination: Path) -> None:
        """See SourceTree."""

        def below_destination(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
            # `git archive` also names the folders above those asked for ("src/").
            if not member.name.startswith(prefix):
                return None
            return tarfile.data_filter(member.replace(name=member.name.removeprefix(prefix), deep=False), path)

        wanted = [prefix + folder for folder in folders]
        try:
            with (
                self.repository.archive(self.commit, *wanted) as stream,
                tarfile.open(fileobj=stream, mode="r|") as archive,
            ):
                archive.extractall(destination, filter=below_destination)
        except tarfile.TarError as error:
            raise StackError(f"cannot unpack {', '.join(wanted)} of {self.commit[:12]}: {error}.") from error


@dataclass(frozen=True)
class FolderTree:
    """A folder as it is now, a checkout or not."""

    path: Path

    def is_package(self, folder: str) -> bool:
        """See SourceTree."""
        whole = self.path / folder
        return whole.is_dir() and any(entry.suffix == ".py" for entry in whole.iterdir())

    def read(self, file: str) -> str | None:
        """See SourceTree."""
        try:
            return (self.path / file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def digest(self, prefix: str, folders: tuple[str, ...]) -> str:
        """See SourceTree."""
        return folder_digest(self.path / prefix, folders)

    def copy(self, prefix: str, folders: tuple[str, ...], destination: Path) -> None:
        """See SourceTree."""
        for folder in folders:
            whole = self.path / (prefix + folder)
            for file in source_files(whole):
                target = destination / folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(whole / file, target)

    def commit(self, folders: tuple[str, ...]) -> tuple[str | None, bool]:
        """Return the commit that is checked out, and whether `folders` differ from it.

        (None, False) for a folder that is not under version control, even inside somebody else's checkout.
        """
        if shutil.which("git") is None or not git.run(self.path, "ls-tree", "HEAD", "--", *folders).stdout:
            return None, False
        head = git.run(self.path, "rev-parse", "HEAD").stdout.strip()
        changed = git.run(self.path, "status", "--porcelain", "--untracked-files=all", "--", *folders)
        return head, bool(changed.stdout.strip())


def folder_digest(root: Path, folders: tuple[str, ...]) -> str:
    """Return a hash of the names and contents of every source file below `folders` of `root`."""
    whole = hashlib.sha256()
    for folder in sorted(folders):
        for file in source_files(root / folder):
            content = (root / folder / file).read_bytes()
            whole.update(f"{folder}/{file.as_posix()}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def source_files(folder: Path) -> list[PurePosixPath]:
    """Return the regular files below `folder`, sorted; links are followed, compiled Python and tool caches left out."""
    return sorted(_walk(folder, PurePosixPath(), frozenset()))


def _walk(folder: Path, below: PurePosixPath, above: frozenset[str]) -> Iterator[PurePosixPath]:
    real = os.path.realpath(folder)
    if real in above:
        return
    for entry in os.scandir(folder):
        if entry.name in _NOT_SOURCE or entry.name.endswith((".pyc", ".pyo")):
            continue
        if entry.is_dir():
            yield from _walk(Path(entry.path), below / entry.name, above | {real})
        elif entry.is_file():
            yield below / entry.name
