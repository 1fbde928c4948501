"""The whole chain, from upstream's code in a worker to the verdict: every fault seeded into that code is found."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import upstream_faults
from old_once import OldOnce
from upstream_faults import FAULTS, Fault

from harness.cases import make_case
from harness.compare import Verdict
from harness.observe.globs import matches
from harness.runner import Outcome, Runner

Record = Callable[[str, Any], None]
STACK = "verl-0.8.0"
CLEAN = sorted({(fault.probe, fault.layout, tuple(fault.parameters.items())) for fault in FAULTS})


@dataclass
class Chain:
    """Runs probes on one stack, against itself."""

    runner: Runner

    def __call__(self, reference: str, layout: str, /, **parameters: Any) -> Outcome:
        return self.runner.run(make_case(reference, parameters, layout=layout))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    both = frozenset(fault.name for fault in FAULTS if fault.both)
    with OldOnce.of(STACK, tmp_path_factory.mktemp("upstream"), both=both) as runner:
        yield Chain(runner)


@pytest.mark.parametrize(("probe", "layout", "parameters"), CLEAN)
def test_without_a_fault_both_sides_are_identical(
    chain: Chain, probe: str, layout: str, parameters: tuple[tuple[str, Any], ...]
) -> None:
    outcome = chain(f"{upstream_faults.__file__}::{probe}", layout, **dict(parameters))
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found_and_named(chain: Chain, fault: Fault, record_property: Record) -> None:
    reference = f"{upstream_faults.__file__}::{fault.probe}"
    outcome = chain(reference, fault.layout, fault=fault.name, **fault.parameters)
    judged = outcome.judged
    found = judged.verdict.fails
    record_property("faults", (int(found), 1))
    assert judged.verdict == fault.verdict, outcome.message
    if judged.verdict is not Verdict.REGRESSION:
        [reason] = fault.shows
        assert reason in judged.why
        return
    paths = [difference.path for difference in judged.undeclared]
    assert [glob for glob in fault.shows if not any(matches(glob, path) for path in paths)] == [], outcome.message
    allowed = (*fault.shows, *fault.also)
    assert [path for path in paths if not any(matches(glob, path) for glob in allowed)] == [], outcome.message
    assert judged.why.startswith(f"{paths[0]}: ")
    assert fault.first in judged.why


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
