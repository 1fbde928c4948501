"""Every verdict of the table, from what two sides gave."""

from dataclasses import replace
from typing import Any

import pytest

from harness.compare import Expectation, Ledger, Side, Verdict, judge
from harness.compare.ledger import Change, Transition
from harness.observe import encode
from harness.observe.exceptions import ObservedException
from harness.observe.observation import EncodedMask, Observation

PINS = {"verl": "1.0"}
BOOM = ObservedException("builtins:ValueError", "boom", "verl.utils:build", False, "")


def observation(
    tree: Any = None,
    *,
    hooks: dict[str, str] | None = None,
    raised: ObservedException | None = None,
    missing: tuple[str, ...] = (),
    masks: tuple[EncodedMask, ...] = (),
) -> Observation:
    return Observation(encode(tree).tree, {}, raised, (), missing, masks, {}, hooks or {}, 0.0)


def side(name: str, *ranks: Observation, fault: str | None = None) -> Side:
    return Side(name, f"stack-{name}", PINS, ranks, fault)


def change(path: str, old: str, new: str, *, unsupported: bool = False) -> Ledger:
    entry = Change(("probe*",), path, old, new, None, "known", "intended", "", unsupported)
    return Ledger((Transition((({"verl": "==1.0"}, {"verl": "==1.0"}),), (entry,)),))


def verdict(old: Observation, new: Observation, ledger: Ledger | None = None, **more: Any) -> tuple[Verdict, str]:
    judged = judge("probe[a]", side("old", old), side("new", new), ledger or Ledger(), **more)
    return judged.verdict, judged.why


def test_equal_trees_are_identical() -> None:
    assert verdict(observation({"a": 1}), observation({"a": 1})) == (Verdict.IDENTICAL, "")


def test_an_undeclared_difference_is_a_regression_that_names_it() -> None:
    assert verdict(observation({"a": 1}), observation({"a": 2})) == (Verdict.REGRESSION, "a: 1 → 2")


def test_a_declared_difference_is_declared_and_one_beside_it_is_not_covered() -> None:
    assert verdict(observation({"a": 1}), observation({"a": 2}), change("a", "1", "2")) == (Verdict.DECLARED, "known")
    assert verdict(observation({"a": 1, "b": 1}), observation({"a": 2, "b": 2}), change("a", "1", "2")) == (
        Verdict.REGRESSION,
        "b: 1 → 2",
    )


def test_a_declared_difference_that_is_gone_is_stale() -> None:
    kind, why = verdict(observation({"a": 1}), observation({"a": 1}), change("a", "1", "2"))
    assert kind is Verdict.STALE
    assert "no longer occurs: a" in why


def test_one_side_that_raises_is_a_regression_unless_declared() -> None:
    text = "ValueError: boom (from verl.utils:build)"
    assert verdict(observation(raised=BOOM), observation({"a": 1})) == (
        Verdict.REGRESSION,
        f"exception: {text} → (absent)",
    )
    declared = change("exception", text, "(absent)")
    assert verdict(observation(raised=BOOM), observation({"a": 1}), declared)[0] is Verdict.DECLARED
    gap = change("exception", text, "(absent)", unsupported=True)
    assert verdict(observation(raised=BOOM), observation({"a": 1}), gap) == (Verdict.UNSUPPORTED, "known")


def test_two_sides_that_fail_alike_are_not_identical() -> None:
    kind, why = verdict(observation(raised=BOOM), observation(raised=BOOM))
    assert kind is Verdict.BOTH_RAISE
    assert "boom" in why


def test_two_sides_that_raise_exactly_what_is_expected_are_unsupported() -> None:
    expected = Expectation("builtins:ValueError", "boo*", "verl.utils:build")
    assert verdict(observation(raised=BOOM), observation(raised=BOOM), expects=expected)[0] is Verdict.UNSUPPORTED
    elsewhere = Expectation("builtins:ValueError", "boo*", "verl.utils:other")
    assert verdict(observation(raised=BOOM), observation(raised=BOOM), expects=elsewhere)[0] is Verdict.BOTH_RAISE


def test_the_ledger_can_declare_what_both_sides_refuse() -> None:
    text = "ValueError: boom (from verl.utils:build)"
    both = observation(raised=BOOM)
    assert verdict(both, both, change("exception", text, text, unsupported=True)) == (Verdict.UNSUPPORTED, "known")
    assert verdict(both, both, change("exception", text, text))[0] is Verdict.BOTH_RAISE
    assert verdict(both, both, change("exception", text, "other", unsupported=True))[0] is Verdict.BOTH_RAISE


def test_a_rank_that_waits_for_one_that_raised_does_not_hide_it() -> None:
    waiting = observation(raised=ObservedException("builtins:RuntimeError", "closed", "harness.probes.x:f", True, ""))
    raised = observation(raised=BOOM)
    judged = judge("probe", side("old", waiting, raised), side("new", observation(1), observation(1)), Ledger())
    assert judged.verdict is Verdict.REGRESSION
    assert "boom" in judged.why


def test_an_exception_of_the_harness_itself_is_broken_even_if_alike() -> None:
    ours = ObservedException("builtins:TypeError", "bad", "harness.workers.lanes:answer", True, "")
    kind, why = verdict(observation(raised=ours), observation(raised=ours))
    assert kind is Verdict.BROKEN
    assert "harness.workers.lanes:answer" in why


