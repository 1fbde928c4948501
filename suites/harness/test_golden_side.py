"""Goldens of a git stack stand in for it where only the network could give its revision, and say so."""

import json
import shutil
from pathlib import Path

import pytest
from stacks_support import commit, git, write
from toy_project import TOY, Project, make_project, summary

STACKS = """
[tool.parity]
old = "toy-2"
new = "toy-2"
base = "current"

[tool.parity.stacks.toy-2.pins]
toy = {{ path = "trees/2" }}

[tool.parity.stacks.toy-before.pins]
toy = {{ git = "file://{folder}/nowhere", rev = "{after}^" }}

[tool.parity.stacks.toy-after.pins]
toy = {{ git = "file://{folder}/nowhere", rev = "{after}" }}
"""
TEST = """
from harness.compare import Expectation

def test_config(parity):
    parity("probes.py::config")

def test_refusal(parity):
    parity("probes.py::refusal", expects=Expectation("builtins:ValueError", "no such *", "toy:refuse"))
"""
HOOK = 'run.comes_from("build", run.upstream("toy:build"))'
DECLARED = """
[[transition]]
old = {{ toy = "commit {before}" }}
new = {{ toy = ">=0" }}
[[transition.change]]
case = "config"
path = "config.fusion"
old = "True"
new = "False"
class = "intended"
reason = "the kernel is not ready"
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two git stacks, one of which has goldens; the clone is beside the project."""
    project = make_project(tmp_path_factory.mktemp("recorded") / "project")
    clone = project.folder.parent / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet", "--initial-branch=main")
    commit(clone, {"toy/__init__.py": TOY, "pyproject.toml": '[project]\nname = "toy"\nversion = "1.0"\n'})
    after = commit(clone, {"toy/__init__.py": TOY.replace("fusion: bool = True", "fusion: bool = False")})
    project.write("pyproject.toml", STACKS.format(folder=project.folder, after=after[:9]))
    project.write("tests/test_toy.py", TEST)
    project.write("probes.py", project.probes.read_text().replace('run.upstream("toy:build")', HOOK))
    assert project.pytest("tests", "--old", "toy-before", "--clone", f"toy={clone}").returncode == 0
    done = project.parity("golden", "new", "--clone", f"toy={clone}")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(project.folder / "cache")
    return project.folder.parent


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    """A copy of the recorded project, with nothing in its cache."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".parity"))
    return make_project(tmp_path / "project", keep=True)


def clone_of(project: Project) -> Path:
    return project.folder.parent / "clone"


def test_goldens_of_a_git_stack_have_a_folder_revision_and_command(project: Project) -> None:
    folder = project.folder / "golden" / "cpu"
    assert list(folder.glob("*.json")) == []
    [file] = (folder / "toy-before").glob("config-*.json")
    provenance = json.loads(file.read_text())["provenance"]
    commit_ = git(clone_of(project), "rev-parse", "main^")
    assert provenance["stack"] == "toy-before"
    assert provenance["commits"] == {"toy": commit_}
    assert provenance["revisions"] == {"toy": f"{git(clone_of(project), 'rev-parse', '--short=9', 'main')}^"}
    assert provenance["command"].endswith("probes.py::config --old toy-before --clone toy=PATH")
    assert str(clone_of(project)) not in file.read_text()


def test_without_a_clone_the_goldens_stand_in_and_the_summary_says_what_to_type(project: Project) -> None:
    done = project.pytest("tests", "--old", "toy-before")
    assert done.returncode == 0, done.stdout
    assert "cloning" not in done.stdout
    assert summary(done.stdout).startswith("1 identical · 0 declared · 1 unsupported · 0 regression")
    assert "old = golden: toy-before was not run; name a clone: --clone toy=PATH" in done.stdout
    assert [event["stack"] for event in project.records("worker_started")] == ["toy-2"]
    [record] = [case for case in project.records("case") if case["case"] == "config"]
    assert record["why"] == "[old = golden]"
    assert record["sides"][0]["golden"]["why"] == "first recording"
    assert "old = golden" in project.parity("report").stdout
    assert (
        "was not run" not in project.pytest("tests", "--old", "toy-before", f"--clone=toy={clone_of(project)}").stdout
    )


def test_a_difference_from_the_golden_is_a_regression_unless_declared(project: Project) -> None:
    project.edit(2, "fusion: bool = True", "fusion: bool = False")
    done = project.pytest("tests", "--old", "toy-before")
    assert done.returncode == 1
    assert "[old = golden] config.fusion: True → False" in done.stdout
    before = git(clone_of(project), "rev-parse", "main^")
    assert f'old = {{ toy = "commit {before[:9]}" }}' in project.parity("declare").stdout
    project.write("golden/declared/toy.toml", DECLARED.format(before=before[:9]))
    done = project.pytest("tests", "--old", "toy-before")
    assert done.returncode == 0, done.stdout
    assert summary(done.stdout).startswith("0 identical · 1 declared · 1 unsupported")
    project.edit(2, "fusion: bool = False", "fusion: bool = True")
    assert "1 stale" in summary(project.pytest("tests", "--old", "toy-before").stdout)


def test_a_hook_that_comes_from_elsewhere_is_seen_against_a_golden_too(project: Project) -> None:
    project.edit(2, "def refuse", 'build.__qualname__ = "make"\n\n\ndef refuse')
    done = project.pytest("tests", "--old", "toy-before")
    assert "provenance.build: 'toy:build' → 'toy:make'" in done.stdout
    assert "1 regression" in summary(done.stdout)


def test_two_that_raise_alike_are_not_identical_with_a_golden_either(project: Project) -> None:
    project.edit(2, "no such option", "no such thing")
    assert "1 unsupported" in summary(project.pytest("tests", "--old", "toy-before").stdout)
    project.edit(2, "no such thing", "unknown")
    done = project.pytest("tests", "--old", "toy-before")
    assert "1 both_raise" in summary(done.stdout)
    assert "old raises ValueError: no such option (from toy:refuse), new raises ValueError: unknown" in done.stdout
    project.edit(2, "return Config(size)", 'raise ValueError("gone")')
    done = project.pytest("tests", "--old", "toy-before", "-k", "config")
    assert "exception: (absent) → ValueError: gone (from toy:build)" in done.stdout
    raised = """
