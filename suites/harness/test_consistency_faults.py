"""Every check of one stack finds a fault of its kind that is seeded into upstream's code inside a worker."""

import os
from collections.abc import Iterator

import consistency_faults
import pytest
from consistency_faults import FAULTS, Fault

from harness.cases import make_check
from harness.compare import Verdict, load_ledger
from harness.observe.globs import matches
from harness.runner import Runner, new_run_folder
from harness.selection import Selection
from harness.workers.protocol import Limits

STACK = "verl-0.9.1"
LIMITS = Limits(seconds=600)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    sides = Selection(old=STACK, new=STACK).build(lambda _line: None)
    folder = tmp_path_factory.mktemp("consistency")
    made = Runner(new_run_folder(folder), sides, load_ledger(folder / "none.toml"), os.getpid(), LIMITS)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def clean() -> dict[str, set[tuple[str, str]]]:
    return {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found(runner: Runner, clean: dict[str, set[tuple[str, str]]], fault: Fault) -> None:
    without = make_check(fault.check, fault.parameters, fault.layout)
    if without.id not in clean:
        judged = runner.check(without, "new").judged
        assert judged.verdict in (Verdict.IDENTICAL, Verdict.REGRESSION), judged.why
        clean[without.id] = {(found.path, found.new) for found in judged.undeclared}
    probe = "faulty_read" if without.probe.reads else "faulty_check"
    case = make_check(f"{consistency_faults.__file__}::{probe}", {"fault": fault.name}, fault.layout)
    outcome = runner.check(case, "new")
    assert outcome.judged.verdict is Verdict.REGRESSION, outcome.message
    found = {(difference.path, difference.new) for difference in outcome.judged.undeclared} - clean[without.id]
    assert any(matches(fault.shows, path) for path, _ in found), outcome.message


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
