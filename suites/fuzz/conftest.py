"""Fixtures of the fuzzers: the profile that was chosen, and conversations with stacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conversation import PROBES, Stacks
from fuzzing import PROFILES, Fuzz

from harness.report import Records
from harness.workers.pool import Pool


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz", "fuzzing")
    group.addoption("--fuzz", choices=PROFILES, default="ci", help="how long to look (default: ci)")
    group.addoption(
        "--write-examples",
        action="store_true",
        help="keep the smallest example of every class of difference in suites/fuzz/examples/, then check them; "
        "says which files are new, changed or gone",
    )
    group.addoption("--minutes", type=float, default=10.0, help="time of the profile deep for all fuzzers together")


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Iterator[Fuzz]:
    """The profile that was chosen; the time of `deep` is shared by all tests that ask for it."""
    fuzzers = [item for item in request.session.items if "fuzz" in getattr(item, "fixturenames", ())]
    seconds = 60 * request.config.getoption("minutes", 10.0) / len(fuzzers)
    database = request.config.rootpath / ".parity" / "hypothesis"
    chosen = Fuzz(request.config.getoption("fuzz", "ci"), seconds, database)
    yield chosen
    request.node.user_properties.append(("drawn", dict(chosen.drawn)))


@pytest.fixture
def quick(tmp_path: Path) -> Fuzz:
    """What a push draws, whatever was chosen, and without making what is found smaller."""
    return Fuzz("ci", 0.0, tmp_path, shrink=False)


@pytest.fixture
def changed_files(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Lines that the end of the run shows, of files that a test has changed."""
    lines: list[str] = []
    yield lines
    request.node.user_properties.append(("changed", lines))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many batches the fuzzers have drawn and thrown away, and which files `--write-examples` has changed."""
    reports = [each for listed in terminalreporter.stats.values() for each in listed if _is_of_an_ended_test(each)]
    properties = [each for report in reports for each in report.user_properties]
    drawn = [value for name, value in properties if name == "drawn"]
    if drawn:
        valid, invalid = (sum(each.get(status, 0) for each in drawn) for status in ("valid", "invalid"))
        terminalreporter.write_line(
            f"{len(drawn)} fuzzers drew {valid} batches or examples, and {invalid} more in vain"
        )
    changed = [line for name, lines in properties if name == "changed" for line in lines]
    if terminalreporter.config.getoption("write_examples"):
        terminalreporter.write_line("\n".join(changed or ["no example has changed"]))


def _is_of_an_ended_test(report: Any) -> bool:
    return isinstance(report, pytest.TestReport) and report.when == "teardown"


@pytest.fixture(scope="session")
def stacks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """Stacks in workers of the fuzzers alone: while a conversation goes on, a worker imports nothing for others."""
    plugin = request.config.pluginmanager.get_plugin("parity-run")
    pool = Pool(plugin.folder / "fuzzed", "cpu", plugin.owner, Records(plugin.folder).write, preload=PROBES)
    opened = Stacks(pool, tmp_path_factory.mktemp("conversations"))
    try:
        yield opened
    finally:
        opened.close()
        if plugin.owner == os.getpid():
            pool.stop()  # else they end with the run, whose other processes may need them
