"""Running uv, and saying in one line why it could not do what it was asked."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.stacks.cache import Progress
from harness.stacks.errors import StackError

# An index's address says where this machine gets its packages, which is nobody's business in a log or a report.
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s`'\")]+", re.IGNORECASE)
_NO_VERSION = re.compile(r"no versions? of (?P<name>[\w.-]+?)(?:\[.*?\])?==(?P<version>[^\s,]+)")
_NO_PROJECT = re.compile(r"Because (?P<name>[\w.-]+) was not found in the (?:package registry|cache|provided)")
_NO_WHEEL = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^\s,]+) has no (?:usable )?wheels")
_UNREACHABLE = ("Failed to fetch", "error sending request", "dns error", "Could not connect", "Request failed after")
_STOP_SECONDS = 10


class UvError(Exception):
    """uv ended with an error. `said` is what it wrote; `reason` one line of it without addresses."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said

    @property
    def reason(self) -> str:
        """The failure in one line, without the address of any index."""
        if "No space left on device" in self.said:
            return "no space left on device. Free some, or set PARITY_CACHE to a folder elsewhere."
        if self.offline:
            return "it is not in uv's cache and the network is off (offline mode)."
        if any(sign in self.said for sign in _UNREACHABLE):
            status = re.search(r"HTTP status [^\n]*?\((\d{3}[^)]*)\)", self.said)
            answer = f"the package index answered {status[1]}" if status else "the package index cannot be reached"
            return f"{answer}. Check the network and uv's index settings, then run again."
        return without_addresses(_first_cause(self.said))

    @property
    def offline(self) -> bool:
        """Whether a package was missing only because the network is off."""
        return "network was disabled" in self.said

    def missing(self) -> tuple[str, str | None] | None:
        """Return (distribution, version) of a release the index does not have; the version is None for no project."""
        said = " ".join(self.said.split())
        if (no_version := _NO_VERSION.search(said)) is not None:
            return no_version["name"], no_version["version"].rstrip(".")
        if (no_project := _NO_PROJECT.search(said)) is not None:
            return no_project["name"], None
        return None


def run(arguments: Sequence[str], *, cwd: Path, progress: Progress) -> None:
    """Run uv, passing each line it writes to `progress`.

    When this call is interrupted, uv is stopped before the exception goes on. Raises UvError.
    """
    process = subprocess.Popen(
        [executable(), "--no-progress", "--color", "never", *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if line.strip():
                progress(without_addresses(line.strip()))
        process.wait()
    finally:
        _stop(process)
        process.stderr.close()
    if process.returncode != 0:
        raise UvError("".join(said))


def nearest_releases(distribution: str, version: str, *, python: Path, cwd: Path) -> list[str]:
    """Return the releases next below and next above `version`, as far as the index has them."""
    found = []
    for bound, resolution in (("<", "highest"), (">", "lowest")):
        answer = subprocess.run(
            [
                *(executable(), "--no-progress", "--quiet", "pip", "compile", "--no-deps", "--no-header"),
                *("--no-annotate", "--python", str(python), "--resolution", resolution, "-"),
            ],
            input=f"{distribution}{bound}{version}\n",
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            cwd=cwd,
            check=False,
        )
        found += re.findall(r"^[\w.-]+==(\S+)", answer.stdout, re.MULTILINE) if answer.returncode == 0 else []
    return found


def executable() -> str:
    """Return the path of uv: the one installed with this project, else the one on PATH. Raises StackError."""
    try:
        from uv import find_uv_bin  # a host that runs a bundle has no use for it

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise StackError("uv is not installed; it builds the environments. Run: python -m pip install uv")
    return found


def without_addresses(text: str) -> str:
    """Return `text` with every URL replaced."""
    return _ADDRESS.sub("<address>", text)


def _first_cause(said: str) -> str:
    lines = [line.strip() for line in said.splitlines()]
    causes = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("error:", "cause:"))]
    shown = ": ".join(causes[:2]) if causes else next((line for line in reversed(lines) if line), "uv gave no reason")
    return shown[:400]


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
