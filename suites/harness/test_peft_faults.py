"""Every fault seeded into what upstream does with adapters turns the cases that it must red, and no others."""

import re
from collections.abc import Iterable

import peft_faults
import pytest
from old_once import OldOnce
from peft_faults import CASES, FAULTS, Fault

from harness.cases import make_case
from harness.compare import Verdict
from harness.observe.globs import matches
from harness.runner import Outcome

FIELDS = {"lora": 14, "vlm_lora": 17, "canonical_lora": 12, "dora": 9}
"""Type → how many public fields its PEFT object has at least."""


def run(seeded: OldOnce, name: str, **parameters: object) -> Outcome:
    return seeded.run(make_case(f"{peft_faults.__file__}::{name}", parameters))


def cases_of(paths: Iterable[str]) -> set[str]:
    return {re.split("[./]", path)[0] for path in paths}


def test_without_a_fault_both_sides_are_identical(seeded: OldOnce) -> None:
    outcome = run(seeded, "every_case")
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_shows_where_it_must_and_nowhere_else(seeded: OldOnce, fault: Fault) -> None:
    outcome = run(seeded, "every_case", fault=fault.name)
    assert outcome.judged.verdict is Verdict.REGRESSION, outcome.message
    paths = [difference.path for difference in outcome.judged.undeclared]
    assert [glob for glob in fault.shows if not any(matches(glob, path) for path in paths)] == [], outcome.message
    assert cases_of(paths) == cases_of(fault.shows), outcome.message


def test_every_case_has_a_fault_that_shows_in_it() -> None:
    assert cases_of(glob for fault in FAULTS for glob in fault.shows) == {*CASES, "provenance"}


def test_a_refusal_that_is_gone_is_told(seeded: OldOnce) -> None:
    named = "RuntimeError: Found exported HF PEFT adapter"
    assert run(seeded, "export_alone").judged.why.startswith(f"both raise {named}")
    lost = run(seeded, "export_alone", refused=False).judged
    assert lost.verdict is Verdict.BOTH_RAISE
    assert lost.why.startswith(f"old raises {named}")


@pytest.mark.parametrize("peft", FIELDS)
def test_every_field_of_a_peft_object_is_compared(seeded: OldOnce, peft: str) -> None:
    outcome = run(seeded, "each_field_changed", peft=peft)
    names = [*outcome.old.ranks[0].tree["changed"]]
    assert len(names) >= FIELDS[peft]
    assert sorted(found.path.partition("[")[0] for found in outcome.judged.undeclared) == sorted(
        f"changed.{name}.{name}" for name in names
    )
