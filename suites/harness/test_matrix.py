"""`parity matrix`: every combination of pins, what runs on it, and how it differs from one that runs most."""

from pathlib import Path
from typing import Any

import pytest
from recorded_runs import case, write_run
from stacks_support import git, write
from toy_project import PYPROJECT, Project, make_project

from harness.cases import make_case
from harness.compare import Ledger, Side
from harness.compare.ledger import Change, Transition
from harness.matrix import Combination, Observed, base_of, combinations, compared, held, parse_axis
from harness.observe import encode
from harness.observe.exceptions import ObservedException
from harness.observe.observation import Observation
from harness.stacks import Stack, StackUsageError, load_settings

STACKS = """
[tool.parity]
old = "early"
new = "late"
base = "current"
[tool.parity.stacks.early.pins]
verl = "==1.0"
megatron-bridge = "==1.0"
megatron-core = "==1.0"
[tool.parity.stacks.late.pins]
verl = "==2.0"
megatron-bridge = "==2.0"
megatron-core = "==2.0"
[tool.parity.stacks.mixed]
extends = "early"
[tool.parity.stacks.mixed.pins]
verl = "==2.0"
"""


def chosen(root: Path, *axes: str, holder: str | None = None) -> list[tuple[str, str, str]]:
    write(root, {"pyproject.toml": STACKS})
    parsed = [parse_axis(*axis.split("=", 1)) for axis in axes]
    found = combinations(parsed, load_settings(root), holder)
    return [(one.letter, one.label, held(one)) for one in found]


def test_other_pins_follow_megatron_bridge(tmp_path: Path) -> None:
    assert chosen(tmp_path, "verl=1.0,2.0", "megatron-bridge=1.0,2.0,3.0") == [
        ("A", "verl 1.0 + megatron-bridge 1.0", "megatron-core 1.0 (as early)"),
        ("B", "verl 1.0 + megatron-bridge 2.0", "megatron-core 2.0 (as late)"),
        ("C", "verl 1.0 + megatron-bridge 3.0", "megatron-core 1.0 (as early)"),
        ("D", "verl 2.0 + megatron-bridge 1.0", "megatron-core 1.0 (as mixed)"),
        ("E", "verl 2.0 + megatron-bridge 2.0", "megatron-core 2.0 (as late)"),
        ("F", "verl 2.0 + megatron-bridge 3.0", "megatron-core 2.0 (as late)"),
    ]


def test_a_stack_that_is_named_holds_every_other_pin(tmp_path: Path) -> None:
    found = chosen(tmp_path, "verl=1.0,git:.@main", holder="late")
    assert [rest for *_, rest in found] == ["megatron-bridge 2.0, megatron-core 2.0 (as late)"] * 2
    assert found[1][1].endswith("@main")


def test_an_axis_is_made_of_pins() -> None:
    for values, told in (
        ("1.0,", "not one exact version"),
        ("1.0,1.0", "names a pin twice"),
        ("main", "not one exact version"),
    ):
        with pytest.raises(StackUsageError, match=told):
            parse_axis("verl", values)


def seen(tree: Any, **more: Any) -> Observed:
    """A combination on which the case saw a tree."""
    hooks, raised = more.get("hooks", {}), more.get("raised")
    side = Side("x", "x", {}, [Observation(encode(tree).tree, {}, raised, (), (), (), {}, hooks, 0.0)])
    return Observed(Combination("A", (), Stack("x", {}), "x"), None, "", {"config_fields": side})


def test_a_cell_says_how_a_combination_differs_from_the_one_that_runs_most() -> None:
    boom = ObservedException("builtins:ValueError", "boom", "verl:build", False, "")
    case = make_case("config_fields", {})
    entry = Change(("config*",), "a", "1", "2", None, "known", "intended", "", False)
    ledger = Ledger((Transition((({}, {}),), (entry,)),))
    base = seen({"a": 1}, hooks={"build": "one:build"})
    others = {
        "runs": base,
        "same": seen({"a": 1}, hooks={"build": "one:build"}),
        "sources": seen({"a": 1}, hooks={"build": "two:build"}),
        "differs": seen({"a": 3}, hooks={"build": "two:build"}),
        "raises": seen(None, raised=boom),
    }
    assert base_of([others["raises"], base, others["same"]]) is base
    found = {name: compared(case, base, other, Ledger()) for name, other in others.items()}
    assert [one.cell for one in found.values()] == list(found)
    assert found["sources"].why == "provenance.build: 'one:build' → 'two:build'"
    assert found["differs"].why == "a: 1 → 3 (+1 more)"
    assert found["raises"].why == "ValueError: boom"
    assert compared(case, base, seen({"a": 2}, hooks={"build": "one:build"}), ledger).cell == "declared"
    assert compared(case, others["raises"], base, ledger).cell == "runs"


