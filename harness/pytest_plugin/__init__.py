"""The pytest plugin: options that choose the sides, the `parity` fixture, and the verdicts in the summary.

The run's main process owns the stack workers. Under pytest-xdist every process shares them through the run's folder.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.pytest_plugin.fixtures import Consistency, Parity, consistency, parity
from harness.pytest_plugin.options import pytest_addoption, pytest_cmdline_main
from harness.pytest_plugin.run import ParityPlugin

__all__ = ["Consistency", "Parity", "consistency", "parity", "pytest_addoption", "pytest_cmdline_main"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of self-consistency runs once for each stack of the run."""
    if "consistency" not in metafunc.fixturenames:
        return
    plugin: Any = metafunc.config.pluginmanager.get_plugin("parity-run")
    marker = metafunc.definition.get_closest_marker("stacks")
    stacks = plugin.stacks(marker.args) if marker else plugin.roles
    metafunc.parametrize("consistency", stacks, indirect=True, scope="function")
    if "writer" in metafunc.fixturenames:
        metafunc.parametrize("writer", stacks, scope="function")


def pytest_configure(config: pytest.Config) -> None:
    """Give this process its part of the run, and register what tests may be marked with."""
    config.addinivalue_line("markers", "self_consistency: judges one stack, with no second one to compare")
    config.addinivalue_line("markers", "stacks(name, …): judges these stacks besides the run's, and lets them write")
    config.pluginmanager.register(ParityPlugin(config), "parity-run")
