"""Each label of triage, for a fault seeded into one side, one run of it, or both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.compare import Judged, Ledger, Side, Triage, Verdict, judge, triage, triage_check
from harness.compare.ledger import Change, Transition
from harness.goldens import with_golden
from harness.observe import encode
from harness.observe.exceptions import ObservedException
from harness.observe.observation import Observation, entries_of, load, save

PINS = {"verl": "1.0"}
BOOM = ObservedException("builtins:ValueError", "boom", "verl.utils:build", False, "")
OTHER = replace(BOOM, message="no such option")
OURS = replace(BOOM, ours=True)
NOISE = np.random.default_rng(0).normal(size=(16, 512, 64)).astype(np.float32)
WEIGHT = NOISE[0]


class Bench:
    """Makes sides, and asks what a case of them comes to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def side(self, saw: Any, name: str = "old") -> Side:
        """A side that saw a tree, raised an exception, or gave no answer for a reason (a text)."""
        side = Side(name, name, PINS)
        if isinstance(saw, str):
            return replace(side, fault=saw)
        raised = saw if isinstance(saw, ObservedException) else None
        encoding = encode(None if raised else saw)
        found = Observation(encoding.tree, entries_of(encoding), raised, (), (), (), {}, {}, 0.0)
        self._made += 1
        folder = self._folder / str(self._made)
        save(found, encoding.tensors, folder)
        return replace(side, ranks=[load(folder)])

    def __call__(self, old: list[Any], new: list[Any], ledger: Ledger | None = None) -> tuple[Verdict, Triage | None]:
        """Verdict and label of a case: what each side saw at first, once more, and in further runs of the old one."""
        ours, theirs = [self.side(saw) for saw in old], [self.side(saw, "new") for saw in new]
        first = {"old": replace(ours[0], repeats=[run.ranks for run in ours[2:]]), "new": theirs[0]}
        judged = judge("probe", first["old"], first["new"], ledger or Ledger())
        return judged.verdict, triage("probe", judged, first, {"old": ours[1], "new": theirs[1]})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "verdict", "label"),
    [
        ([{"a": 1}] * 2, [{"a": 1}] * 2, "identical", None),
        ([{"a": 1}] * 2, [{"a": 2}] * 2, "regression", "new"),
        ([{"a": 1}] * 2, [BOOM] * 2, "regression", "new"),
        ([{"a": 1}] * 2, [BOOM, OTHER], "regression", "new"),
        ([OTHER] * 2, [BOOM] * 2, "both_raise", "new"),
        ([BOOM] * 2, [BOOM] * 2, "both_raise", "pre-existing"),
        ([BOOM] * 2, [{"a": 1}] * 2, "regression", "fixed"),
        ([{"a": 1}, {"a": 2}], [{"a": 2}] * 2, "regression", "flaky"),
        ([{"a": 1}] * 2, [{"a": 2}, {"a": 1}], "regression", "flaky"),
        ([{"a": 1, "b": 1}] * 2, [{"a": 2, "b": 2}, {"a": 3, "b": 2}], "regression", "new"),
        ([{"a": 1}] * 2, [BOOM, {"a": 1}], "regression", "flaky"),
        ([BOOM, {"a": 1}], [BOOM] * 2, "both_raise", "flaky"),
        ([BOOM, OTHER], [OTHER] * 2, "both_raise", "flaky"),
        ([{"a": 1}] * 2, ["out of memory"] * 2, "broken", "new"),
        ([{"a": 1}] * 2, ["out of memory", {"a": 1}], "broken", "flaky"),
        (["out of memory"] * 2, ["out of memory"] * 2, "broken", "pre-existing"),
        (["out of memory"] * 2, [{"a": 1}] * 2, "broken", "unknown"),
        (["out of memory"] * 2, ["no answer in 60 s"] * 2, "broken", "unknown"),
        ([{"a": 1}] * 2, [OURS] * 2, "broken", "new"),
    ],
)
def test_values_and_exceptions(bench: Bench, old: list[Any], new: list[Any], verdict: str, label: str | None) -> None:
    assert bench(old, new) == (verdict, label)


