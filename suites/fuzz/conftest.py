"""Fixtures of the fuzzers: the profile that was chosen, and conversations with stacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from conversation import Stacks
from fuzzing import PROFILES, Fuzz

from harness.report import Records
from harness.workers.pool import Pool


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz", "fuzzing")
    group.addoption("--fuzz", choices=PROFILES, default="ci", help="how long to look (default: ci)")
    group.addoption(
        "--write-examples",
        action="store_true",
        help="write the smallest example of every class of difference to suites/fuzz/examples/, then check them",
    )
    group.addoption("--minutes", type=float, default=10.0, help="time of the profile deep for all fuzzers together")


@pytest.fixture(scope="session")
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """The profile that was chosen."""
    fuzzers = [item for item in request.session.items if "fuzz" in getattr(item, "fixturenames", ())]
    seconds = 60 * request.config.getoption("minutes", 10.0) / len(fuzzers)
    database = request.config.rootpath / ".parity" / "hypothesis"
    return Fuzz(request.config.getoption("fuzz", "ci"), seconds, database)


@pytest.fixture(scope="session")
def quick(fuzz: Fuzz) -> Fuzz:
    """What a push draws, whatever profile was chosen, and nothing shrunk: a seeded fault is to be found by that."""
    return replace(fuzz, profile="ci", shrink=False)


@pytest.fixture(scope="session")
def stacks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """Stacks in workers of the fuzzers alone: while a conversation goes on, a worker imports nothing for others."""
    plugin = request.config.pluginmanager.get_plugin("parity-run")
    pool = Pool(plugin.folder / "fuzzed", "cpu", plugin.owner, Records(plugin.folder).write)
    opened = Stacks(pool, tmp_path_factory.mktemp("conversations"))
    try:
        yield opened
    finally:
        opened.close()
        if plugin.owner == os.getpid():
            pool.stop()  # else they end with the run, whose other processes may need them
