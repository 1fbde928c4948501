"""Reports of runs: Markdown within its limits, JUnit, JSON, the terminal in 80 columns, pins with links."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from recorded_runs import HOSTILE, TENSOR, case, pin, regression, view, write_run
from rich.console import Console
from stacks_support import git
from toy_project import PYPROJECT

from harness.report import (
    RunView,
    json_report,
    junit_report,
    latest_cases,
    markdown_report,
    print_regressions,
    print_run,
    print_summary,
    read_run,
)
from harness.report.markdown import COMMENT, STICKY, SUMMARY
from harness.report.pins import moved_pins
from harness.stacks import StackUsageError, load_settings
from harness.stacks.settings import Source

DIVERGENCE = {"why": "first diverges in decoder.layers.1.mlp (forward)", "module": "decoder.layers.1.mlp"}
CONFIGS = [
    {"field": "provider.activation_new", "old": "(absent)", "new": "1"},
    {"field": "provider.gated_linear_unit", "old": "True", "new": "False"},
    {"field": "provider.vocab_size", "old": "1", "new": "2"},
]


def test_markdown_tells_verdict_pins_findings_and_commands(tmp_path: Path) -> None:
    diverging = regression(
        "step[bfloat16]",
        ("grad_norm", "8.5", "8.6"),
        divergence={**DIVERGENCE, "phase": "forward"},
        configs=CONFIGS,
        tensors=[TENSOR],
    )
    run = view(tmp_path, case("config"), diverging, case("gpu", "not_run", why="needs the cuda lane"))
    text = markdown_report(run)
    assert text.startswith(f"{STICKY}\n## ❌ parity FAILS: 1 regression in 3 cases\n")
    assert "| verl | `0.7.1` | `0.8.0` |" in text
    assert "### 1. regression: `step[bfloat16]`" in text
    assert "First diverges in decoder.layers.1.mlp (forward)." in text
    assert "@@ grad_norm @@\n- 8.5\n+ 8.6" in text
    assert "20 times what the noise floor allows" in text
    assert "| `provider.gated_linear_unit` | `True` | `False` |" in text
    assert "vocab_size" not in text
    bisect = "parity bisect 'step[bfloat16]' --axis verl --good 0.7.1 --bad 0.8.0 --stack verl-1"
    assert f"parity compare step[bfloat16]\nparity explain step[bfloat16]\n{bisect}" in text
    assert "| needs the cuda lane | 1 |" in text


def test_a_run_that_passes_says_so_first(tmp_path: Path) -> None:
    run = view(tmp_path, case("config"))
    assert "## ✅ parity PASSES: nothing to act on in 1 case" in markdown_report(run)
    assert run.verdict_line == "PASSES: nothing to act on in 1 case"


@pytest.mark.parametrize(
    ("cases", "exit_code", "told"),
    [
        ([case("a", "not_run", why="no GPU")], 1, "FAILS: none of 1 case ran"),
        ([case("a")], 3, "FAILS with exit status 3: no case does, something else did"),
        ([case("a", "broken", why="old: crashed")], 1, "FAILS: 1 broken in 1 case"),
    ],
)
def test_a_run_that_fails_says_why(tmp_path: Path, cases: list[dict[str, object]], exit_code: int, told: str) -> None:
    assert view(tmp_path, *cases, exit_code=exit_code).verdict_line == told


def test_what_triage_excuses_comes_last_and_does_not_fail_the_run(tmp_path: Path) -> None:
    known = regression("a_step", ("norm", "1", "2"), triage="pre-existing")
    passing = view(tmp_path / "passing", known, exit_code=0)
    assert passing.verdict_line == "PASSES: nothing new; 1 regression in 1 case"
    assert "### 1. regression (pre-existing): `a_step`" in markdown_report(passing)
    failing = view(tmp_path / "failing", known, regression("z_step", ("norm", "1", "2"), triage="new"))
    assert [found.label for found in failing.findings] == ["regression (new)", "regression (pre-existing)"]
    assert "triage: 1 new · 1 pre-existing" in printed(failing, 80)


def many_failures(count: int) -> list[dict[str, object]]:
    return [
        regression(f"probe[{number}]", *((f"field_{item}", f"{number}" * 40, "x" * 200) for item in range(8)))
        for number in range(count)
    ]


def test_markdown_is_cut_to_what_github_shows_and_says_what_it_cut(tmp_path: Path) -> None:
    run = view(tmp_path, *many_failures(1500))
    comment, summary = markdown_report(run, COMMENT), markdown_report(run, SUMMARY)
    assert 50_000 < len(comment) <= COMMENT
    assert 900_000 < len(summary.encode()) <= SUMMARY
    for text in (comment, summary):
        assert "FAILS: 1500 regression in 1,500 cases" in text
        assert "| **all** | **1500** |" in text
        assert "> Cut, because GitHub shows no more: " in text
    assert " findings of 1500" in comment.splitlines()[-1]
    assert "the details of " in summary.splitlines()[-1]
    assert "Cut" not in markdown_report(view(tmp_path / "few", *many_failures(3)), COMMENT)


def test_hostile_texts_stay_text_in_markdown(tmp_path: Path) -> None:
    run = view(
        tmp_path,
        regression(f"case{HOSTILE}", (HOSTILE, HOSTILE, HOSTILE), configs=[{"field": HOSTILE, "old": "", "new": ""}]),
        case("skipped", "not_run", why=HOSTILE),
        case("silent", "broken", why=HOSTILE, sides=[{"side": "old", "output": f"```\n{HOSTILE}"}]),
    )
    html = MarkdownIt("gfm-like", {"linkify": False}).render(markdown_report(run))
    assert "alert(1)" in html
    assert "<script" not in html
    assert "<img" not in html
    page = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown_report(run))
    assert "<script" not in page
    assert "<img" not in page


def test_cases_that_fail_alike_are_one_finding(tmp_path: Path) -> None:
    same = ("exception", "(absent)", "ValueError: no")
    run = view(
        tmp_path,
        regression("probe[long,tp2]", same),
        regression("probe", same),
        regression("other", ("size", "1", "2")),
        case("crash", "broken", why="new: rank 0 died"),
    )
    assert [(found.case["case"], found.alike) for found in run.findings] == [
        ("crash", ()),
        ("probe", ("probe[long,tp2]",)),
        ("other", ()),
    ]
    assert run.findings[0].commands == {"again": "parity compare crash"}


def test_a_finding_tells_config_fields_that_changed_first_and_tensors_of_another_dtype(tmp_path: Path) -> None:
    kinds = {**TENSOR, "needed": None, "message": "gradients/w: different\n  bfloat16[64] → float32[64]"}
    diverging = {**DIVERGENCE, "phase": "forward"}
    wrong = regression("step", ("gradients/w", "a", "b"), divergence=diverging, configs=CONFIGS, tensors=[kinds])
    [found] = view(tmp_path, wrong).findings
    assert [row["field"] for row in found.config_rows[0]] == ["provider.gated_linear_unit", "provider.activation_new"]
    assert found.distances == ["gradients/w: bfloat16[64] → float32[64]"]
    assert found.differences == []


def test_junit_tells_verdicts_and_where_sides_part(tmp_path: Path) -> None:
    run = view(
        tmp_path,
        case("config"),
        regression("step[tp2]", ("norm", "1", "2"), divergence={**DIVERGENCE, "phase": "forward"}),
        case("crash", "broken", why=HOSTILE, sides=[{"side": "old", "output": HOSTILE}]),
        case("gpu", "not_run", why="no GPU"),
    )
    root = ElementTree.fromstring(junit_report(run))
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("4", "1", "1", "1")
    suite = next(found for found in root if found.get("name") == "step")
    assert {item.get("name"): item.get("value") for item in suite.iterfind("properties/*")}["verl"] == "0.7.1 → 0.8.0"
    [step] = suite.iterfind("testcase")
    properties = {item.get("name"): item.get("value") for item in step.iterfind("properties/*")}
    assert properties == {
        "verdict": "regression",
        "first_difference": "norm: 1 → 2",
        "first_divergence": "decoder.layers.1.mlp (forward)",
        "command": "parity compare step[tp2]",
    }
    assert step.find("failure") is not None
    assert root.find(".//testcase[@name='gpu']/skipped") is not None


def test_junit_excuses_what_the_run_excuses(tmp_path: Path) -> None:
    size = ("size", "1", "2")
    cases = [
        *(regression(label, size, triage=label) for label in ("new", "unknown", "pre-existing", "flaky")),
        case("moved", "drift", triage="host"),
    ]
    strict, lenient = (
        ElementTree.fromstring(junit_report(view(tmp_path / name, *cases, options=options)))
        for name, options in (("strict", {"strict_goldens": True}), ("lenient", {"only_new": True}))
    )
    totals = [[root.get(name) for name in ("failures", "errors", "skipped")] for root in (strict, lenient)]
    assert totals == [["5", "0", "0"], ["2", "0", "2"]]
    excused = lenient.find(".//testcase[@name='flaky']/skipped")
    assert excused is not None
    assert excused.attrib == {"type": "regression", "message": "flaky: size: 1 → 2"}
    assert not view(tmp_path / "unfinished", cases[2], options={"only_new": True}, finished=False).fails


def test_json_is_for_scripts(tmp_path: Path) -> None:
    run = view(tmp_path, case("config"), regression(HOSTILE, ("size", "1", "2")))
    document = json.loads(json_report(run))
    assert document["fails"] is True
    assert document["counts"]["regression"] == 1
    assert document["moved"][0]["distribution"] == "verl"
    assert [found["case"] for found in document["findings"]] == [HOSTILE]
    assert "sides" not in document["cases"][0]


def printed(
    run: RunView, width: int, show: Callable[..., None] = print_run, *, terminal: bool = False, **how: bool
) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, no_color=True, highlight=False
    )
    show(run, console, **how)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


VERDICTS = ("identical", "within_noise", "declared", "masked", "unsupported", "drift", "not_run", "stale", "broken")


def test_the_terminal_is_honest_in_80_columns(tmp_path: Path) -> None:
    run = view(tmp_path, *(case(f"a_rather_long_area_name[{verdict}]", verdict) for verdict in VERDICTS))
    lines = printed(run, 80, print_summary)
    narrow = [line for line in lines[:-2] if "·" not in line]
    assert all(len(line) <= 80 for line in narrow)
    words = " ".join(" ".join(narrow).split())
    assert "1 identical, 1 within_noise, 1 declared, 1 masked, 1 unsupported" in words
    wide = printed(run, 200, print_summary)
    assert wide[0].split() == ["area", *(name for name in VERDICTS), "unexplained"]


def test_the_terminal_starts_with_the_verdict_and_folds_what_is_well(tmp_path: Path) -> None:
    wrong = regression("step[tp2]", ("norm", "1", "2"), divergence={**DIVERGENCE, "phase": "forward"}, configs=CONFIGS)
    run = view(tmp_path, wrong, *(case(f"config[{number}]") for number in range(100)))
    lines = printed(run, 80)
    assert lines[0] == "FAILS: 1 regression in 101 cases"
    assert "   first diverges in decoder.layers.1.mlp (forward)" in lines
    assert "   norm: 1 → 2" in lines
    assert "     provider.gated_linear_unit: True → False" in lines
    assert "   bisect  parity bisect 'step[tp2]' --axis verl --good 0.7.1 --bad 0.8.0 --stack verl-1" in lines
    assert not any("config[7]" in line for line in lines)
    assert any("config[7]" in line for line in printed(run, 80, all_cases=True))


def test_ids_of_cases_stay_whole(tmp_path: Path) -> None:
    long = f"adapter_checkpoint[{'x' * 90},tp2]"
    run = view(tmp_path, case("config", why="w" * 100), case(long, "declared", why="meant"))
    piped = printed(run, 80, all_cases=True)
    assert f"{long}  declared         0.50  meant" in piped
    assert f"{'config':<{len(long)}}  identical        0.50  {'w' * 100}" in piped
    shown = printed(run, 80, all_cases=True, terminal=True)
    place = shown.index(long)
    assert shown[place + 1] == f"{'':42}declared      meant"
    assert f"{'config':<40}  identical     {'w' * 23}…" in shown


def test_known_regressions_are_listed_with_what_they_came_to(tmp_path: Path) -> None:
    records = write_run(tmp_path, [case("config"), regression(f"step[{'x' * 90}]", ("norm", "1", "\x1b[2J"))])
    for name, found in (("K02", f"step[{'x' * 90}]"), ("K01", "config"), ("K03", "never ran")):
        records.write("regression", {"ids": [name], "case": found})
    console = Console(file=io.StringIO(), width=80, no_color=True, highlight=False)
    print_regressions(records, latest_cases(records), console)
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split() for line in said[2:]] == [
        ["K01", "config", "identical"],
        ["K02", f"step[{'x' * 90}]", "regression:", "norm:", "1", "→", r"\x1b[2J"],
    ]


def test_where_the_time_went(tmp_path: Path) -> None:
    records = write_run(tmp_path, [case("config"), case("step"), case("gpu", "not_run")])
    for stack, seconds in (("verl-1", 30.0), ("verl-2", 20.0), ("verl-2", 4.0)):
        records.write("imported", {"stack": stack, "seconds": seconds, "modules": 1})
    assert read_run(records).took.endswith("min (imports 30 s, cases 0 s, waiting and comparison 1 s)")
    assert view(tmp_path / "unfinished", case("config"), finished=False).took == ""


def test_pins_link_to_what_lies_between_and_count_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for version in ("0.7.1", "0.7.2", "0.8.0"):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", version)
        git(tmp_path, "tag", f"v{version}")
    head = git(tmp_path, "rev-parse", "HEAD")
    sources = {"verl": Source("https://example.org/verl", "v{version}")}
    git_pin = {**pin("verl", "0.8.0"), "kind": "git", "commit": head}
    moves = [
        (pin("verl", "0.7.1"), pin("verl", "0.8.0")),
        (pin("verl", "0.7.2"), git_pin),
        (pin("verl", "0.7.2"), {**git_pin, "kind": "path", "dirty": True}),
    ]
    found = [moved_pins({"verl": old}, {"verl": new}, sources, {"verl": tmp_path})[0] for old, new in moves]
    assert [(pin.link, pin.commits) for pin in found] == [
        ("https://example.org/verl/compare/v0.7.1...v0.8.0", 2),
        (f"https://example.org/verl/compare/v0.7.2...{head}", 1),
        (None, None),
    ]
    assert [pin.new for pin in found] == ["0.8.0", f"0.8.0 ({head[:9]})", f"0.8.0 ({head[:9]}, a path, dirty)"]
    assert moved_pins({"verl": git_pin}, {"verl": git_pin}, sources, {}) == []
    [alone] = moved_pins({}, {"verl": git_pin}, {}, {"verl": tmp_path / "no clone"})
    assert (alone.old, alone.link, alone.commits) == ("(not pinned)", None, None)


@pytest.mark.parametrize(
    "table",
    ['repository = "ftp://x"\ntag = "v{version}"', 'repository = "https://x"\ntag = "v1"', 'page = "https://x"', ""],
)
def test_where_a_distribution_is_developed_is_checked(tmp_path: Path, table: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"{PYPROJECT}\n[tool.parity.distributions.toy]\n{table}\n")
    with pytest.raises(StackUsageError, match=r"distributions\.toy"):
        load_settings(tmp_path)
