"""A small project in a temporary folder: stacks, repositories, source trees and wheels of made-up distributions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.stacks import BuiltStack, Settings, build, load_settings


class Workshop:
    """Everything lies below `folder`; nothing outside it is read or written, and the network is not used."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.root = folder / "project"
        self.cache = folder / "cache"
        self.wheels = folder / "wheels"
        self.progress: list[str] = []
        self.root.mkdir()
        self.wheels.mkdir()
        for name in ("PARITY_CLONES", "VIRTUAL_ENV", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PARITY_CACHE", str(self.cache))
        monkeypatch.setenv("UV_CACHE_DIR", str(folder / "uv-cache"))
        (self.root / "uv.toml").write_text(f'no-index = true\nfind-links = ["{self.wheels}"]\n')
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder / "no-git-config"))
        monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(folder / "no-git-config"))
        monkeypatch.chdir(self.root)
        self.project('[tool.parity]\nold = "one"\nnew = "one"\nbase = "current"\n[tool.parity.stacks.one]\n')

    def project(self, toml: str) -> None:
        """Write the project's pyproject.toml."""
        (self.root / "pyproject.toml").write_text(toml)

    def settings(self) -> Settings:
        """Load the project's settings."""
        return load_settings(self.root)

    def build(self, *overrides: str, stack: str = "one", base: str | None = None) -> BuiltStack:
        """Build a stack with overrides; progress lines are collected."""
        settings = self.settings()
        return build(settings.stack(stack, overrides), settings, base=base, progress=self.progress.append)

    def tree(self, name: str, files: Mapping[str, str]) -> Path:
        """Write files below a new folder."""
        folder = self.folder / name
        write(folder, files)
        return folder

    def repository(self, name: str, *commits: Mapping[str, str]) -> Path:
        """Make a repository with one commit per mapping of files; each is tagged v0, v1, …"""
        folder = self.folder / name
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch=main")
        for number, files in enumerate(commits):
            commit(folder, files)
            git(folder, "tag", f"v{number}")
        return folder

    def wheel(self, distribution: str, version: str, files: Mapping[str, str]) -> None:
        """Put a wheel where uv looks for releases."""
        info = f"{distribution}-{version}.dist-info"
        content = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"])
        with zipfile.ZipFile(self.wheels / f"{distribution}-{version}-py3-none-any.whl", "w") as archive:
            for name, text in {**content, f"{info}/RECORD": record}.items():
                archive.writestr(name, text)

    def left_over(self) -> list[str]:
        """Return what lies in the cache, locks aside."""
        return sorted(
            str(path.relative_to(self.cache)) for path in self.cache.glob("*/*") if not path.name.endswith(".lock")
        )


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files, making folders as needed."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def commit(repository: Path, files: Mapping[str, str]) -> str:
    """Write files, commit everything, return the hash."""
    write(repository, files)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "change")
    return git(repository, "rev-parse", "HEAD")


def git(folder: Path, *arguments: str) -> str:
    """Run git as a made-up person."""
    person = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")
    answer = subprocess.run(["git", *person, "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def run_in(built: BuiltStack, code: str) -> Any:
    """Run code in a built stack as a worker would; return the JSON it prints."""
    environment = {**os.environ, "PYTHONPATH": str(built.overlay), "PYTHONDONTWRITEBYTECODE": "1"}
    answer = subprocess.run(
        [str(built.python), "-c", code], capture_output=True, text=True, env=environment, cwd=built.overlay.parent
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def with_harness() -> dict[str, str]:
    """Return the environment in which a new process imports this checkout's harness."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def build_in_process(workshop: Workshop, *overrides: str) -> subprocess.Popen[str]:
    """Start another process that builds stack `one` and prints its progress, then the overlay."""
    code = (
        "import sys; from harness.stacks import build, load_settings\n"
        "settings = load_settings()\n"
        "stack = settings.stack('one', sys.argv[1:])\n"
        "print('overlay', build(stack, settings, progress=lambda line: print(line, flush=True)).overlay)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *overrides],
        cwd=workshop.root,
        env=with_harness(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_short(error: BaseException) -> str:
    """Check that an error's message fits a terminal: one or two lines, no traceback. Return it."""
    message = str(error)
    assert message and len(message.splitlines()) <= 2
    assert "Traceback" not in message and "://127" not in message
    return message
