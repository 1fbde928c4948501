"""Folders built once: beside their place, then renamed into it, under a lock."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from harness.stacks.errors import StackError

Progress = Callable[[str], None]


def build_once(
    final: Path,
    fill: Callable[[Path], None],
    progress: Progress,
    *,
    is_ready: Callable[[Path], bool] = Path.is_dir,
) -> bool:
    """Make sure that the folder `final` exists; return whether this call built it.

    `fill` gets an empty folder on the same file system, renamed to `final` once it returned: what exists is complete.
    Builders of one folder wait for each other, in other processes too. When `fill` raises (KeyboardInterrupt
    included) its folder is removed; what a killed builder left is removed by the next one. A `final` that is not
    `is_ready` is built anew. Raises StackError for a full disk and the like.
    """
    if is_ready(final):
        return False
    try:
        with locked(final, progress):
            if is_ready(final):
                return False
            _sweep(final)
            _build(final, fill)
    except OSError as error:
        raise StackError(_explained(final, error)) from error
    return True


@contextmanager
def locked(final: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a folder in the cache, whether or not the folder exists."""
    final.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(final.parent / f".{final.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that builds {final.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(final: Path, fill: Callable[[Path], None]) -> None:
    beside = Path(tempfile.mkdtemp(prefix=_prefix(final), dir=final.parent))
    try:
        # mkdtemp keeps others out; a cache that several users share should not.
        beside.chmod(0o755)
        fill(beside)
        beside.rename(final)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _sweep(final: Path) -> None:
    for left_over in final.parent.glob(f"{_prefix(final)}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    if final.exists():
        shutil.rmtree(final)


def _prefix(final: Path) -> str:
    return f".{final.name}.building-"


def _explained(final: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on device while building {final}. Free some, or set PARITY_CACHE to a folder elsewhere."
    reason = error.strerror or str(error)
    return f"cannot build {final}: {reason} ({error.filename}). Set PARITY_CACHE to a folder you can write to."
