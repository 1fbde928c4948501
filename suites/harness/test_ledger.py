"""The ledger is strict: what it cannot mean is refused with the entry's place."""

from pathlib import Path

import pytest

from harness.compare import Difference, LedgerError, load_ledger
from harness.observe.globs import matches

ENTRY = """
[[transition]]
old = { verl = "==0.7.1" }
new = { verl = "==0.8.0", megatron-core = ">=0.18,<0.19" }
[[transition.change]]
case = "ddp_config[*]"
path = "ddp.grad_reduce_in_fp32"
old = "True"
new = "False"
class = "upstream_bug"
reason = "the helper does not set it"
"""
OLD = {"verl": "0.7.1", "megatron-core": "0.17.1"}
NEW = {"verl": "0.8.0+gabc", "megatron-core": "0.18.2"}


def ledger_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "declared.toml"
    file.write_text(text)
    return file


def test_an_entry_describes_exactly_its_difference(tmp_path: Path) -> None:
    ledger = load_ledger(ledger_file(tmp_path, ENTRY))
    [change] = ledger.changes_for("ddp_config[fsdp,tp2]", OLD, NEW)
    assert change.describes(Difference("ddp.grad_reduce_in_fp32", "changed", "True", "False"))
    assert not change.describes(Difference("ddp.grad_reduce_in_fp32", "changed", "False", "True"))
    assert not change.describes(Difference("ddp.overlap_grad_reduce", "changed", "True", "False"))


@pytest.mark.parametrize(
    ("case", "old", "new"),
    [
        ("provider_config", OLD, NEW),
        ("ddp_config[fsdp]", NEW, OLD),
        ("ddp_config[fsdp]", OLD, {**NEW, "megatron-core": "0.19.2"}),
        ("ddp_config[fsdp]", OLD, {"verl": "0.8.0"}),
        ("ddp_config[fsdp]", OLD, {**NEW, "megatron-core": "0+unknown!"}),
    ],
)
def test_an_entry_is_valid_for_its_cases_and_pins_only(
    tmp_path: Path, case: str, old: dict[str, str], new: dict[str, str]
) -> None:
    assert load_ledger(ledger_file(tmp_path, ENTRY)).changes_for(case, old, new) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[transition]\n", "line 1"),
        ("[transition]\n", "double brackets"),
        ("[[change]]\n", "unknown table 'change'"),
        ('[[transition]]\nold = { verl = "==1" }\n', "transition 1.new must name at least one pin"),
        (ENTRY.replace("==0.7.1", "0.7.1"), "neither a version specifier"),
        (ENTRY.replace("==0.7.1", "commit bc3f3b"), "at least seven digits"),
        (ENTRY.replace('"==0.7.1"', "7"), "neither a version specifier"),
        (ENTRY.replace('reason = "the helper does not set it"', ""), "transition 1: change 1 has no reason"),
        (ENTRY.replace('reason = "the helper does not set it"', 'reason = ""'), "transition 1: change 1 has no reason"),
        (ENTRY.replace("upstream_bug", "whatever"), "class must be one of"),
        (ENTRY.replace('old = "True"\nnew = "False"', ""), "neither old, new nor kind"),
        (ENTRY.replace("ddp_config[*]", "*").replace("ddp.grad_reduce_in_fp32", "*"), "too broad"),
        (ENTRY.replace('old = "True"', "old = true"), "must be text"),
        (ENTRY.replace("ddp.grad_reduce_in_fp32", "*.*"), "accepts any path"),
        (
            ENTRY.replace("ddp.grad_reduce_in_fp32", "exception").replace('"True"', '"*"').replace('"False"', '"*"'),
            "any exception",
        ),
        (ENTRY + 'kind = "chnged"', "kind must be"),
        (ENTRY.replace('case = "ddp_config[*]"', "case = [1]"), "case must be text"),
        (ENTRY.split("[[transition.change]]")[0] + "change = 3", "double brackets"),
        (ENTRY + 'tolerance = "1"', "unknown key 'tolerance'"),
        (ENTRY.split("[[transition.change]]")[0] + "change = [false]", "change 1 must be a table"),
        (ENTRY.replace('path = "ddp.grad_reduce_in_fp32"', "path = []"), "has no path"),
        (ENTRY.replace("[[transition]]", "[[transition]]\nalso = 3"), "transition 1.also must be a list"),
        (
            ENTRY.replace("[[transition]]", '[[transition]]\nalso = [{ old = { verl = "==1" } }]'),
            "also 1.new must name",
        ),
        (ENTRY.replace("[[transition]]", "[[transition]]\nalso = [{ stack = 1 }]"), "unknown key 'stack'"),
    ],
)
def test_a_ledger_that_means_nothing_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = ledger_file(tmp_path, text)
    with pytest.raises(LedgerError) as caught:
        load_ledger(file)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)


