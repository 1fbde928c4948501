"""The few questions this package asks git, and a cache of fetched repositories."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.stacks.cache import Progress, build_once, locked
from harness.stacks.errors import StackError
from harness.stacks.pins import GitPin, is_url

# A hook of an outer repository exports these; they would redirect every call below to that repository.
_OUTER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")
_HASH = re.compile(r"[0-9a-f]{7,64}([~^][0-9~^]*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Repository:
    """A repository on this machine: a clone that the user named, or one fetched into the cache."""

    path: Path

    def commit(self, revision: str) -> str | None:
        """Return the full hash of the commit `revision` names, or None where the repository has no such commit."""
        answer = run(self.path, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        return answer.stdout.strip() if answer.returncode == 0 else None

    def entries(self, commit: str, *paths: str) -> list[tuple[str, str, str]]:
        """Return (type, object hash, path) of those of `paths` that exist; a final slash lists a folder's content."""
        answer = run(self.path, "ls-tree", "-z", "--full-tree", commit, "--", *paths)
        lines = [line for line in answer.stdout.split("\0") if line] if answer.returncode == 0 else []
        parsed = [(line.split("\t", 1)[0].split(), line.split("\t", 1)[1]) for line in lines]
        return [(kind, digest, path) for (_, kind, digest), path in parsed]

    def read(self, commit: str, path: str) -> str | None:
        """Return the text of a file, or None where there is none."""
        answer = run(self.path, "cat-file", "blob", f"{commit}:{path}")
        return answer.stdout if answer.returncode == 0 else None

    @contextmanager
    def archive(self, commit: str, *paths: str) -> Iterator[IO[bytes]]:
        """Yield a tar stream of `paths` at `commit`. Raises StackError when git fails half-way."""
        command = [*_command(self.path), "archive", "--format=tar", commit, "--", *paths]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()) as process:
            assert process.stdout is not None and process.stderr is not None
            try:
                yield process.stdout
                process.stdout.read()
            except BaseException:
                process.kill()
                raise
            said = process.stderr.read().decode(errors="replace")
        if process.returncode != 0:
            raise StackError(f"git could not export {commit[:12]} from {self.path}: {_last_line(said)}")


def open_repository(pin: GitPin, clone: Path | None, cache: Path, progress: Progress) -> tuple[Repository, str]:
    """Return the repository of a git pin and the full hash of the pinned commit.

    `clone` is used in place of the pin's URL. A local clone is read where it lies and never changed; a URL is fetched
    into `cache` once, and again only for a revision that is not there, or that may have moved (a branch).
    Raises StackError.
    """
    if clone is not None or not is_url(pin.source):
        repository = _local(clone if clone is not None else Path(pin.source), pin)
        commit = repository.commit(pin.revision)
    else:
        repository = _fetched(pin, cache, progress)
        commit = repository.commit(pin.revision) if _HASH.fullmatch(pin.revision) else None
        if commit is None:
            commit = _refreshed(repository, pin, progress)
    if commit is None:
        raise StackError(
            f"{pin.requested}: no revision '{pin.revision}' in {repository.path}{_shallow(repository)}. "
            f"Fetch it there, or choose one that `git -C {repository.path} log --oneline --all` shows."
        )
    return repository, commit


def is_at_hand(pin: GitPin, clone: Path | None, cache: Path) -> bool:
    """Whether a git pin's revision can be had without the network: from a clone, or from what was fetched before."""
    if clone is not None or not is_url(pin.source):
        return True
    folder = _folder(pin, cache)
    return folder.is_dir() and Repository(folder).commit(pin.revision) is not None


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in `folder` and return what it said. Raises StackError where git is not installed."""
    try:
        return subprocess.run(
            [*_command(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=_environment(),
            check=False,
        )
    except FileNotFoundError:
        raise StackError("git is not installed; a git pin needs it. Install git, or pin a release.") from None


def _command(folder: Path) -> list[str]:
    # The user named this folder and its code is about to be imported: who owns it adds nothing (containers differ).
    return ["git", "-c", "safe.directory=*", "-C", str(folder)]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OUTER}
    return {**kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}


def _local(path: Path, pin: GitPin) -> Repository:
    if not path.is_dir():
        raise StackError(
            f"{pin.requested}: there is no folder {path}. Name a clone, or --clone {pin.distribution}=PATH."
        )
    top = run(path, "rev-parse", "--show-toplevel")
    bare = run(path, "rev-parse", "--is-bare-repository").stdout.strip() == "true"
    if not bare and (top.returncode != 0 or not path.samefile(top.stdout.strip())):
        raise StackError(
            f"{pin.requested}: {path} is not a git repository. "
            f"Name a clone of {pin.distribution}, or pin the folder itself: {pin.distribution}=path:{path}"
        )
    return Repository(path)


def _fetched(pin: GitPin, cache: Path, progress: Progress) -> Repository:
    folder = _folder(pin, cache)

    def clone(target: Path) -> None:
        progress(f"{pin.distribution}: cloning {without_password(pin.source)} (once)")
        answer = run(target, "clone", "--quiet", "--bare", pin.source, ".")
        if answer.returncode != 0:
            raise StackError(
                f"{pin.requested}: cannot clone it: {_last_line(answer.stderr)}. "
                f"Check the address, or name a local clone: --clone {pin.distribution}=PATH"
            )

    build_once(folder, clone, progress)
    return Repository(folder)


def _folder(pin: GitPin, cache: Path) -> Path:
    return cache / "git" / f"{pin.distribution}-{hashlib.sha256(pin.source.encode()).hexdigest()[:12]}"


def _refreshed(repository: Repository, pin: GitPin, progress: Progress) -> str | None:
    """Fetch what moved since the clone, then the revision by name (a pull request, say); offline, use what is there."""
    progress(f"{pin.distribution}: fetching {pin.revision}")
    with locked(repository.path, progress):
        heads = run(repository.path, "fetch", "--quiet", "--tags", "--force", pin.source, "+refs/heads/*:refs/heads/*")
        commit = repository.commit(pin.revision)
        if commit is None:
            named = run(repository.path, "fetch", "--quiet", pin.source, pin.revision)
            commit = repository.commit("FETCH_HEAD") if named.returncode == 0 else None
    if heads.returncode != 0:
        progress(f"{pin.distribution}: could not fetch ({_last_line(heads.stderr)}); using the copy in the cache")
    return commit


def _shallow(repository: Repository) -> str:
    shallow = run(repository.path, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
    return ", a shallow clone (`git fetch --unshallow` completes it)" if shallow else ""


def without_password(url: str) -> str:
    """Return a URL without the user name and password it may hold."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", url)


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return (
        without_password(lines[-1].removeprefix("fatal: ").removeprefix("error: ").rstrip("."))
        if lines
        else "no reason given"
    )