def test_a_declared_difference_that_is_gone_was_mended_unless_it_comes_and_goes(bench: Bench) -> None:
    entry = Change(("probe*",), "a", "1", "2", None, "known", "upstream_bug", "", False)
    ledger = Ledger((Transition((({"verl": "==1.0"}, {"verl": "==1.0"}),), (entry,)),))
    assert bench([{"a": 1}] * 2, [{"a": 1}] * 2, ledger) == ("stale", "fixed")
    assert bench([{"a": 1}] * 2, [{"a": 1}, {"a": 2}], ledger) == ("stale", "flaky")
    assert bench([{"a": 1}] * 2, [{"a": 2}] * 2, ledger) == ("declared", None)


def test_tensors_of_a_lane_that_repeats_itself(bench: Bench) -> None:
    other = WEIGHT + (WEIGHT.max() == WEIGHT)
    one, two = {"w": WEIGHT}, {"w": other}
    assert bench([one] * 4, [two] * 2) == ("regression", "new")
    assert bench([one] * 4, [two, one]) == ("regression", "flaky")
    assert bench([one, two, one, one], [two, two]) == ("regression", "flaky")


def test_noise_of_a_lane_that_does_not_repeat_itself_hides_no_new_difference(bench: Bench) -> None:
    noisy = [{"w": WEIGHT * (1 + np.float32(1e-3) * run)} for run in NOISE[1:]]
    worse = [{"w": WEIGHT * (1 + np.float32(1e-1) * run)} for run in NOISE[1:]]
    scaled = [{"w": run["w"] * np.float32(1.1)} for run in noisy]
    assert bench(noisy[:4], noisy[4:6]) == ("within_noise", None)
    assert bench(noisy[:4], scaled[4:6]) == ("regression", "new")
    assert bench(noisy[:4], worse[4:6]) == ("regression", "flaky")


def test_what_only_one_side_has_is_new(bench: Bench) -> None:
    assert bench([{"w": WEIGHT}] * 4, [{"w": WEIGHT, "more": WEIGHT}] * 2) == ("regression", "new")
    assert bench([{"w": WEIGHT, "n": {"a": 1}}] * 4, [{"w": WEIGHT + 1, "n": {"a": 1, "b": 2}}] * 2) == (
        "regression",
        "new",
    )


def test_drift_of_a_golden_is_the_host_and_is_not_asked_again(bench: Bench) -> None:
    sides = {"old": bench.side({"a": 1}), "new": bench.side({"a": 1}, "new")}
    agreed = judge("probe", sides["old"], sides["new"], Ledger())
    moved = list(judge("probe", bench.side({"a": 2}), sides["old"], Ledger()).differences)
    judged = with_golden(agreed, moved, moved)
    assert (judged.verdict, triage("probe", judged, sides, {})) == ("drift", "host")


def test_a_golden_in_the_place_of_the_old_side(bench: Bench) -> None:
    new, again = bench.side({"a": 2}, "new"), bench.side({"a": 3}, "new")
    judged = judge("probe", bench.side({"a": 1}), new, Ledger())
    assert triage("probe", judged, {"new": new}, {"new": new}) == "new"
    assert triage("probe", judged, {"new": new}, {"new": again}) == "flaky"


def test_checks_of_one_stack(bench: Bench) -> None:
    def check(saw: Any) -> tuple[Judged, Side]:
        side = bench.side(saw, "new")
        return judge("probe", bench.side({"a": 1}), side, Ledger()), side

    judged, side = check({"a": 2})
    same, _ = check({"a": 2, "b": 3})
    other, _ = check({"a": 3})
    broken, crashed = check("killed by signal 11")
    assert triage_check("probe", "new", check({"a": 1})[0], side, None, None) is None
    assert triage_check("probe", "new", judged, side, side, None) == "new"
    assert triage_check("probe", "new", judged, side, side, other) == "new"
    assert triage_check("probe", "new", judged, side, side, same) == "pre-existing"
    assert triage_check("probe", "old", judged, side, side, None) == "pre-existing"
    assert triage_check("probe", "verl-0.9.1", judged, side, side, None) == "new"
    assert triage_check("probe", "new", judged, side, bench.side({"a": 1}), same) == "flaky"
    assert triage_check("probe", "new", broken, crashed, crashed, judged) == "new"
    assert triage_check("probe", "new", broken, crashed, crashed, broken) == "pre-existing"


def test_only_two_labels_fail_a_pull_request() -> None:
    assert [label for label in Triage if label.blocks] == ["new", "unknown"]
