"""A fault in upstream's code turns its own area red, and no other."""

import area_faults
import pytest
from area_faults import AREAS, FAULTS, Fault
from old_once import OldOnce

from harness.cases import make_case
from harness.compare import Verdict
from harness.observe.globs import matches
from harness.runner import Outcome


def run(seeded: OldOnce, area: str, fault: str) -> Outcome:
    return seeded.run(make_case(f"{area_faults.__file__}::faulty_area", {"area": area, "fault": fault}))


@pytest.mark.parametrize("area", AREAS)
def test_without_a_fault_an_area_is_identical(seeded: OldOnce, area: str) -> None:
    outcome = run(seeded, area, "none")
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
@pytest.mark.parametrize("area", [area for area in AREAS if area != "symbols"])
def test_a_fault_shows_in_its_own_area_alone(seeded: OldOnce, fault: Fault, area: str) -> None:
    outcome = run(seeded, area, fault.name)
    if area != fault.area:
        assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message
        return
    assert outcome.judged.verdict is Verdict.REGRESSION, outcome.message
    paths = [difference.path for difference in outcome.judged.undeclared]
    assert [glob for glob in fault.shows if not any(matches(glob, path) for path in paths)] == [], outcome.message


def test_a_symbol_that_takes_less_shows(seeded: OldOnce) -> None:
    """Apart from the others: reading all sources takes seconds, and a change of what a function does is not in them."""
    [fault] = [fault for fault in FAULTS if fault.area == "symbols"]
    test_a_fault_shows_in_its_own_area_alone(seeded, fault, "symbols")


def test_every_area_has_a_fault() -> None:
    assert {fault.area for fault in FAULTS} == set(AREAS)
