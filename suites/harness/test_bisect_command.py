"""`parity bisect`, as a user types it."""

from pathlib import Path

import pytest
from origin_projects import BAD, FLAKY, GOOD, MORE_PROBES, History, ends, project_of
from stacks_support import git
from toy_project import PROBES


def test_bisect_names_the_commit_its_files_and_a_command_that_shows_it(
    history: History,
) -> None:
    project, clone, hashes = history
    done = project.parity("bisect", "probes.py::size", *ends(hashes), "-o", "culprit.md")
    assert done.returncode == 0, done.stderr
    assert f"bad from toy {hashes[8][:12]}" in done.stdout
    assert "`config.size: 1 → 2`" in done.stdout
    assert "changes `toy/__init__.py`" in done.stdout
    author = git(clone, "log", "-1", "--format=%an", hashes[8])
    assert author in done.stdout
    assert "candidates left" in done.stderr
    assert (project.folder / "culprit.md").read_text() == done.stdout
    again = next(line for line in done.stdout.splitlines() if line.startswith("parity compare "))
    shown = project.parity(*again.split()[1:])
    assert shown.returncode == 1
    assert "config.size: 1 → 2" in shown.stdout


def test_what_was_observed_is_read_back_by_the_next_bisection(history: History) -> None:
    project, _, hashes = history
    words = ("bisect", "probes.py::size", *ends(hashes))
    first = project.parity(*words)
    assert len(project.records("worker_started")) > 2
    second = project.parity(*words)
    assert project.records("worker_started") == []
    found = [text.splitlines()[0] for text in (first.stdout, second.stdout)]
    assert found[0] == found[1]
    project.write("probes.py", project.probes.read_text() + "\n# changed\n")
    project.parity(*words)
    assert project.records("worker_started") != []


def test_the_culprit_among_commits_that_cannot_run_is_a_range(tmp_path: Path) -> None:
    broken = "import no_such_package\n" + GOOD
    project, _, hashes = project_of(tmp_path, [GOOD, broken, broken, BAD], ["VALUE = 1\n"])
    done = project.parity("bisect", "probes.py::size", *ends(hashes))
    assert done.returncode == 0, done.stderr
    assert "One of 3; the others before the last could not run:" in done.stdout
    assert all(each[:12] in done.stdout for each in hashes[1:])


def test_another_failure_is_not_the_one_looked_for(tmp_path: Path) -> None:
    raising = GOOD.replace('return {"size": size}', 'raise ValueError("other")')
    project, _, hashes = project_of(tmp_path, [GOOD, GOOD, raising, raising, BAD], ["VALUE = 1\n"])
    done = project.parity("bisect", "probes.py::size", *ends(hashes))
    assert done.returncode == 0, done.stderr
    assert "other" in done.stderr
    assert "One of 3" in done.stdout


def test_ends_that_do_not_differ_are_said(history: History) -> None:
    project, _, hashes = history
    done = project.parity("bisect", "probes.py::size", "--axis", "toy", "--good", hashes[0], "--bad", hashes[4])
    assert done.returncode == 1
    assert "good and bad do not differ" in done.stderr
    done = project.parity("bisect", "probes.py::size", "--axis", "toy", "--good", "no-such-tag", "--bad", "main")
    assert done.returncode == 2
    assert "no revision or release tag 'no-such-tag'" in done.stderr
    typo = project.parity("bisect", "probes.py::size", "--axis", "tyo", "--good", "1", "--bad", "2")
    assert typo.returncode == 2
    assert "--axis tyo: stack toy-new has no such pin; it has part, toy. To move another" in typo.stderr
    same = project.parity("bisect", "probes.py::size", "--axis", "toy", "--good", "main", "--bad", "main")
    assert same.returncode == 2
    assert "there is nothing between them" in same.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_starts_nothing(history: History) -> None:
    project, _, hashes = history
    done = project.parity("bisect", "probes.py::size", *ends(hashes), "--dry-run", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "11 candidates, about 3 rounds of 2" in done.stderr
    assert not (project.folder / ".parity").exists()


@pytest.mark.parametrize("good", [0, 1])
def test_a_flaky_case_is_searched_by_probabilities(tmp_path: Path, good: int) -> None:
    """It shows the difference in two runs of three, the first two among them or not."""
    flaky = FLAKY.format(file=str(tmp_path / "count"), good=good % 3)
    project, _, hashes = project_of(tmp_path, [GOOD] * 5 + [flaky] * 5, ["VALUE = 1\n"])
    done = project.parity("bisect", "probes.py::size", *ends(hashes), "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "the case is flaky: 20 runs of each end" in done.stderr
    assert "% sure" in done.stdout
    assert f"bad from toy {hashes[5][:12]}" in done.stdout


def test_a_case_id_of_an_earlier_run_is_enough(history: History) -> None:
    project, _, hashes = history
    project.write(
        "probes.py",
        PROBES.replace("return Config(size)", "")
        + MORE_PROBES.replace("def size(run)", "def size(run, *, by: int = 1)"),
    )
    project.parity("compare", "probes.py::size", "by=2")
    done = project.parity("bisect", "size[by=2]", *ends(hashes))
    assert f"bad from toy {hashes[8][:12]}" in done.stdout, done.stderr
    done = project.parity("bisect", "size[by=7]", *ends(hashes))
    assert done.returncode == 2
    assert "no run here has a case 'size[by=7]'" in done.stderr
