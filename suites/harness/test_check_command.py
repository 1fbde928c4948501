"""`parity check`, as a user or `git bisect run` types it."""

import subprocess

import pytest
from origin_projects import BAD, GOOD, METADATA, History
from stacks_support import git


def test_git_bisect_run_with_check_finds_it_too(history: History) -> None:
    project, clone, hashes = history
    probe = f"{project.probes}::size"
    command = project.command("-c", "from harness.cli import main; main()", "check", probe)
    command += ["--project", str(project.folder), "--new-pin", "toy=path:."]
    git(clone, "bisect", "start", "main", hashes[0])
    done = subprocess.run(
        ["git", "bisect", "run", *command],
        cwd=clone,
        env=project.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"{hashes[8]} is the first bad commit" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("tree", "status"), [(GOOD, 0), (BAD, 1), ("import no_such_package\n", 125)])
def test_check_has_the_exit_status_of_git_bisect(history: History, tree: str, status: int) -> None:
    project, _, _ = history
    project.write("mine/toy/__init__.py", tree)
    project.write("mine/pyproject.toml", METADATA.format(name="toy"))
    done = project.parity("check", "probes.py::size", "--new-pin", "toy=path:mine")
    assert done.returncode == status, done.stdout + done.stderr
