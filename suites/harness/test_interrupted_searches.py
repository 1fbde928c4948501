"""`parity bisect` and `parity explain` that are interrupted end at once, and go on where they were."""

import signal
import subprocess
import time

import psutil
import pytest
from origin_projects import History, ends
from toy_project import Project


def started_command(project: Project, *words: str) -> subprocess.Popen[str]:
    """The `parity` command, running, with what it says of its progress."""
    return subprocess.Popen(
        project.command("-c", "from harness.cli import main; main()", *words),
        cwd=project.folder,
        env=project.environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background has it ignored
    )


def test_an_interrupted_bisection_goes_on_where_it_was(history: History) -> None:
    project, _, hashes = history
    words = ("bisect", "probes.py::size", *ends(hashes), "--workers", "1")
    with started_command(project, *words) as running:
        assert running.stderr is not None
        said = [next(line for line in running.stderr if "candidates left" in line) for _ in range(2)]
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=30)
    assert running.returncode != 0
    assert said[0] != said[1]
    begun = len(project.records("worker_started"))
    done = project.parity(*words)
    assert f"bad from toy {hashes[8][:12]}" in done.stdout, done.stderr
    assert begun >= 3
    assert len(project.records("worker_started")) <= 5, "both ends and the first candidate were observed before"


@pytest.mark.parametrize(("command", "number"), [("bisect", signal.SIGTERM), ("explain", signal.SIGINT)])
def test_an_interrupted_search_does_not_wait_for_the_attempt_that_runs(
    history: History, command: str, number: signal.Signals
) -> None:
    project, _, hashes = history
    begun = project.folder / "begun"
    words = (command, "probes.py::slow", f"begun={begun}", *(ends(hashes) if command == "bisect" else ()))
    with started_command(project, *words) as running:
        while not begun.exists() and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(number)
        _, said = running.communicate(timeout=30)  # a minute is left
    assert running.returncode == 128 + number
    assert "what was observed is kept, and the same command goes on from there" in said
    assert "Traceback" not in said
    assert not [worker for worker in project.records("worker_started") if psutil.pid_exists(worker["pid"])]
