"""Checks of one stack: what is expected against what is there, judged and declared as differences of two sides are."""

import pytest
from toy_project import Project, summary

CHECKS = '''
import numpy

from harness.probes import consistency_probe

PRELOAD = ("toy",)


@consistency_probe(enters=("toy:build",))
def size(run, *, wanted: int = 1):
    """Whether toy builds the size it was asked for."""
    built = run.upstream("toy:build")(wanted)
    return {"expected": {"size": wanted}, "actual": {"size": built.size}}


@consistency_probe(enters=("toy:build",))
def tensors(run):
    """Tensors are compared element by element."""
    built = run.upstream("toy:build")(3)
    return {"expected": {"x": numpy.arange(3)}, "actual": {"x": numpy.arange(3) * built.size // 3}}


@consistency_probe(returns=("checked",))
def nothing(run):
    """Expects nothing."""
    return {"expected": {}, "actual": {}, "checked": 0}


@consistency_probe()
def refusal(run):
    """What toy refuses."""
    run.upstream("toy:refuse")()
'''
TEST = """
import pytest

pytestmark = pytest.mark.self_consistency

@pytest.mark.parametrize("wanted", [1, 2])
def test_size(consistency, wanted):
    consistency("checks.py::size", wanted=wanted)

def test_tensors(consistency):
    consistency("checks.py::tensors")
"""
DECLARED = """
[[consistency]]
stack = { toy = "==2.0" }
[[consistency.violation]]
case = "size[wanted=2]"
path = "size"
expected = "2"
actual = "1"
class = "upstream_bug"
reason = "toy forgets the size"
"""
FORGETS = ("return Config(size)", "return Config()")


@pytest.fixture
def checked(project: Project) -> Project:
    project.write("checks.py", CHECKS)
    project.write("suites/parity/test_toy.py", TEST)
    project.write("conftest.py", 'pytest_plugins = ["harness.pytest_plugin"]\n')
    for side in (1, 2):
        project.write(f"trees/{side}/pyproject.toml", f'[project]\nname = "toy"\nversion = "{side}.0"\n')
    return project


def verdicts(project: Project) -> dict[str, str]:
    return {case["case"]: case["verdict"] for case in project.records("case")}


def test_a_check_judges_the_stack_of_each_side(checked: Project) -> None:
    checked.edit(2, *FORGETS)
    done = checked.pytest("suites/parity")
    assert done.returncode == 1
    assert verdicts(checked) == {
        "size@toy-1": "identical",
        "size[wanted=2]@toy-1": "identical",
        "tensors@toy-1": "identical",
        "size@toy-2": "identical",
        "size[wanted=2]@toy-2": "regression",
        "tensors@toy-2": "regression",
    }
    assert "size: 2 → 1" in done.stdout
    assert "x: 2 → 0 (2 of 3 elements differ, worst at [2])" in done.stdout
    assert "again: parity check-stack toy-2 " in done.stdout
    assert summary(done.stdout) == "4 identical · 0 declared · 2 regression · evidence 6 of 6"


def test_a_stack_that_is_on_both_sides_is_checked_once(checked: Project) -> None:
    done = checked.pytest("suites/parity", "--new", "toy-1")
    assert done.returncode == 0, done.stdout
    assert set(verdicts(checked)) == {"size@toy-1", "size[wanted=2]@toy-1", "tensors@toy-1"}


def test_a_known_violation_is_declared_for_its_stack_and_stale_once_it_is_gone(checked: Project) -> None:
    checked.write("golden/declared/toy.toml", DECLARED)
    checked.edit(2, *FORGETS)
    done = checked.pytest("suites/parity", "-k", "size")
    assert done.returncode == 0, done.stdout
    assert "toy forgets the size" in done.stdout
    assert verdicts(checked)["size[wanted=2]@toy-2"] == "declared"
    checked.edit(1, *FORGETS)
    assert checked.pytest("suites/parity", "-k", "size").returncode == 1
    assert verdicts(checked)["size[wanted=2]@toy-1"] == "regression"
    for side in (1, 2):
        checked.edit(side, *reversed(FORGETS))
    assert checked.pytest("suites/parity", "-k", "size").returncode == 1
    assert verdicts(checked)["size[wanted=2]@toy-2"] == "stale"


def test_violations_of_no_check_are_told(checked: Project) -> None:
    checked.write("golden/declared/toy.toml", DECLARED.replace("size[wanted=2]", "gone"))
    assert "the ledger declares size for gone, and no such case ran" in checked.pytest().stdout


def test_declared_violations_are_drafted(checked: Project) -> None:
    checked.edit(2, *FORGETS)
    checked.pytest("suites/parity", "-k", "size")
    draft = checked.parity("declare").stdout
    assert '[[consistency]]\nstack = { toy = "==2.0" }' in draft
    assert 'expected = "2"\nactual = "1"' in draft
    assert 'case = "size[wanted=2]"' in draft or 'case = "size[*wanted=2*]"' in draft


@pytest.mark.parametrize(
    ("probe", "status", "told"),
    [
        (["size"], 0, "identical"),
        (["size", "wanted=3"], 0, "size[wanted=3]@toy-1"),
        (["refusal"], 1, "exception: (absent) → ValueError: no such option (from toy:refuse)"),
        (["nothing"], 1, "broken new: no evidence on rank 0: returned no expected.*"),
        (["config"], 2, "compares two"),
    ],
)
def test_one_check_from_the_command_line(checked: Project, probe: list[str], status: int, told: str) -> None:
    file = "probes.py" if probe == ["config"] else "checks.py"
    done = checked.parity("check-stack", "toy-1", f"{file}::{probe[0]}", *probe[1:])
    assert done.returncode == status, done.stdout + done.stderr
    assert told in done.stdout + done.stderr


def test_the_whole_suite_from_the_command_line(checked: Project) -> None:
    checked.edit(2, *FORGETS)
    passed = checked.parity("check-stack", "toy-1")
    assert passed.returncode == 0, passed.stdout
    assert summary(passed.stdout).startswith("3 identical")
    failed = checked.parity("check-stack", "toy-1", "--pin", "toy=path:trees/2")
    assert failed.returncode == 1
    assert "size[wanted=2]@toy-1" in failed.stdout
    assert "again: parity check-stack toy-1 --pin toy=path:trees/2 " in failed.stdout
    assert checked.parity("check-stack", "toy-3").returncode == 2


def test_checks_have_no_goldens(checked: Project) -> None:
    checked.pytest("suites/parity")
    assert checked.parity("golden", "status").stdout.strip() == "no cases"