COMMIT = "bc3f3bf0ec0959964b10a8809893d3388991026a"


@pytest.mark.parametrize("written", [COMMIT, COMMIT[:12], COMMIT[:9], COMMIT[:7]])
@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("0.8.0.dev0+gbc3f3bf0e", True),
        ("0.8.0.dev0+cu130.gbc3f3bf0e", True),
        ("0.8.0.dev0+gac3f3bf0e", False),
        ("0.8.0.dev0+gbc3f3bf0e.d0123456789", False),
        ("0.8.0.dev0", False),
    ],
)
def test_a_pin_may_be_named_by_its_commit(tmp_path: Path, written: str, version: str, fits: bool) -> None:
    ledger = load_ledger(ledger_file(tmp_path, ENTRY.replace("==0.7.1", f"commit {written}")))
    changes = ledger.changes_for("ddp_config[fsdp]", {**OLD, "verl": version}, NEW)
    assert bool(changes) == fits


ALSO = ENTRY.replace(
    "[[transition.change]]",
    f"""also = [
    {{ old = {{ verl = "commit {COMMIT}" }}, new = {{ verl = "==0.9.1" }} }},
]
[[transition.change]]""",
)


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        ("0.7.1", "0.8.0", True),
        ("0.8.0.dev0+gbc3f3bf0e", "0.9.1", True),
        ("0.7.1", "0.9.1", False),
        ("0.8.0.dev0+gbc3f3bf0e", "0.8.0", False),
    ],
)
def test_a_transition_may_be_valid_between_further_pins(tmp_path: Path, old: str, new: str, fits: bool) -> None:
    ledger = load_ledger(ledger_file(tmp_path, ALSO))
    changes = ledger.changes_for("ddp_config[fsdp]", {**OLD, "verl": old}, {**NEW, "verl": new})
    assert bool(changes) == fits


def test_a_violation_may_be_known_of_further_stacks(tmp_path: Path) -> None:
    text = """
[[consistency]]
stack = { verl = "==0.8.0" }
also = [{ verl = "==0.9.1" }]
[[consistency.violation]]
case = "check"
path = "size"
actual = "1"
class = "intended"
reason = "as it is"
"""
    ledger = load_ledger(ledger_file(tmp_path, text))
    known = {
        version: bool(ledger.violations_for("check", {"verl": version})) for version in ("0.7.1", "0.8.0", "0.9.1")
    }
    assert known == {"0.7.1": False, "0.8.0": True, "0.9.1": True}


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    assert load_ledger(tmp_path / "none.toml").transitions == ()


def test_brackets_are_plain_text_in_globs() -> None:
    assert matches("ddp_config[*]", "ddp_config[fsdp]")
    assert not matches("ddp_config[fsdp]", "ddp_configf")
    assert matches("a?c", "abc")


def test_an_entry_with_several_paths_is_an_entry_for_each(tmp_path: Path) -> None:
    several = ENTRY.replace('"ddp.grad_reduce_in_fp32"', '["ddp.grad_reduce_in_fp32", "ddp.bucket_size"]')
    [transition] = load_ledger(ledger_file(tmp_path, several)).transitions
    assert [change.path for change in transition.changes] == ["ddp.grad_reduce_in_fp32", "ddp.bucket_size"]


def test_a_change_of_one_lane_is_not_expected_on_another(tmp_path: Path) -> None:
    lane = ENTRY.replace("[[transition.change]]", '[[transition.change]]\nlane = "cuda"')
    assert lane != ENTRY
    ledger = load_ledger(ledger_file(tmp_path, lane))
    [of_both] = load_ledger(ledger_file(tmp_path, ENTRY)).on("cpu").transitions
    assert [len(ledger.on(name).transitions[0].changes) for name in ("cpu", "cuda")] == [0, len(of_both.changes)]
    with pytest.raises(LedgerError, match="lane must be cpu or cuda"):
        load_ledger(ledger_file(tmp_path, lane.replace("cuda", "tpu")))
