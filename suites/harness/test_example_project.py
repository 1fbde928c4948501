"""The way a user meets the harness: pytest on a small project, and the `parity` command."""

import os
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import psutil
import pytest
from toy_project import Project, summary

TEST = """
import pytest

@pytest.mark.parametrize("size", [1, 2])
def test_config(parity, size):
    parity("probes.py::config", size=size)
"""
DECLARED = """
[[transition]]
old = {{ toy = ">=0" }}
new = {{ toy = ">=0" }}
[[transition.change]]
case = "config*"
path = "config.fusion"
old = "{old}"
new = "False"
class = "intended"
reason = "the kernel is not ready"
"""


@pytest.fixture
def example(project: Project) -> Project:
    project.write("test_toy.py", TEST)
    for side in (1, 2):
        project.write(f"trees/{side}/pyproject.toml", '[project]\nname = "toy"\nversion = "1.0"\n')
    return project


def test_two_equal_sides_pass(example: Project) -> None:
    done = example.pytest("test_toy.py")
    assert done.returncode == 0, done.stdout
    assert summary(done.stdout) == "2 identical · 0 declared · 0 regression · evidence 2 of 2"
    assert "records: " in done.stdout
    assert "parity: toy-1: " in done.stdout


def test_a_changed_default_is_a_regression_that_names_exactly_that_field(example: Project) -> None:
    example.edit(2, "fusion: bool = True", "fusion: bool = False")
    done = example.pytest("test_toy.py")
    assert done.returncode == 1
    assert summary(done.stdout) == "0 identical · 0 declared · 2 regression · evidence 2 of 2"
    assert "config.fusion: True → False" in done.stdout
    assert [case["undeclared"] for case in example.records("case")] == [
        [{"path": "config.fusion", "kind": "changed", "old": "True", "new": "False"}]
    ] * 2


def test_a_declared_change_passes_and_a_stale_one_fails(example: Project) -> None:
    example.edit(2, "fusion: bool = True", "fusion: bool = False")
    example.write("golden/declared/changes.toml", DECLARED.format(old="True"))
    done = example.pytest("test_toy.py")
    assert done.returncode == 0, done.stdout
    assert summary(done.stdout).startswith("0 identical · 2 declared")
    assert "the kernel is not ready" in done.stdout
    example.edit(2, "fusion: bool = False", "fusion: bool = True")
    done = example.pytest("test_toy.py")
    assert done.returncode == 1
    assert "2 stale" in summary(done.stdout)


def test_a_declared_change_of_no_case_is_told(example: Project) -> None:
    example.write("golden/declared/changes.toml", DECLARED.format(old="True").replace('"config*"', '"gone*"'))
    done = example.pytest()
    assert done.returncode == 0, done.stdout
    assert "the ledger declares config.fusion for gone*, and no such case ran" in done.stdout
    assert "the ledger declares" not in example.pytest("test_toy.py", "-k", "1").stdout


def test_a_path_pin_given_on_the_command_line_is_used(example: Project) -> None:
    example.edit(2, "fusion: bool = True", "fusion: bool = False")
    done = example.pytest("test_toy.py", "--old-pin", "toy=path:trees/2")
    assert done.returncode == 0, done.stdout
    assert "--old-pin" not in done.stdout
    done = example.pytest("test_toy.py", "--old", "toy-2", "--new", "toy-1")
    assert done.returncode == 1
    assert "config.fusion: False → True" in done.stdout


def test_two_sides_that_break_alike_are_red(example: Project) -> None:
    example.write("test_toy.py", 'def test_refusal(parity):\n    parity("probes.py::refusal")\n')
    done = example.pytest("test_toy.py")
    assert done.returncode == 1
    assert "both raise ValueError: no such option (from toy:refuse)" in done.stdout


def test_xdist_processes_share_the_workers(example: Project) -> None:
    example.write("test_toy.py", TEST.replace("[1, 2]", "range(8)"))
    done = example.pytest("test_toy.py", "-n", "3")
    assert done.returncode == 0, done.stdout
    assert summary(done.stdout) == "8 identical · 0 declared · 0 regression · evidence 8 of 8"
    assert len(example.records("worker_started")) == 2
    assert len({case["pid"] for case in example.records("case")}) > 1


def test_a_skipped_case_is_listed_and_a_run_of_nothing_fails(example: Project) -> None:
    skip = '@__import__("pytest").mark.skip(reason="no second GPU")\n'
    example.write("test_toy.py", f'{skip}def test_big(parity):\n    parity("probes.py::config")\n')
    done = example.pytest("test_toy.py")
    assert done.returncode == 1
    assert "1 not_run" in summary(done.stdout)
    assert "no second GPU" in done.stdout
    assert "no case ran: the run fails" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--old", "toy-9"], 2, "toy-9"),
        (["--new-pin", "toy"], 2, "toy"),
        (["--new-pin", "toy=path:nowhere"], 3, "nowhere"),
        (["--no-such-option"], 4, "no-such-option"),
    ],
)
def test_wrong_options_and_missing_environments_have_their_own_codes(
    example: Project, words: list[str], code: int, told: str
) -> None:
    done = example.pytest("test_toy.py", *words)
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_broken_ledger_stops_the_run_with_its_place(example: Project) -> None:
    example.write("golden/declared/changes.toml", "[[transition]\n")
    done = example.pytest("test_toy.py")
    assert done.returncode == 2
    assert "changes.toml" in done.stdout + done.stderr


