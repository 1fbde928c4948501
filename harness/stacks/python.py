"""Finds a Python 3.12 that really runs.

noxfile.py loads this file by its path, with whatever Python runs nox: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List, Optional

VERSION = "3.12"
HOW_TO_GET_ONE = "Install one with `uv python install 3.12`, or name one with --base PATH."
_PROBE = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"
_PROBE_SECONDS = 30


class PythonNotFoundError(Exception):
    """No working Python 3.12 on this machine, and none could be installed."""


def find(uv: Optional[str] = None, install: bool = False) -> str:
    """Return the path of a working Python 3.12.

    Looked at in turn: the running interpreter, `python3.12` on PATH, pyenv's newest 3.12 and uv's own. With
    `install`, uv is asked to download one as a last resort. A candidate counts only if it runs: a pyenv shim on PATH
    may exist and yet refuse.

    Raises PythonNotFoundError.
    """
    for candidate in _candidates(uv):
        working = check(candidate)
        if working is not None:
            return working
    if uv is not None and install:
        subprocess.run([uv, "python", "install", VERSION], check=False)
        working = _found_by_uv(uv)
        if working is not None:
            return working
    raise PythonNotFoundError("No working Python %s (looked at PATH, pyenv and uv). %s" % (VERSION, HOW_TO_GET_ONE))


def check(interpreter: str) -> Optional[str]:
    """Return the real path of `interpreter` if it runs and is a Python 3.12, else None."""
    try:
        answer = subprocess.run(
            [interpreter, "-c", _PROBE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = os.fsdecode(answer.stdout).splitlines()
    if answer.returncode != 0 or len(lines) != 2 or lines[0] != VERSION:
        return None
    return lines[1]


def _candidates(uv: Optional[str]) -> Iterator[str]:
    # The interpreter below a virtual environment, so that a new environment does not depend on this one's folder.
    yield os.path.join(sys.base_prefix, "bin", "python" + VERSION)
    if sys.version_info[:2] == (3, 12):
        yield sys.executable
    yield "python" + VERSION
    for root in _pyenv_roots():
        for interpreter in _newest_first(root):
            yield str(interpreter)
    if uv is not None:
        found = _found_by_uv(uv)
        if found is not None:
            yield found


def _pyenv_roots() -> List[Path]:
    """Where pyenv may live: its variable, the home directory, a shims folder on PATH, the running interpreter."""
    roots = [Path(os.environ["PYENV_ROOT"])] if os.environ.get("PYENV_ROOT") else []
    roots.append(Path(os.path.expanduser("~/.pyenv")))
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        if os.path.basename(entry) == "shims":
            roots.append(Path(entry).parent)
    for parent in Path(sys.base_prefix).parents:
        if parent.name == "versions":
            roots.append(parent.parent)
    return roots


def _newest_first(pyenv_root: Path) -> List[Path]:
    def patch_number(interpreter: Path) -> int:
        patch = interpreter.parent.parent.name[len(VERSION) + 1 :]
        return int(patch) if patch.isdigit() else -1

    found = pyenv_root.glob("versions/%s*/bin/python" % VERSION)
    return sorted(found, key=patch_number, reverse=True)


def _found_by_uv(uv: str) -> Optional[str]:
    try:
        answer = subprocess.run(
            [uv, "python", "find", "--no-project", "--no-python-downloads", VERSION],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return check(os.fsdecode(answer.stdout).strip()) if answer.returncode == 0 else None
