"""A small project to run the harness on: two source trees of a toy package, and probes that look at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.cases import OWN, make_case
from harness.compare import load_ledger
from harness.report import Records
from harness.runner import Outcome, Runner, new_run_folder
from harness.selection import Selection
from harness.workers.protocol import Limits

PYPROJECT = """
[tool.parity]
old = "toy-1"
new = "toy-2"
base = "current"

[tool.parity.stacks.toy-1.pins]
toy = { path = "trees/1" }

[tool.parity.stacks.toy-2.pins]
toy = { path = "trees/2" }
"""
TOY = """
import dataclasses


@dataclasses.dataclass
class Config:
    size: int = 1
    fusion: bool = True


def build(size=1):
    return Config(size)


def refuse():
    raise ValueError("no such option")
"""
PROBES = '''
from harness.probes import probe

PRELOAD = ("toy",)


@probe(enters=("toy:build",), returns=("config.size",))
def config(run, *, size: int = 1):
    """The config that toy builds."""
    return {"config": run.upstream("toy:build")(size)}


@probe(enters=("toy:refuse",), returns=("x",))
def refusal(run):
    """What toy refuses."""
    run.upstream("toy:refuse")()
'''


@dataclass
class Project:
    """A folder with a pyproject.toml, source trees and probes; commands run in it as a user types them."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def probes(self) -> Path:
        return self.folder / "probes.py"

    def edit(self, side: int, before: str, after: str) -> None:
        """Change the toy package of one side."""
        file = self.folder / "trees" / str(side) / "toy" / "__init__.py"
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def parity(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run the `parity` command."""
        return self._run("-c", "from harness.cli import main; main()", *words, **more)

    def pytest(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run pytest with the plugin, without that of Hypothesis, which takes as long to import as all the others."""
        plugins = ("harness.pytest_plugin", "no:cacheprovider", "no:hypothesispytest")
        return self._run("-m", "pytest", *(word for name in plugins for word in ("-p", name)), *words, **more)

    def command(self, *words: str) -> list[str]:
        """A command line of the project's interpreter."""
        return [sys.executable, *words]

    def _run(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **more,
        )

    def records(self, event: str) -> list[dict[str, Any]]:
        """The records of the latest run."""
        latest = sorted((self.folder / ".parity" / "runs").iterdir())[-1]
        return list(Records(latest).read(event))


def make_project(folder: Path, *, keep: bool = False) -> Project:
    """The toy project, both sides alike, with a cache of its own; `keep` the files of one that is there already."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    found = Project(folder, {**kept, "PARITY_CACHE": str(folder / "cache"), "COLUMNS": "100"})
    _share_compiled(folder)
    if keep:
        return found
    found.write("pyproject.toml", PYPROJECT)
    for side in (1, 2):
        found.write(f"trees/{side}/toy/__init__.py", TOY)
    found.write("probes.py", PROBES)
    return found


def _share_compiled(folder: Path) -> None:
    """One folder for all toy projects of a process: to compile numpy and the harness anew takes most of a short run."""
    of_pytest = (parent for parent in folder.parents if parent.name.startswith(("popen-", "pytest-")))
    root = next(of_pytest, folder.parent)
    for name in ("code", "bytecode"):
        shared, link = root / "compiled" / name, folder / "cache" / name
        shared.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(shared)


@dataclass
class ToyRunner:
    """Runs probes of a file on the toy stacks, in this process."""

    runner: Runner
    file: Path

    def __call__(
        self, probe: str, *, layout: str = "single", limits: Limits | None = None, **parameters: Any
    ) -> Outcome:
        return self.runner.run(make_case(f"{self.file}::{probe}", parameters, layout=layout), limits=limits)

    def run(
        self, probe: str, *, written_by: str = OWN, written_layout: str | None = None, **parameters: Any
    ) -> Outcome:
        """Run a probe that reads what another wrote."""
        reference = f"{self.file}::{probe}"
        return self.runner.run(make_case(reference, parameters, written_by=written_by, written_layout=written_layout))

    def events(self, name: str) -> list[dict[str, Any]]:
        return list(self.runner.records.read(name))


@contextmanager
def running(project: Project, base: str | None = None, preload: Iterable[str] = ()) -> Iterator[ToyRunner]:
    """Warm workers of a project's stacks; what they started is gone afterwards.

    Args:
        base: `locked` for the base environment with torch, which lies in the user's own cache.
        preload: see `Pool`.
    """
    with pytest.MonkeyPatch.context() as patch:
        if base is None:
            patch.setenv("PARITY_CACHE", project.environment["PARITY_CACHE"])
        sides = Selection(root=project.folder, base=base).build(lambda _line: None)
        folder, ledger = new_run_folder(project.folder), load_ledger(project.folder / "none.toml")
        runner = Runner(folder, sides, ledger, os.getpid(), preload=preload)
        try:
            yield ToyRunner(runner, project.probes)
        finally:
            runner.stop()


def summary(text: str) -> str:
    """The summary line of a run's output."""
    return next((line for line in text.splitlines() if " identical · " in line), json.dumps(text[-2000:]))
