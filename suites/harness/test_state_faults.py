"""A fault in what upstream does with states and weights turns its own area red, and no other."""

import pytest
import state_faults
from old_once import OldOnce
from state_faults import AREAS, FAULTS, Fault

from harness.cases import make_case
from harness.compare import Verdict
from harness.observe.globs import matches
from harness.runner import Outcome


def run(seeded: OldOnce, name: str, **parameters: object) -> Outcome:
    return seeded.run(make_case(f"{state_faults.__file__}::{name}", parameters))


@pytest.mark.parametrize("area", AREAS)
def test_without_a_fault_an_area_is_identical(seeded: OldOnce, area: str) -> None:
    outcome = run(seeded, "faulty_state", area=area)
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
@pytest.mark.parametrize("area", AREAS)
def test_a_fault_shows_in_its_own_area_alone(seeded: OldOnce, fault: Fault, area: str) -> None:
    outcome = run(seeded, "faulty_state", area=area, fault=fault.name)
    if area != fault.area:
        assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message
        return
    assert outcome.judged.verdict is Verdict.REGRESSION, outcome.message
    paths = [difference.path for difference in outcome.judged.undeclared]
    assert [glob for glob in fault.shows if not any(matches(glob, path) for path in paths)] == [], outcome.message
    assert [path for path in paths if not any(matches(glob, path) for glob in fault.shows)] == [], outcome.message


def test_every_area_has_a_fault() -> None:
    assert {fault.area for fault in FAULTS} == set(AREAS)


@pytest.mark.parametrize(("skips", "verdict"), [(False, Verdict.IDENTICAL), (True, Verdict.REGRESSION)])
def test_a_key_that_a_load_skips_is_named(seeded: OldOnce, skips: bool, verdict: Verdict) -> None:
    outcome = run(seeded, "faulty_load", skips=skips)
    assert outcome.judged.verdict is verdict, outcome.message
    assert skips == any(
        difference.path.startswith("kept") and "model.module.decoder.final_layernorm.weight" in difference.new
        for difference in outcome.judged.undeclared
    )
