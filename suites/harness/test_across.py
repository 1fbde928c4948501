"""Two sides in different layouts: shards put together, copies equal, and everything else judged as one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_project import Project, running

from harness.cases import make_case
from harness.compare import Verdict
from harness.compare.across import unplaced, whole
from harness.observe import encode
from harness.observe.observation import Observation, entries_of, load, save
from harness.observe.placement import Cut, Placement
from harness.runner import Outcome, Runner

WEIGHT = np.arange(24, dtype=np.float32).reshape(8, 3)


def rank(folder: Path, tree: dict[str, Any], **places: Placement) -> Observation:
    encoding = encode(tree)
    found = Observation(encoding.tree, entries_of(encoding), None, (), (), (), {}, {}, 0.0, placement=places)
    save(found, encoding.tensors, folder)
    return load(folder)


def test_blocks_padding_and_means_are_put_together(tmp_path: Path) -> None:
    halves = [np.concatenate([WEIGHT[:2], WEIGHT[4:6]]), np.concatenate([WEIGHT[2:4], WEIGHT[6:]])]
    ranks = [
        rank(
            tmp_path / str(number),
            {"fc1": halves[number], "head": WEIGHT[4 * number :][:4], "loss": np.float32([1, 4])[number : number + 1]},
            fc1=Placement((Cut(0, number, 2, blocks=2),)),
            head=Placement((Cut(0, number, 2, size=7),)),
            loss=Placement(mean_of=(number, 2)),
        )
        for number in (0, 1)
    ]
    found = whole(ranks)
    assert found.unequal == {}
    assert {name: array.tolist() for name, array in found.arrays.items()} == {
        "fc1": WEIGHT.tolist(),
        "head": WEIGHT[:7].tolist(),
        "loss": [2.5],
    }


def test_what_ranks_hold_alike_is_equal_or_names_the_ranks(tmp_path: Path) -> None:
    trees = [{"norm": WEIGHT, "deep": {"step": 1, "scale": 0.5}}, {"norm": WEIGHT, "deep": {"step": 1, "scale": 0.5}}]
    alike = whole([rank(tmp_path / str(number), tree, norm=Placement()) for number, tree in enumerate(trees)])
    assert (alike.unequal, alike.plain, alike.arrays["deep.scale"].dtype) == ({}, {"deep.step": 1}, np.float32)
    trees[1] = {"norm": WEIGHT + (WEIGHT == 5), "deep": {"step": 2, "scale": 0.25}}
    other = whole([rank(tmp_path / str(number), tree, norm=Placement()) for number, tree in enumerate(trees)])
    assert other.unequal == {
        "norm": "norm is replicated, but ranks 0 and 1 differ in 1 of 24 elements, worst at [1, 2]: 5.0 and 6.0",
        "deep.step": "1 on rank 0, 2 on rank 1",
        "deep.scale": "0.5 on rank 0, 0.25 on rank 1",
    }


def test_a_tensor_without_a_place_cannot_be_compared(tmp_path: Path) -> None:
    placed, lost = rank(tmp_path / "0", {"a": WEIGHT}, a=Placement()), rank(tmp_path / "1", {"a": WEIGHT})
    assert unplaced([placed]) is None
    assert unplaced([placed, lost]) == ("rank 1 does not say what part of a it holds, so layouts cannot be compared")


def test_a_case_of_two_layouts_has_an_id_and_a_command_of_its_own() -> None:
    case = make_case("training_step", {}, layout="tp2", old_layout="single")
    assert case.id == "training_step[single→tp2]"
    assert (case.layout_of("old"), case.layout_of("new")) == ("single", "tp2")
    assert make_case("training_step", {}, layout="tp2", old_layout="tp2").id == "training_step[tp2]"


PROBE = '''
import numpy
from harness.observe.placement import Cut, Placement
from harness.probes import probe


@probe(enters=("toy:build",), returns=("norm",), tensors=("product",))
def sharded(run, *, placed: bool = True):
    """A product whose sum over columns is split over the ranks, as toy scales it; its rows lie on the ranks too."""
    config = run.upstream("toy:build")()
    ways, rank = run.world_size, run.rank
    matrix = numpy.sin(numpy.arange(64 * 48, dtype=numpy.float32)).reshape(64, 48)
    if run.perturbed:
        up = numpy.sin(numpy.arange(matrix.size) * (run.perturbed + 0.5)).reshape(matrix.shape) > 0
        matrix = numpy.nextafter(matrix, numpy.where(up, numpy.inf, -numpy.inf).astype(numpy.float32))
    parts = [part @ part.T for part in numpy.split(matrix, ways, axis=1)]
    total = sum(parts[1:], parts[0]) if config.fusion else parts[rank]
    product = numpy.split(total * numpy.float32(config.size), ways, axis=0)[rank]
    if placed:
        run.placement |= {"product": Placement((Cut(0, rank, ways),)), "total": Placement()}
    return {"product": product, "total": total, "norm": float(numpy.linalg.norm(total)), "step": 1}
'''


@pytest.fixture
def across(project: Project) -> Iterator[tuple[Project, Path]]:
    yield project, project.write("sharded.py", PROBE)


def compared(project: Project, file: Path, old: str, new: str, **parameters: Any) -> Outcome:
    with running(project) as toys:
        runner: Runner = toys.runner
        return runner.run(make_case(f"{file}::sharded", parameters, layout=new, old_layout=old))


@pytest.mark.parametrize(("old", "new"), [("single", "tp2"), ("tp2", "single")])
def test_reassociation_is_within_the_noise_of_perturbed_runs(across: tuple[Project, Path], old: str, new: str) -> None:
    outcome = compared(*across, old, new)
    assert outcome.judged.verdict is Verdict.WITHIN_NOISE, outcome.message
    assert (len(outcome.old.ranks), len(outcome.new.ranks)) == (
        1 if old == "single" else 2,
        1 if new == "single" else 2,
    )
    assert f"--old-layout {old} --new-layout {new}" in outcome.command


def test_a_scale_of_a_tenth_of_a_percent_is_a_regression(across: tuple[Project, Path]) -> None:
    across[0].edit(2, "size=1):\n    return Config(size)", "size=1):\n    return Config(1.001)")
    outcome = compared(*across, "single", "tp2")
    assert outcome.judged.verdict is Verdict.REGRESSION
    assert [found.path for found in outcome.judged.undeclared] == ["product"]


def test_a_reduction_that_is_missing_names_the_ranks_that_differ(across: tuple[Project, Path]) -> None:
    across[0].edit(2, "fusion: bool = True", "fusion: bool = False")
    outcome = compared(*across, "single", "tp2")
    assert outcome.judged.verdict is Verdict.REGRESSION
    told = {found.path: found.new for found in outcome.judged.undeclared}
    assert "total is replicated, but ranks 0 and 1 differ" in told["total"]
    assert "on rank 0" in told["norm"]
    assert "product" in told


def test_a_probe_that_places_nothing_is_broken(across: tuple[Project, Path]) -> None:
    outcome = compared(*across, "single", "tp2", placed=False)
    assert outcome.judged.verdict is Verdict.BROKEN
    assert "does not say what part of product it holds" in outcome.judged.why


def test_the_command_and_the_fixture_take_two_layouts_and_goldens_leave_them_alone(
    across: tuple[Project, Path],
) -> None:
    project, _ = across
    done = project.parity("compare", "sharded.py::sharded", "--old-layout", "single", "--new-layout", "tp2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("sharded[single→tp2]: within_noise"), done.stdout
    project.write(
        "test_sharded.py",
        'def test_sharded(parity):\n    parity("sharded.py::sharded", old_layout="single", new_layout="tp2")\n',
    )
    done = project.pytest("test_sharded.py")
    assert done.returncode == 0, done.stdout
    assert project.parity("golden", "status").stdout.strip() == "no cases"