TOY = '[project]\nname = "toy"\nversion = "{version}"\n'


@pytest.fixture
def trees(tmp_path: Path) -> Project:
    """Trees of toy: as it was, another default, one that refuses, one without a package."""
    project = make_project(tmp_path)
    project.write("pyproject.toml", PYPROJECT)
    text = (project.folder / "trees/1/toy/__init__.py").read_text()
    project.write("trees/2/toy/__init__.py", text.replace("fusion: bool = True", "fusion: bool = False"))
    project.write("trees/3/toy/__init__.py", text.replace("return Config(size)", 'raise ValueError("no size")'))
    project.write("trees/4/README", "nothing here")
    for side in (1, 2, 3):
        project.write(f"trees/{side}/pyproject.toml", TOY.format(version=side))
    git(project.folder, "init", "--quiet")
    return project


def test_what_runs_what_differs_and_what_cannot_be_built(trees: Project) -> None:
    pins = ",".join(f"path:trees/{side}" for side in (1, 2, 3, 4))
    command = ("matrix", "--axis", f"toy={pins}", "probes.py::config", "size=3", "probes.py::config", "--workers", "1")
    done = trees.parity(*command, "--svg", "grid.svg")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["case", "A", "B", "C", "D"] in lines
    assert ["config[size=3]", "✓", "≠", "✗"] in lines
    assert "A  2/2 run" in done.stdout
    said = " ".join(done.stdout.split())  # folded to the width of the terminal
    assert "D cannot be built" in said
    assert "no package toy/ or src/toy/" in said
    assert "≠ config[size=3], config: config.fusion: True → False" in said
    assert "✗ config[size=3], config: ValueError: no size" in said
    assert "6 observations made" in done.stdout
    assert "C toy path:" in done.stderr
    assert (trees.folder / "grid.svg").read_text().startswith("<svg")
    [recorded] = trees.records("matrix")
    assert [one["letter"] for one in recorded["combinations"] if one["cannot_be_built"]] == ["D"]
    assert [(case["case"], case["cell"]) for case in trees.records("matrix_case")][:3] == [
        ("config[size=3]@A", "runs"),
        ("config[size=3]@B", "differs"),
        ("config[size=3]@C", "raises"),
    ]
    assert "0 observations made" in trees.parity(*command).stdout
    assert "no run here yet" in trees.parity("report").stderr  # a matrix has no report
    write_run(trees.folder / ".parity" / "runs" / "0", [case("config")])
    assert "nothing to act on in 1 case" in trees.parity("report").stdout  # not the matrix, which came later


def test_where_nothing_can_be_built_the_exit_status_says_so(trees: Project) -> None:
    done = trees.parity("matrix", "--axis", "toy=path:trees/4", "probes.py::config")
    assert done.returncode == 3, done.stderr
    assert "no package toy/ or src/toy/" in " ".join(done.stdout.split())
    assert done.stderr.splitlines()[-1].endswith("no combination could be built: see the reasons above")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name the pins to combine: parity matrix --verl"),
        (["--axis", "toy=path:trees/1", "--axis", "toy=path:trees/2"], "write --axis toy=path:trees/1,path:trees/2"),
        (["--axis", "toy=path:trees/1", "--svg", "."], ". is a folder"),
        (["--axis", "toy=path:trees/1", "size=3"], "'size=3' belongs to no probe"),
    ],
)
def test_wrong_usage_is_one_line(trees: Project, words: list[str], told: str) -> None:
    done = trees.parity("matrix", *words)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
