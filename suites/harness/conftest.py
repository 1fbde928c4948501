"""Fixtures of the harness's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
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
