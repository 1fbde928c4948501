"""Every fault seeded into what upstream does with adapters is found, and turns nothing else red."""

import os
from collections.abc import Iterator

import peft_faults
import pytest
from peft_faults import FAULTS
from upstream_faults import Fault

from harness.cases import make_case
from harness.compare import Verdict, load_ledger
from harness.observe.globs import matches
from harness.runner import Outcome, Runner, new_run_folder
from harness.selection import Selection

STACK = "verl-0.8.0"
TYPES = {"lora": 14, "vlm_lora": 17, "canonical_lora": 12, "dora": 9}
"""Type → how many public fields its PEFT object has at least."""
CLEAN = sorted({(fault.probe, tuple(fault.parameters.items())) for fault in FAULTS if fault.verdict == "regression"})


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    sides = Selection(old=STACK, new=STACK).build(lambda _line: None)
    folder = tmp_path_factory.mktemp("peft")
    found = Runner(new_run_folder(folder), sides, load_ledger(folder / "none.toml"), os.getpid())
    try:
        yield found
    finally:
        found.stop()


def compared(runner: Runner, probe: str, **parameters: object) -> Outcome:
    return runner.run(make_case(f"{peft_faults.__file__}::{probe}", parameters))


@pytest.mark.parametrize("peft", TYPES)
def test_every_field_of_a_peft_object_is_compared(runner: Runner, peft: str) -> None:
    outcome = compared(runner, "each_field_changed", peft=peft)
    names = [*outcome.old.ranks[0].tree["changed"]]
    assert len(names) >= TYPES[peft]
    assert sorted(found.path.partition("[")[0] for found in outcome.judged.undeclared) == sorted(
        f"changed.{name}.{name}" for name in names
    )


@pytest.mark.parametrize(("probe", "parameters"), CLEAN)
def test_without_a_fault_both_sides_are_identical(
    runner: Runner, probe: str, parameters: tuple[tuple[str, object], ...]
) -> None:
    outcome = compared(runner, probe, **dict(parameters))
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found_and_named(runner: Runner, fault: Fault) -> None:
    outcome = compared(runner, fault.probe, fault=fault.name, **fault.parameters)
    judged = outcome.judged
    assert judged.verdict == fault.verdict, outcome.message
    if judged.verdict is not Verdict.REGRESSION:
        assert fault.shows[0] in judged.why
        return
    paths = [difference.path for difference in judged.undeclared]
    assert [glob for glob in fault.shows if not any(matches(glob, path) for path in paths)] == [], outcome.message
    allowed = (*fault.shows, *fault.also)
    assert [path for path in paths if not any(matches(glob, path) for glob in allowed)] == [], outcome.message
