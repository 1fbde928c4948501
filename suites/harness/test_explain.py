"""The parts of an explanation, on sides made up for the test."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.bisect.focus import Focus, choose
from harness.cli.origins import SKIP, status_of
from harness.compare import Ledger, Side, judge
from harness.compare.divergence import Divergence, first_divergence
from harness.explain.fields import causing_fields, changed_fields
from harness.explain.minimal import Shows
from harness.explain.pins import guilty_pins
from harness.explain.sources import changed_sources
from harness.observe import encode
from harness.observe.codec import Encoded
from harness.observe.evidence import Entered
from harness.observe.observation import Observation
from harness.observe.trace import Step, TracedTensor


def side(tree: Any = None, **more: Any) -> Side:
    rank = Observation(encode(tree or {}).tree, {}, None, (), (), (), {}, {}, 0.0)
    rank = Observation(**{**vars(rank), **more})
    return Side("attempt", "toy", {}, (rank,))


def focus_on(old: Side, new: Side) -> Focus:
    return choose(judge("case", old, new, Ledger()))


OLD, NEW = side({"total": 1}), side({"total": 10})


def unavailable(reason: str) -> Side:
    return Side("attempt", "toy", {}, unavailable=reason)


def test_check_passes_over_what_lacks_something() -> None:
    lacking = judge("case", OLD, unavailable("no such package"), Ledger())
    assert [status_of(lacking, path) for path in (None, "total")] == [SKIP, SKIP]
    assert status_of(judge("case", OLD, NEW, Ledger()), "total") == 1
    assert status_of(judge("case", OLD, OLD, Ledger()), "total") == 0


def silent(_line: str) -> None:
    """Nobody is told."""


def test_a_pin_that_cannot_be_built_alone_is_not_innocent_of_the_difference() -> None:
    def swapped(pins: frozenset[str]) -> Side:
        return (
            unavailable("cannot be built: no such release") if pins == {"bridge"} else NEW if "bridge" in pins else OLD
        )

    found = guilty_pins("case", OLD, focus_on(OLD, NEW), ["bridge", "core", "verl"], swapped, silent)
    assert found.pins > {"bridge"}
    assert len(found.pins) == 2
    assert found.tried[frozenset({"bridge"})] == (Shows.CANNOT_RUN, "cannot be built: no such release")


@pytest.mark.parametrize(
    ("needed", "named"),
    [
        (("wide",), {"wide"}),
        (("wide", "deep"), {"wide", "deep"}),
        (("nothing",), set()),
    ],
)
def test_fields_are_a_cause_if_setting_them_back_restores_parity(needed: tuple[str, ...], named: set[str]) -> None:
    before: dict[str, Encoded] = {"wide": 1, "deep": 1, "same": 1, "gone": 1}
    changed = changed_fields(before, {"wide": 2, "deep": 2, "same": 1, "more": 1})
    assert changed == {"wide": (1, 2), "deep": (1, 2)}

    def restored(values: Any) -> Side:
        return OLD if all(values.get(name) == 1 for name in needed) else NEW

    found = causing_fields("case", OLD, focus_on(OLD, NEW), changed, restored, silent)
    assert found.fields == named
    assert found.changed == {"wide": ("1", "2"), "deep": ("1", "2")}


def traced(value: str) -> Side:
    one = TracedTensor("float32", (1,), "same")
    return side({"total": value}, trace=(Step("decoder", "forward", (one,), (TracedTensor("float32", (1,), value),)),))


def watching(old: dict[str, str], new: dict[str, str]) -> Callable[[str], tuple[Side, Side]]:
    def watched(module: str) -> tuple[Side, Side]:
        assert module == "decoder"
        return side(environment={"sources": old}), side(environment={"sources": new})

    return watched


def parting(old: Side, new: Side) -> Divergence:
    return first_divergence([rank.trace for rank in old.ranks], [rank.trace for rank in new.ranks])


def test_the_files_entered_within_the_first_module_that_diverges_are_compared() -> None:
    old, new = traced("a"), traced("b")
    files = {"mlp.py": "1", "same.py": "1", "left.py": "1"}, {"mlp.py": "2", "same.py": "1", "come.py": "1"}
    found = changed_sources(parting(old, new), old, new, watching(*files))
    assert (found.where, found.changed) == ("decoder", ("come.py", "left.py", "mlp.py"))


def test_without_a_module_the_functions_that_must_be_entered_are_compared() -> None:
    def entered(digest: str) -> Side:
        file = f"/overlays/{digest}/toy/build.py"
        return side({"total": digest}, entered=(Entered("toy.build:make", file, digest),))

    old, new = entered("1"), entered("2")
    found = changed_sources(parting(old, new), old, new, watching({}, {}))
    assert found.changed == ("toy/build.py",)
