"""The base environment: the interpreter with the heavy libraries on top of which every overlay lies."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.stacks import python as pythons
from harness.stacks import uv
from harness.stacks.cache import Progress, build_once
from harness.stacks.errors import StackError
from harness.stacks.settings import Settings

LOCKED = Path(__file__).with_name("base.txt")
_LIST = (
    "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.version)\n"
    "from importlib.metadata import distributions\n"
    "print(*sorted({f\"{d.metadata['Name']}=={d.version}\" for d in distributions()}), sep='\\n')"
)
_LIST_SECONDS = 120


@dataclass(frozen=True)
class Base:
    """A base environment. `key` changes with what it holds."""

    python: Path
    key: str


def ensure(settings: Settings, choice: str | None, progress: Progress) -> Base:
    """Return the base environment that `choice` names (default: what the settings say), built where need be.

    "locked" is the shipped requirement file and NAME.txt another fully pinned one, installed into a cached environment
    of their own; "current" is the interpreter that runs this process; anything else is the path of an interpreter or
    of a virtual environment, used as it is. Raises StackError.
    """
    chosen = choice if choice is not None else settings.base
    if chosen == "current":
        return _existing(Path(sys.executable), chosen)
    if chosen == "locked":
        return _locked(LOCKED, settings, progress)
    path = Path(chosen).expanduser() if choice is not None else settings.root / Path(chosen).expanduser()
    path = path.absolute()
    if path.suffix in (".txt", ".in"):
        return _locked(path, settings, progress)
    return _existing(path / "bin" / "python" if path.is_dir() else path, chosen)


@cache
def _existing(interpreter: Path, chosen: str) -> Base:
    """Take an interpreter as it is; its key is a digest of its version and of every distribution it holds.

    Asked once in a process: each stack that is built wants to know, and an image holds hundreds of distributions.
    """
    try:
        answer = subprocess.run(
            [str(interpreter), "-c", _LIST], capture_output=True, text=True, timeout=_LIST_SECONDS, check=False
        )
    except FileNotFoundError:
        raise StackError(f"--base {chosen}: there is no interpreter {interpreter}.") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"--base {chosen}: {interpreter} does not run: {error}.") from None
    if answer.returncode != 0:
        said = answer.stderr.strip().splitlines() or ["no output"]
        raise StackError(f"--base {chosen}: {interpreter} does not run: {said[-1]}")
    version = answer.stdout.split("\n", 1)[0]
    if version != pythons.VERSION:
        raise StackError(
            f"--base {chosen}: {interpreter} is Python {version}; the stacks need {pythons.VERSION}. "
            f"Name a {pythons.VERSION} interpreter, or leave --base out."
        )
    return Base(interpreter, f"existing-{hashlib.sha256(answer.stdout.encode()).hexdigest()[:16]}")


def _locked(requirements: Path, settings: Settings, progress: Progress) -> Base:
    try:
        pinned = requirements.read_text(encoding="utf-8")
    except OSError as error:
        raise StackError(f"base: cannot read {requirements}: {error.strerror}.") from None
    try:
        interpreter = pythons.find(uv.executable())
    except pythons.PythonNotFoundError as error:
        raise StackError(f"base: {error}") from None
    key = hashlib.sha256("\0".join([pinned, interpreter, platform.machine()]).encode()).hexdigest()[:16]
    final = settings.cache / "base" / key

    def install(target: Path) -> None:
        progress(f"base: installing {len(pinned.splitlines())} packages (once; some gigabytes)")
        try:
            # Relocatable, because the environment is built beside its place; no dependencies, because all are listed.
            uv.run(
                ["venv", "--relocatable", "--allow-existing", "--python", interpreter, str(target)],
                cwd=settings.root,
                progress=_quiet,
            )
            uv.run(
                ["pip", "install", "--no-deps", "--python", str(_python(target)), "-r", str(requirements)],
                cwd=settings.root,
                progress=lambda line: None if line.startswith(("+ ", "Using ")) else progress(f"base: {line}"),
            )
        except uv.UvError as failed:
            raise StackError(f"base: cannot install {requirements.name}: {failed.reason}") from None

    build_once(final, install, progress, is_ready=lambda folder: _python(folder).exists())
    return Base(_python(final), key)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _quiet(line: str) -> None:
    """Drop a line of progress."""