def test_a_lost_connection_does_not_hide_why_it_was_lost() -> None:
    told = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:…"
    waiting = observation(raised=ObservedException("builtins:RuntimeError", told, "megatron.core.x:wait", False, ""))
    ours = observation(raised=ObservedException("builtins:IndexError", "out of range", "harness.probes.x:f", True, ""))
    judged = judge("probe", side("old", waiting, ours), side("new", waiting, ours), Ledger())
    assert judged.verdict is Verdict.BROKEN
    assert "harness.probes.x:f" in judged.why


def test_missing_evidence_is_broken_even_if_trees_agree() -> None:
    blind = observation({"a": 1}, missing=("never entered verl.x:f",))
    assert verdict(blind, blind) == (Verdict.BROKEN, "old: no evidence on rank 0: never entered verl.x:f")


def test_agreement_that_the_lane_forces_is_masked_and_named() -> None:
    def forced(own: bool) -> Observation:
        return observation({"a": 1}, masks=(EncodedMask("Config.fusion", own, False),))

    kind, why = verdict(forced(True), forced(False))
    assert kind is Verdict.MASKED
    assert "Config.fusion: True → False" in why
    assert verdict(forced(True), forced(True)) == (Verdict.IDENTICAL, "")


def test_a_lane_that_forces_two_values_compares_two_things() -> None:
    def forced(value: bool) -> Observation:
        return observation({"a": 1}, masks=(EncodedMask("Config.fusion", True, value),))

    assert verdict(forced(True), forced(False))[0] is Verdict.BROKEN


def test_an_expected_refusal_that_no_longer_happens_is_stale() -> None:
    expected = Expectation("builtins:ValueError", "boo*", "verl.utils:build")
    assert verdict(observation(1), observation(1), expects=expected)[0] is Verdict.STALE
    assert verdict(observation(1), observation(raised=BOOM), expects=expected)[0] is Verdict.REGRESSION


def test_every_mask_counts_and_so_does_one_that_a_single_side_has() -> None:
    twice = observation(1, masks=(EncodedMask("C.f", 1, 0), EncodedMask("C.f", 2, 0)))
    other = observation(1, masks=(EncodedMask("C.f", 9, 0), EncodedMask("C.f", 2, 0)))
    assert verdict(twice, other) == (Verdict.MASKED, "the lane forces C.f: 1 → 9")
    assert verdict(observation(1), observation(1, masks=(EncodedMask("C.g", 1, 0),)))[0] is Verdict.MASKED
    assert verdict(observation(1), observation(1, masks=(EncodedMask("C.g", 0, 0),)))[0] is Verdict.IDENTICAL


def test_a_fault_of_a_side_is_broken() -> None:
    judged = judge("probe", side("old", fault="was killed by SIGSEGV"), side("new", observation(1)), Ledger())
    assert (judged.verdict, judged.why) == (Verdict.BROKEN, "old: was killed by SIGSEGV")


def test_a_difference_on_every_rank_is_told_once_and_on_one_rank_with_its_number() -> None:
    same, other = observation({"a": 1, "b": 1}), observation({"a": 2, "b": 1})
    third = observation({"a": 2, "b": 2})
    judged = judge("probe", side("old", same, same), side("new", other, third), Ledger())
    assert [str(found) for found in judged.differences] == ["a: 1 → 2", "rank1: b: 1 → 2"]


def test_a_hook_that_comes_from_elsewhere_is_a_regression_unless_declared() -> None:
    ours, theirs = observation(1, hooks={"hook": "verl:f"}), observation(1, hooks={"hook": "bridge:f"})
    assert verdict(ours, theirs) == (Verdict.REGRESSION, "provenance.hook: 'verl:f' → 'bridge:f'")
    declared = change("provenance.hook", "'verl:f'", "'bridge:f'")
    assert verdict(ours, theirs, declared) == (Verdict.IDENTICAL, "")
    assert verdict(ours, ours, declared)[0] is Verdict.STALE
    assert verdict(observation(1), observation(1), declared)[0] is Verdict.IDENTICAL


def test_what_the_harness_did_on_one_side_only_is_a_difference() -> None:
    plain = observation(1)
    stand_in = replace(
        plain, environment={"stand_ins": [{"replaced": "torch.cuda.sync", "by": "nothing", "reason": ""}]}
    )
    by_hand = replace(plain, environment={"set_by_hand": {"Config.dtype": "float32"}})
    assert verdict(plain, stand_in) == (Verdict.REGRESSION, "stand_in torch.cuda.sync: (absent) → 'nothing'")
    assert verdict(by_hand, plain)[0] is Verdict.REGRESSION
    assert verdict(stand_in, stand_in)[0] is Verdict.IDENTICAL


def test_where_a_side_raised_only_hooks_that_both_had_come_to_are_compared() -> None:
    ours, theirs = observation(hooks={"a": "x", "b": "y"}), observation(raised=BOOM, hooks={"a": "z"})
    judged = judge("probe", side("old", ours), side("new", theirs), Ledger())
    assert [found.path for found in judged.differences] == ["exception", "provenance.a"]


@pytest.mark.parametrize("kind", Verdict)
def test_only_these_verdicts_fail_a_run(kind: Verdict) -> None:
    assert kind.fails == (kind in {Verdict.REGRESSION, Verdict.BOTH_RAISE, Verdict.STALE, Verdict.BROKEN})
