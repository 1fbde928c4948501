"""The gate as a user meets it: which pins moved, what triage says of what fails, and what fails a pull request."""

import subprocess
from xml.etree import ElementTree

import pytest
from stacks_support import commit, git
from toy_project import PYPROJECT, Project, summary

TEST = """
def test_config(parity):
    parity("probes.py::config")


def test_refusal(parity):
    parity("probes.py::refusal")


def test_mended(parity):
    parity("probes.py::mended")


def test_random(parity):
    parity("probes.py::random")


def test_fusion(consistency):
    consistency("probes.py::fusion")
"""
PROBES = '''

@probe(enters=("toy:mended",), returns=("x",))
def mended(run):
    """What toy refused once."""
    return {"x": run.upstream("toy:mended")()}


@probe(enters=("toy:random",), returns=("x",))
def random(run):
    """What is never the same."""
    return {"x": run.upstream("toy:random")()}


@consistency_probe(enters=("toy:build",))
def fusion(run):
    """A config has the size that was asked for."""
    return {"expected": {"size": 2}, "actual": {"size": run.upstream("toy:build")().size}}
'''
MORE = """

def mended():
    {body}


def random():
    return __import__("os").urandom(8).hex()
"""


@pytest.fixture
def gate(project: Project) -> Project:
    """A repository whose latest commit moves the pin of the new side's stack to another tree."""
    project.write("test_toy.py", TEST)
    text = project.probes.read_text().replace("import probe\n", "import consistency_probe, probe\n")
    project.write("probes.py", text + PROBES)
    project.edit(1, "def refuse", MORE.format(body='raise ValueError("not yet")') + "\n\ndef refuse")
    project.edit(2, "def refuse", MORE.format(body="return 1") + "\n\ndef refuse")
    project.edit(2, "fusion: bool = True", "fusion: bool = False")
    project.write(".gitignore", "cache/\n.parity/\n")
    git(project.folder, "init", "--quiet", "--initial-branch=main")
    commit(project.folder, {"pyproject.toml": PYPROJECT.replace("trees/2", "trees/1")})
    commit(project.folder, {"pyproject.toml": PYPROJECT})
    return project


def gated(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return project.pytest("test_toy.py", "--changed-pins", "HEAD^", *words)


def test_a_bump_is_found_and_only_what_it_brings_fails(gate: Project) -> None:
    base = git(gate.folder, "rev-parse", "HEAD^")[:9]
    done = gated(gate, "--junitxml", "own.xml")
    assert done.returncode == 1, done.stdout
    assert gate.parity("report", "--format", "junit", "-o", "records.xml").returncode == 0
    own, recorded = (ElementTree.parse(gate.folder / name).getroot() for name in ("own.xml", "records.xml"))
    assert [own[0].get(name) for name in ("failures", "skipped")] == ["1", "5"]
    assert [recorded.get(name) for name in ("failures", "skipped")] == ["1", "5"]
    found = {case["case"]: (case["verdict"], case["triage"]) for case in gate.records("case")}
    assert found == {
        "config": ("regression", "new"),
        "refusal": ("both_raise", "pre-existing"),
        "mended": ("regression", "fixed"),
        "random": ("regression", "flaky"),
        f"fusion@toy-2@{base}": ("regression", "pre-existing"),
        "fusion@toy-2": ("regression", "pre-existing"),
    }
    assert "1 failed, 5 xfailed" in done.stdout
    assert "config: regression (new) — config.fusion: True → False" in done.stdout
    assert "config --changed-pins 'HEAD^'" in done.stdout
    assert "triage: 1 new · 3 pre-existing · 1 fixed · 1 flaky" in done.stdout
    excused = gated(gate, "-k", "mended")
    assert excused.returncode == 0, excused.stdout
    assert "1 regression" in summary(excused.stdout)
    assert gated(gate, "-k", "mended", "--strict-triage").returncode == 1


def test_compare_and_changed_take_a_revision(gate: Project) -> None:
    base = git(gate.folder, "rev-parse", "HEAD^")[:9]
    assert gate.parity("changed", "HEAD^").stdout.startswith(f"toy-2@{base} → toy-2: toy path:")
    done = gate.parity("compare", "probes.py::config", "--changed-pins", "HEAD^")
    assert done.returncode == 1, done.stderr
    assert "triage: new" in done.stdout
    excused = gate.parity("compare", "probes.py::mended", "--changed-pins", "HEAD^")
    assert excused.returncode == 0, excused.stderr
    assert "mended: regression" in excused.stdout
    assert "triage: fixed" in excused.stdout


def test_where_no_pin_moved_nothing_runs_and_nothing_fails(gate: Project) -> None:
    told = "parity: no pin in pyproject.toml moved since HEAD: nothing to compare.\n"
    done = gate.pytest("test_toy.py", "--changed-pins", "HEAD")
    assert (done.returncode, done.stdout) == (0, told)
    for words in (("compare", "probes.py::config"), ("check", "probes.py::config")):
        done = gate.parity(*words, "--changed-pins", "HEAD")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", told)
    changed = gate.parity("changed", "HEAD")
    assert (changed.returncode, changed.stdout, changed.stderr) == (0, "", told)
    assert not (gate.folder / ".parity").exists()


def test_an_unknown_revision_is_wrong_usage(gate: Project) -> None:
    done = gate.pytest("test_toy.py", "--changed-pins", "no-such-branch")
    assert done.returncode == 2
    assert "has no revision 'no-such-branch'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_in_which_nothing_answered_fails_a_pull_request_too(gate: Project) -> None:
    gate.write("probes.py", gate.probes.read_text().replace('("config.size",)', '("config.no_such_field",)'))
    done = gated(gate, "-k", "config")
    assert [case["triage"] for case in gate.records("case")] == ["pre-existing"]
    assert done.returncode == 1, done.stdout
