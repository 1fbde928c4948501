"""Fixtures of the harness's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from old_once import OldOnce
from origin_projects import BAD, GOOD, History, project_of
from toy_project import Project, ToyRunner, make_project, running


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The toy project, both sides alike."""
    return make_project(tmp_path)


@pytest.fixture
def toy_runner(project: Project) -> Iterator[ToyRunner]:
    """Warm workers of the toy project."""
    with running(project) as runner:
        yield runner


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Twelve commits of toy: the ninth brings the change; the sixth and seventh cannot be imported."""
    texts = [GOOD] * 8 + [BAD] * 4
    texts[5] = texts[6] = "import no_such_package\n" + GOOD
    return project_of(tmp_path, texts, ["VALUE = 1\n"])


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldOnce]:
    """The newest release against itself, for faults seeded into upstream's code on the new side."""
    with OldOnce.of("verl-0.9.1", tmp_path_factory.mktemp("seeded")) as runner:
        yield runner


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the comparison detects, from the properties `faults` and `clean` of test_seeded_faults.py."""
    sums = {"faults": (0, 0), "clean": (0, 0)}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, found in getattr(report, "user_properties", []):
                if name in sums:
                    sums[name] = (sums[name][0] + found[0], sums[name][1] + found[1])
    if sums["faults"][1] or sums["clean"][1]:
        terminalreporter.section("detection")
        terminalreporter.line(f"seeded faults detected: {sums['faults'][0]} of {sums['faults'][1]}")
        terminalreporter.line(f"alarms in clean comparisons: {sums['clean'][0]} of {sums['clean'][1]}")
