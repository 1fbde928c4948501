"""Goldens change only by a named act, say when something moved, and are never used damaged."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from toy_project import Project, make_project, summary

from harness.goldens import GoldenStore

TEST = """
import pytest

@pytest.mark.parametrize("size", [1, 2])
def test_config(parity, size):
    parity("probes.py::config", size=size)

def test_weights(parity):
    parity("probes.py::weights")
"""
WEIGHTS = '''

@probe(enters=("toy:build",), tensors=("weights",))
def weights(run):
    """Weights that toy makes."""
    import numpy
    size = run.upstream("toy:build")().size
    return {"weights": numpy.arange(12, dtype=numpy.float32) * size, "few": numpy.array([1.5, float("nan")])}
'''


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose goldens are recorded, both sides alike."""
    project = make_project(tmp_path_factory.mktemp("recorded"))
    project.write("tests/test_toy.py", TEST)
    project.write("probes.py", project.probes.read_text() + WEIGHTS)
    assert project.pytest("tests").returncode == 0
    done = project.parity("golden", "new")
    assert done.returncode == 0, done.stderr
    return project.folder


@pytest.fixture
def recorded(template: Path, tmp_path: Path) -> Project:
    """A copy of the recorded project."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns("workers"))
    project = make_project(tmp_path)
    project.write("probes.py", project.probes.read_text() + WEIGHTS)
    return project


def goldens(project: Project) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted((project.folder / "golden" / "cpu").glob("*.json"))}


def golden_file(project: Project, start: str) -> Path:
    [file] = (project.folder / "golden" / "cpu").glob(f"{start}-*.json")
    return file


def both_sides(project: Project, before: str, after: str) -> None:
    for side in (1, 2):
        project.edit(side, before, after)


def test_a_run_never_writes_and_the_same_again_is_green(recorded: Project) -> None:
    before = goldens(recorded)
    assert len(before) == 3
    done = recorded.pytest("tests")
    assert done.returncode == 0
    assert summary(done.stdout).startswith("3 identical")
    assert goldens(recorded) == before
    assert "3 same" in recorded.parity("golden", "status").stdout


def test_a_golden_holds_provenance_hashes_and_full_precision(recorded: Project) -> None:
    text = golden_file(recorded, "weights").read_text()
    golden = json.loads(text)
    assert golden["provenance"]["stack"] == "toy-1"
    assert golden["provenance"]["versions"].keys() == {"toy"}
    assert golden["history"][0]["why"] == "first recording"
    tensors = golden["ranks"][0]["tensors"]
    assert tensors["weights"]["norm"] == pytest.approx(506**0.5, rel=1e-15)
    assert tensors["few"]["values"] == ["1.5", "nan"]
    assert tensors["few"]["nan"] == 1


def test_both_sides_moved_is_drift_which_fails_only_when_asked(recorded: Project) -> None:
    both_sides(recorded, "fusion: bool = True", "fusion: bool = False")
    done = recorded.pytest("tests")
    assert done.returncode == 0, done.stdout
    assert "2 drift" in summary(done.stdout)
    assert "golden config.fusion: True → False" in done.stdout
    strict = recorded.pytest("tests", "--strict-goldens")
    assert strict.returncode == 1
    shown = recorded.parity("golden", "diff", "config[size=2]")
    assert shown.returncode == 1
    assert "config.fusion: True → False" in shown.stdout


def test_the_new_side_alone_moved_is_a_regression(recorded: Project) -> None:
    recorded.edit(2, "fusion: bool = True", "fusion: bool = False")
    done = recorded.pytest("tests")
    assert done.returncode == 1
    assert "2 regression" in summary(done.stdout)
    assert "golden" not in done.stdout


def test_the_old_side_alone_moved_is_drift(recorded: Project) -> None:
    recorded.edit(1, "fusion: bool = True", "fusion: bool = False")
    done = recorded.pytest("tests")
    assert "2 drift" in summary(done.stdout)


def test_all_three_different_is_told(recorded: Project) -> None:
    recorded.edit(1, "Config(size)", "Config(5)")
    recorded.edit(2, "Config(size)", "Config(6)")
    done = recorded.pytest("tests", "-k", "weights")
    assert done.returncode == 1
    assert "the golden differs from both" in done.stdout


def test_golden_only_runs_the_new_side_alone(recorded: Project) -> None:
    done = recorded.pytest("tests", "--golden-only")
    assert done.returncode == 0, done.stdout
    assert summary(done.stdout).startswith("3 identical")
    assert [event["stack"] for event in recorded.records("worker_started")] == ["toy-2"]
    recorded.edit(2, "fusion: bool = True", "fusion: bool = False")
    done = recorded.pytest("tests", "--golden-only")
    assert done.returncode == 1
    assert "config.fusion: True → False" in done.stdout
    assert "[old = golden]" in done.stdout


def test_accept_writes_exactly_the_named_case_with_its_reason(recorded: Project) -> None:
    both_sides(recorded, "fusion: bool = True", "fusion: bool = False")
    recorded.pytest("tests")
    before = goldens(recorded)
    assert recorded.parity("golden", "accept", "config[size=2]").returncode == 2
    assert recorded.parity("golden", "accept", "config[size=2]", "--why", " ").returncode == 2
    assert goldens(recorded) == before
    done = recorded.parity("golden", "accept", "config[size=2]", "--why", "the kernel is gone")
    assert done.returncode == 0, done.stderr
    changed = [name for name, text in goldens(recorded).items() if text != before[name]]
    assert changed == [golden_file(recorded, "config-size=2").name]
    history = json.loads(golden_file(recorded, "config-size=2").read_text())["history"]
    assert [entry["why"] for entry in history] == ["first recording", "the kernel is gone"]
    assert recorded.parity("golden", "accept", "config[size=9]", "--why", "x").returncode == 2


def test_two_writers_at_once_leave_whole_files(recorded: Project) -> None:
    both_sides(recorded, "fusion: bool = True", "fusion: bool = False")
    recorded.pytest("tests")
    with ThreadPoolExecutor(2) as pool:
        words = ("golden", "accept", "config[size=2]", "config", "--why", "twice at once")
        done = list(pool.map(lambda _: recorded.parity(*words), range(2)))
    assert [one.returncode for one in done] == [0, 0], done
    assert "3 same" in recorded.parity("golden", "status").stdout
    assert list((recorded.folder / "golden" / "cpu").glob("*.partial")) == []


@pytest.mark.parametrize("words", [["-n", "2"], ["-k", "config"], ["-p", "cacheprovider", "--lf"]])
def test_goldens_are_compared_however_a_run_is_cut_or_spread(recorded: Project, words: list[str]) -> None:
    both_sides(recorded, "fusion: bool = True", "fusion: bool = False")
    before = goldens(recorded)
    done = recorded.pytest("tests", *words)
    assert done.returncode == 0, done.stdout
    assert "2 drift" in summary(done.stdout)
    assert goldens(recorded) == before


def test_what_changes_with_the_hash_seed_is_not_accepted(recorded: Project) -> None:
    recorded.write("probes.py", recorded.probes.read_text().replace("size)}", "size), 'seed': hash('parity')}"))
    recorded.pytest("tests")
    before = goldens(recorded)
    done = recorded.parity("golden", "accept", "config[size=2]", "--why", "why not")
    assert done.returncode == 2
    assert "changes with hash seed or import order" in done.stderr
    assert goldens(recorded) == before


def test_prune_only_after_a_complete_green_run(recorded: Project) -> None:
    recorded.write("tests/test_toy.py", TEST.replace("[1, 2]", "[1]"))
    recorded.pytest("tests", "-k", "config")
    filtered = recorded.parity("golden", "prune")
    assert filtered.returncode == 2
    assert "filtered by keyword" in filtered.stderr
    recorded.pytest("tests")
    done = recorded.parity("golden", "prune")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["config[size=2]"]
    assert len(goldens(recorded)) == 2


def test_prune_refuses_after_a_red_or_interrupted_run(recorded: Project) -> None:
    recorded.edit(2, "fusion: bool = True", "fusion: bool = False")
    recorded.pytest("tests")
    assert "not green" in recorded.parity("golden", "prune").stderr
    latest = sorted((recorded.folder / ".parity" / "runs").iterdir())[-1]
    records = latest / "records.jsonl"
    records.write_text("".join(line for line in records.read_text().splitlines(True) if '"run_finished"' not in line))
    assert "did not end" in recorded.parity("golden", "prune").stderr


DAMAGE = {
    "truncated": (lambda text: text[:200], "cannot be read"),
    "empty": (lambda _text: "", "cannot be read"),
    "not an object": (lambda _text: "[]", "cannot be read"),
    "edited by hand": (lambda text: text.replace('"fusion": true', '"fusion": false'), "was edited by hand"),
    "merge conflict": (lambda text: f"<<<<<<< ours\n{text}=======\n{text}>>>>>>> theirs\n", "merge conflict"),
    "newer format": (lambda text: text.replace('"format": 1', '"format": 2'), "update the harness"),
    "binary": (lambda _text: "\x00\x01", "cannot be read"),
    "nested": (lambda _text: "[" * 100_000, "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_golden_is_told_with_its_file_and_never_ignored(recorded: Project, damage: str) -> None:
    change, told = DAMAGE[damage]
    file = golden_file(recorded, "config-size=2")
    file.write_text(change(file.read_text()))
    done = recorded.pytest("tests", "-k", "config")
    assert done.returncode == 1
    assert told in done.stdout
    assert file.name in done.stdout
    assert "1 broken" in summary(done.stdout)
    status = recorded.parity("golden", "status")
    assert status.returncode == 2
    assert told in status.stderr
    assert "Traceback" not in status.stderr


def test_another_host_class_compares_by_statistics(recorded: Project) -> None:
    file = golden_file(recorded, "weights")
    store = GoldenStore(file.parent)
    golden = store.read(file.stem)
    assert golden is not None
    elsewhere = {**golden.provenance, "host": {"machine": "elsewhere"}}
    weights = golden.ranks[0].tensors["weights"]
    assert weights.norm is not None

    def kept(norm: float) -> int:
        moved = {
            **golden.ranks[0].tensors,
            "weights": weights.__class__(**{**vars(weights), "sha256": "0", "norm": norm}),
        }
        rank = golden.ranks[0].__class__(**{**vars(golden.ranks[0]), "tensors": moved})
        store.write(file.stem, golden.__class__(golden.case, elsewhere, golden.history, (rank,)))
        return recorded.pytest("tests", "-k", "weights", "--strict-goldens").returncode

    assert kept(weights.norm * (1 + 1e-7)) == 0
    assert kept(weights.norm * 1.001) == 1