def test_control_characters_of_the_stacks_are_shown_and_not_obeyed(example: Project) -> None:
    example.edit(2, 'ValueError("no such option")', 'ValueError("no \\x1b[2Jsuch option")')
    done = example.parity("compare", "probes.py::refusal")
    assert done.returncode == 1
    assert r"no \x1b[2Jsuch option" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_compare_prints_the_verdict_and_the_differences(example: Project) -> None:
    same = example.parity("compare", "probes.py::config", "size=3")
    assert same.returncode == 0, same.stderr
    assert "config[size=3]: identical" in same.stdout
    example.edit(2, "fusion: bool = True", "fusion: bool = False")
    other = example.parity("compare", "probes.py::config")
    assert other.returncode == 1
    assert "! config.fusion: True → False" in other.stdout


def test_declare_drafts_entries_that_lack_only_a_reason(example: Project) -> None:
    example.edit(2, "fusion: bool = True", "fusion: bool = False")
    example.pytest("test_toy.py")
    drafted = example.parity("declare").stdout
    assert tomllib.loads(drafted)["transition"][0]["change"] == [
        {
            "case": "config*",
            "path": "config.fusion",
            "old": "True",
            "new": "False",
            "class": "unexplained",
            "reason": "",
        }
    ]
    example.write("golden/declared/changes.toml", drafted)
    assert "has no reason" in example.pytest("test_toy.py").stdout
    example.write("golden/declared/changes.toml", drafted.replace('reason = ""', 'reason = "known"'))
    done = example.pytest("test_toy.py")
    assert done.returncode == 0
    assert "2 declared · 0 regression · 2 unexplained" in summary(done.stdout)
    assert "nothing undeclared" in example.parity("declare").stdout
    assert example.parity("declare", "config[size=9]").returncode == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "confg"], "did you mean"),
        (["compare", "probes.py::config", "sise=3"], "takes no parameter 'sise'; it takes: size"),
        (["compare", "probes.py::config", "3"], "write KEY=VALUE"),
        (["compare", "probes.py::config", "--layout", "tp99"], "known: single"),
        (["compare", "probes.py::nothing"], "declares no probe"),
        (["compare", "nowhere.py::nothing"], "does not exist"),
        (["stacks", "show", "toy-9"], "toy-9"),
        (["report", "nowhere"], "run folder"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_status_2(example: Project, words: list[str], told: str) -> None:
    done = example.parity(*words)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_a_value_that_the_probe_does_not_know_is_wrong_usage(example: Project) -> None:
    refusing = '    if size > 9:\n        raise ProbeError("size is at most 9")\n    return {"config"'
    text = example.probes.read_text().replace('    return {"config"', refusing)
    example.write("probes.py", text.replace("import probe\n", "import ProbeError, probe\n"))
    done = example.parity("compare", "probes.py::config", "size=10")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == "parity: size is at most 9"
    assert done.stdout == ""


def test_help_teaches_every_command(example: Project) -> None:
    for words in (["--help"], ["compare", "--help"], ["stacks", "--help"], ["probes", "--help"], ["report", "--help"]):
        done = example.parity(*words)
        assert done.returncode == 0
        assert "Usage:" in done.stdout


def test_stacks_are_listed_shown_built_and_checked(example: Project) -> None:
    assert "toy-1" in example.parity("stacks", "list").stdout
    assert "toy=path:" in example.parity("stacks", "show", "toy-2").stdout
    assert example.parity("stacks", "build", "toy-1", "toy-2").returncode == 0


def test_report_prints_the_latest_run_again(example: Project) -> None:
    ran = example.pytest("test_toy.py")
    again = example.parity("report")
    assert again.returncode == 0
    assert summary(again.stdout) == summary(ran.stdout)


def test_areas_count_verdicts_by_file_and_fit_80_columns(example: Project) -> None:
    example.write("test_other_area_of_the_toy_project.py", TEST.replace("[1, 2]", "[3]"))
    example.edit(2, "fusion: bool = True", "fusion: bool = False")
    example.write(
        "golden/declared/changes.toml",
        DECLARED.format(old="True").replace("config*", "config[size=3]").replace("intended", "unexplained"),
    )
    example.environment["COLUMNS"] = "80"
    ran = example.pytest()
    again = example.parity("report", "--areas")
    assert again.returncode == 0, again.stderr
    for shown in (ran.stdout, again.stdout):
        lines = [line.split() for line in shown.splitlines() if len(line) <= 80]
        assert ["area", "declared", "regression", "unexplained"] in lines
        assert ["toy", "2"] in lines
        assert ["other_area_of_the_toy_project", "1", "1"] in lines
        assert ["all", "1", "2", "1"] in lines
    assert summary(again.stdout) == "0 identical · 1 declared · 2 regression · 1 unexplained · evidence 3 of 3"
    assert "config[size=3]" in ran.stdout
    assert "config[size=3]" not in again.stdout


def test_ctrl_c_leaves_no_process_behind(example: Project) -> None:
    example.write(
        "probes.py",
        'import time\nfrom harness.probes import probe\n\n@probe(returns=("x",))\n'
        'def config(run, *, size: int = 1):\n    """Sleeps."""\n    time.sleep(100)\n',
    )
    running = subprocess.Popen(
        example.command("-m", "pytest", "-p", "harness.pytest_plugin", "test_toy.py"),
        cwd=example.folder,
        env=example.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background has it ignored
    )
    deadline = time.monotonic() + 60
    while not list(example.folder.glob(".parity/runs/*/cases/*/*/rank0")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 2, output
    assert _processes_of(example.folder) == []


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(folder) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(command)
    return found
