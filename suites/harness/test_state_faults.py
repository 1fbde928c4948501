"""Every fault seeded into checkpoints, quantized states and exports is found, and turns nothing else red."""

import os
from collections.abc import Iterator

import pytest
import state_faults
from state_faults import FAULTS
from upstream_faults import Fault

from harness.cases import make_case
from harness.compare import Verdict, load_ledger
from harness.observe.globs import matches
from harness.runner import Outcome, Runner, new_run_folder
from harness.selection import Selection

STACK = "verl-0.8.0"
CLEAN = sorted({(fault.probe, tuple(fault.parameters.items())) for fault in FAULTS})


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    sides = Selection(old=STACK, new=STACK).build(lambda _line: None)
    folder = tmp_path_factory.mktemp("state")
    found = Runner(new_run_folder(folder), sides, load_ledger(folder / "none.toml"), os.getpid())
    try:
        yield found
    finally:
        found.stop()


def compared(runner: Runner, probe: str, **parameters: object) -> Outcome:
    return runner.run(make_case(f"{state_faults.__file__}::{probe}", parameters))


@pytest.mark.parametrize(("probe", "parameters"), CLEAN)
def test_without_a_fault_both_sides_are_identical(
    runner: Runner, probe: str, parameters: tuple[tuple[str, object], ...]
) -> None:
    outcome = compared(runner, probe, **dict(parameters))
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found_and_named(runner: Runner, fault: Fault) -> None:
    outcome = compared(runner, fault.probe, fault=fault.name, **fault.parameters)
    assert outcome.judged.verdict is Verdict.REGRESSION, outcome.message
    paths = [difference.path for difference in outcome.judged.undeclared]
    assert [glob for glob in fault.shows if not any(matches(glob, path) for path in paths)] == [], outcome.message
    assert [path for path in paths if not any(matches(glob, path) for glob in fault.shows)] == [], outcome.message