[[transition]]
old = { toy = ">=0" }
new = { toy = ">=0" }
[[transition.change]]
case = "config"
path = "exception"
new = "ValueError: gone *"
kind = "added"
class = "intended"
reason = "gone"
"""
    project.write("golden/declared/toy.toml", raised)
    assert "1 declared" in summary(project.pytest("tests", "--old", "toy-before", "-k", "config").stdout)


def test_a_golden_of_another_revision_or_none_says_nothing(project: Project) -> None:
    toml = project.folder / "pyproject.toml"
    write(project.folder, {"pyproject.toml": toml.read_text().replace('^" }', '~2" }')})
    done = project.pytest("tests", "--old", "toy-before")
    assert done.returncode == 3, done.stdout
    assert "--clone toy=PATH" in done.stdout + done.stderr
    only = project.pytest("tests", "--old", "toy-before", "--golden-only")
    assert only.returncode == 1
    assert "the golden of toy-before is of toy " in " ".join(
        case["why"] for case in project.records("case") if case["verdict"] == "not_run"
    )


def test_a_new_side_without_a_clone_is_one_line(project: Project) -> None:
    done = project.pytest("tests", "--old", "toy-before", "--new", "toy-after")
    assert done.returncode == 3
    assert "--clone toy=PATH" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_case_that_reads_what_the_old_side_wrote_is_not_run_without_it(project: Project) -> None:
    written = """

@probe(enters=("toy:build",), returns=("written",))
def written(run):
    \"\"\"Toy's config, in a file.\"\"\"
    (run.folder / "size").write_text(str(run.upstream("toy:build")().size))
    return {"written": 1}


@probe(returns=("size",), reads="written")
def readback(run):
    \"\"\"What is in the file.\"\"\"
    return {"size": (run.written / "size").read_text()}
"""
    project.write("probes.py", project.probes.read_text() + written)
    done = project.parity("compare", "probes.py::readback", "--written-by", "old", "--old", "toy-before")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())  # folded to the width of the terminal
    assert "not_run a golden is of one stack, and this case reads what another wrote; name a clone" in said
    assert "--clone toy=PATH" in done.stdout


def test_compare_uses_the_golden_too_and_nothing_is_recorded_from_it(project: Project) -> None:
    done = project.parity("compare", "probes.py::config", "--old", "toy-before")
    assert done.returncode == 0, done.stderr
    assert "config: identical [old = golden]" in done.stdout
    assert "golden of toy-before" in done.stdout
    again = project.parity("golden", "accept", "config", "--why", "x", "--old", "toy-2")
    assert again.returncode == 2
    assert "its goldens stood in" in again.stderr
