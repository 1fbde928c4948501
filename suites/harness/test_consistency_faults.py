"""Every check of one stack finds a fault of its kind that is seeded into upstream's code inside a worker."""

import consistency_faults
import pytest
from consistency_faults import FAULTS, Fault
from old_once import OldOnce

from harness.cases import make_check
from harness.compare import Verdict
from harness.observe.globs import matches


@pytest.fixture(scope="module")
def clean() -> dict[str, set[tuple[str, str]]]:
    return {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found(seeded: OldOnce, clean: dict[str, set[tuple[str, str]]], fault: Fault) -> None:
    without = make_check(fault.check, fault.parameters, fault.layout)
    if without.id not in clean:
        judged = seeded.check(without, "new").judged
        assert judged.verdict in (Verdict.IDENTICAL, Verdict.REGRESSION), judged.why
        clean[without.id] = {(found.path, found.new) for found in judged.undeclared}
    probe = "faulty_read" if without.probe.reads else "faulty_check"
    case = make_check(f"{consistency_faults.__file__}::{probe}", {"fault": fault.name}, fault.layout)
    outcome = seeded.check(case, "new")
    assert outcome.judged.verdict is Verdict.REGRESSION, outcome.message
    found = {(difference.path, difference.new) for difference in outcome.judged.undeclared} - clean[without.id]
    assert any(matches(fault.shows, path) for path, _ in found), outcome.message


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
