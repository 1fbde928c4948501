"""The shell scripts of the workflows; programs that they call are replaced by ones that tell how they were called."""

import os
import subprocess
from pathlib import Path

import pytest
from stacks_support import commit, git

SCRIPTS = Path(__file__).parents[2] / ".github"
TELL = '#!/usr/bin/env bash\nprintf "%s\\n" "$(basename "$0") $*" >>"$CALLS"\n'


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which `gh` and `python3` tell how they were called."""
    for name, body in (("gh", '[ "$2" != list ] || echo "$ISSUE"\n'), ("python3", 'exit "${ENDS:-0}"\n')):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(TELL + body)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "calls"


def run(script: str, *words: str) -> int:
    return subprocess.run([SCRIPTS / script, *words], check=False, timeout=60).returncode


@pytest.mark.parametrize(
    ("status", "issue", "told"),
    [
        ("1", "", ["gh label create nightly", "gh issue create --title"]),
        ("1", "7", ["gh issue edit 7 --body-file report.md"]),
        ("3", "7", ["gh issue edit 7 --body-file report.md"]),
        ("0", "7", ["gh issue close 7"]),
        ("0", "", []),
    ],
)
def test_one_issue_holds_the_report_of_the_night(
    called: Path, monkeypatch: pytest.MonkeyPatch, status: str, issue: str, told: list[str]
) -> None:
    monkeypatch.setenv("ISSUE", issue)
    assert run("issue.sh", status, "report.md") == 0
    first, *others = called.read_text().splitlines()
    assert first.startswith("gh issue list --label nightly --state open")
    assert [line[: len(start)] for line, start in zip(others, told, strict=True)] == told


@pytest.mark.parametrize(("ends", "fails"), [("0", False), ("1", False), ("2", True), ("3", True)])
def test_findings_of_a_night_do_not_fail_its_step_and_the_rest_does(
    called: Path, monkeypatch: pytest.MonkeyPatch, ends: str, fails: bool
) -> None:
    monkeypatch.setenv("STACK", "verl-0.9.1")
    monkeypatch.setenv("ENDS", ends)
    assert (run("nightly.sh") != 0) is fails
    assert (called.parent / "output").read_text() == f"status={ends}\n"
    words = called.read_text().split()
    assert words[:9] == ["python3", "-m", "nox", "-s", "parity", "--", "--old", "verl-0.9.1", "--new"]
    assert [word.partition("=")[0] for word in words if "@main" in word] == ["verl", "megatron-bridge", "megatron-core"]


@pytest.mark.parametrize(
    ("pin", "event", "cases", "told"),
    [
        ("", "push", "", "--new-pin toy=path:{caller}"),
        ("==2.0", "push", "a or b", "--new-pin toy==2.0 -k a or b"),
        ("git:URL@main", "push", "", "--new-pin toy=git:URL@main"),
        ("", "pull_request", "", "--new-pin toy=path:{caller} --old-pin toy=git:{caller}@HEAD^1"),
    ],
)
def test_a_caller_compares_its_checkout_or_its_pin(
    called: Path, monkeypatch: pytest.MonkeyPatch, pin: str, event: str, cases: str, told: str
) -> None:
    caller = called.parent / "caller"
    caller.mkdir()
    for name, value in (("DISTRIBUTION", "toy"), ("PIN", pin), ("EVENT", event), ("CASES", cases), ("STACK", "one")):
        monkeypatch.setenv(name, value)
    assert run("called.sh", "caller") == 0
    expected = f"python3 -m nox -s parity -- --old one --new one --only-new {told.format(caller=caller)}\n"
    assert called.read_text() == expected


def test_a_run_without_records_has_a_report_that_says_so(called: Path) -> None:
    assert run("report.sh", "parity") == 0
    assert (called.parent / "summary").read_text().startswith("No case ran: no pin moved")


def test_every_run_has_a_report_and_a_long_one_stays_in_the_artifact(called: Path) -> None:
    folder = called.parent
    for name, size in (("1", 40), ("2", 70_000), ("3", 0), ("4", 50)):
        (folder / ".parity/runs" / name).mkdir(parents=True)
        (folder / ".parity/runs" / name / "records.jsonl").write_text("x" * size)
    parity = folder / ".nox/parity/bin/parity"
    parity.parent.mkdir(parents=True)
    told = '[ -s "$2/records.jsonl" ] || { echo "$2 ended early" >&2; exit 2; }\n'
    parity.write_text(f'#!/usr/bin/env bash\n{told}echo "$4 $7 $8 of $2: $(cat "$2/records.jsonl")" >"$6"\n')
    parity.chmod(0o755)
    assert run("report.sh", "parity") == 0
    assert {file.name for file in (folder / ".parity/report").glob("*.html")} == {"1.html", "2.html", "4.html"}
    assert (folder / "summary").read_text().splitlines() == [
        f"md --fit comment of .parity/runs/1: {'x' * 40}",
        "Another run is in the artifact alone: 2.md",
        ".parity/runs/3 ended early",
        f"md --fit comment of .parity/runs/4: {'x' * 50}",
    ]
    assert (folder / "summary").read_text() == (folder / ".parity/report/report.md").read_text()


@pytest.mark.parametrize(
    ("changed", "label", "wanted"),
    [
        ("pyproject.toml", "false", "pins=true\n"),
        ("pyproject.toml", "true", "pins=true\neverything=true\n"),
        ("harness/stacks/base.txt", "false", "everything=true\n"),
        ("README.md", "true", "everything=true\n"),
        ("README.md", "false", ""),
    ],
)
def test_a_gpu_is_wanted_where_pins_or_the_base_moved_or_a_label_says_so(
    called: Path, monkeypatch: pytest.MonkeyPatch, changed: str, label: str, wanted: str
) -> None:
    git(called.parent, "init", "--quiet")
    commit(called.parent, dict.fromkeys(("pyproject.toml", "harness/stacks/base.txt", "README.md"), "1"))
    commit(called.parent, {changed: "2"})
    step = (SCRIPTS / "workflows" / "gpu.yml").read_text().split("run: |\n", 1)[1].split("\n\n", 1)[0]
    monkeypatch.setenv("LABELLED", label)
    subprocess.run(["bash", "-euo", "pipefail", "-c", step], check=True, timeout=60)
    output = called.parent / "output"
    assert (output.read_text() if output.exists() else "") == wanted
