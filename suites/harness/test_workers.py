"""A worker survives whatever a probe does, says what happened, and the next case is not disturbed."""

import dataclasses
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from toy_project import TOY, Project, ToyRunner, make_project, running

from harness.compare import Verdict
from harness.probes import ProbeError
from harness.workers.protocol import Limits

LIMITS = Limits(seconds=3, memory=256 << 20, output=16 << 20, grace=1)
FAULTS = {
    "raises": "the harness itself raised ValueError: boom",
    "exits": "exited with status 3 without an observation",
    "quits": "left by SystemExit: 4",
    "raises_what_is_no_exception": "the harness itself raised NoException: boom",
    "segfaults": "was killed by SIGSEGV",
    "is_killed": "was killed by SIGKILL",
    "takes_memory": "used more memory than its limit of 256 MiB",
    "runs_out_of_memory": "MemoryError: cannot allocate",
    "hangs": "did not end within 3 s, in hangs (faulty_probes.py:",
    "prints_a_gigabyte": "printed more than 16 MiB",
    "leaves_a_zombie": "left 1 zombie process(es) behind",
    "leaves_a_process": "left a process running: sleep 600",
    "returns_a_lock": "the observation cannot be encoded: x is a _thread:lock",
    "returns_nothing": "no evidence on rank 0: returned no x",
    "forgets_upstream": "no evidence on rank 0: never entered toy:build",
    "a_stand_in_breaks": "(in harness.workers.lanes.local_spec:",
}


FAULTY_PROBES = Path(__file__).with_name("faulty_probes.py")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyRunner]:
    """Workers that many faults in turn must not disturb."""
    with running(make_project(tmp_path_factory.mktemp("shared"))) as runner:
        yield ToyRunner(runner.runner, FAULTY_PROBES)


@pytest.fixture
def faulty(toy_runner: ToyRunner) -> ToyRunner:
    return ToyRunner(toy_runner.runner, FAULTY_PROBES)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_broken_with_its_reason_and_the_next_case_is_fine(shared: ToyRunner, fault: str) -> None:
    outcome = shared(fault, limits=LIMITS)
    assert outcome.judged.verdict is Verdict.BROKEN
    assert FAULTS[fault] in outcome.judged.why
    assert shared("fine").judged.verdict is Verdict.IDENTICAL
    assert len(shared.events("worker_started")) == 2


def test_a_probe_whose_forked_child_comes_back_is_not_believed(shared: ToyRunner) -> None:
    outcome = shared("returns_twice")
    assert outcome.judged.verdict is Verdict.BROKEN
    # The child may have ended by then, or not yet.
    assert outcome.judged.why.startswith(("old: left 1 zombie process(es)", "old: left a process running"))


def test_a_probe_file_that_cannot_be_imported_is_told(shared: ToyRunner, tmp_path: Path) -> None:
    for text in ("def broken(:\n", "raise RuntimeError('at import')\n", "import sys; sys.exit(3)\n"):
        (tmp_path / "bad.py").write_text(text)
        with pytest.raises(ProbeError, match=r"bad\.py cannot be imported"):
            ToyRunner(shared.runner, tmp_path / "bad.py")("anything")


def test_what_only_one_side_lacks_is_a_difference(shared: ToyRunner) -> None:
    outcome = shared("new_side_lacks_something")
    assert outcome.judged.verdict is Verdict.REGRESSION
    assert outcome.judged.why == "unavailable: (absent) → needs two accelerators"


def test_what_the_host_lacks_is_not_run_with_its_reason(shared: ToyRunner) -> None:
    judged = shared("lacks_something", layout="dp2").judged
    assert (judged.verdict, judged.why) == (Verdict.NOT_RUN, "needs two accelerators")


def test_what_upstream_raises_is_observed_though_it_be_no_exception(project: Project) -> None:
    project.edit(2, 'raise ValueError("', 'raise type("Failure", (BaseException,), {})("')
    with running(project) as runner:
        outcome = runner("refusal")
    assert outcome.judged.verdict is Verdict.BOTH_RAISE
    assert [(found.path, found.old, found.new) for found in outcome.judged.undeclared] == [
        ("exception", "ValueError: no such option (from toy:refuse)", "Failure: no such option (from toy:refuse)")
    ]


def test_the_last_lines_of_output_are_in_the_message(shared: ToyRunner) -> None:
    outcome = shared("exits", limits=LIMITS)
    assert "about to leave" in outcome.message


def test_ranks_left_waiting_are_cut_and_told_apart_from_the_one_that_died(shared: ToyRunner) -> None:
    outcome = shared("one_rank_dies", layout="dp2", limits=LIMITS)
    assert outcome.judged.verdict is Verdict.BROKEN
    assert outcome.judged.why.startswith(
        "old: rank 1 exited with status 5 without an observation; rank 0 was still waiting"
    )
    assert "one_rank_dies (faulty_probes.py" in outcome.judged.why


def test_no_process_outlives_its_case(shared: ToyRunner) -> None:
    for fault in ("leaves_a_process", "hangs", "one_rank_dies"):
        shared(fault, layout="dp2", limits=LIMITS)
    workers = [psutil.Process(event["pid"]) for event in shared.events("worker_started")]
    assert [worker.children(recursive=True) for worker in workers] == [[], []]


def test_a_worker_that_dies_is_restarted_once_and_says_so(faulty: ToyRunner, tmp_path: Path) -> None:
    outcome = faulty("kills_the_worker_once", marker=str(tmp_path / "marker"))
    assert outcome.judged.verdict is Verdict.IDENTICAL
    [death] = faulty.events("worker_died")
    assert death["starts"] == 1
    assert len(faulty.events("worker_started")) == 3
    assert faulty("fine").judged.verdict is Verdict.IDENTICAL


def test_a_worker_that_dies_twice_is_given_up(faulty: ToyRunner, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        outcome = faulty("kills_the_worker_once", marker=str(tmp_path / name))
    assert outcome.judged.verdict is Verdict.BROKEN
    assert "died 2 times" in outcome.judged.why


def test_workers_end_with_the_run(toy_runner: ToyRunner) -> None:
    toy_runner("config")
    workers = [psutil.Process(event["pid"]) for event in toy_runner.events("worker_started")]
    toy_runner.runner.stop()
    assert [worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers] == [False, False]


def test_temporary_files_of_upstream_go_with_its_worker(faulty: ToyRunner, tmp_path: Path) -> None:
    faulty("leaves_a_temporary_file", marker=str(tmp_path / "marker"))
    left = Path((tmp_path / "marker").read_text())
    assert left.exists()
    faulty.runner.stop()
    assert not left.exists()
    assert not left.parent.exists()


def test_workers_end_when_their_owner_is_killed(project: Project) -> None:
    script = (
        "import os, time; from harness.selection import Selection; from harness.runner import *; "
        "from harness.compare import Ledger; from harness.cases import make_case; from pathlib import Path; "
        "runner = Runner(new_run_folder(Path.cwd()), Selection().build(print), Ledger(), os.getpid()); "
        "runner.run(make_case('probes.py::config', {})); os.kill(os.getpid(), 9)"
    )
    project._run("-c", script)
    started = [event["pid"] for event in project.records("worker_started")]
    assert len(started) == 2
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in started if psutil.pid_exists(pid)] == []


def test_modules_that_ranks_import_are_reported_and_preloaded(project: Project, faulty: ToyRunner) -> None:
    for stack in (faulty.runner.sides.old, faulty.runner.sides.new):
        (stack.overlay / "antigravity_free_module.py").write_text("VALUE = 7\n")
    assert faulty("imports_late").judged.verdict is Verdict.IDENTICAL
    assert faulty("fine").judged.verdict is Verdict.IDENTICAL
    imported = faulty.events("imported")
    assert [event["late"] for event in imported] == [["antigravity_free_module"]] * 2
    assert faulty("imports_late").old.ranks[0].imported == ()


def test_what_a_scan_imports_is_left_to_it(project: Project, faulty: ToyRunner) -> None:
    for stack in (faulty.runner.sides.old, faulty.runner.sides.new):
        (stack.overlay / "antigravity_free_module.py").write_text("VALUE = 7\n")
    assert faulty("imports_late", scans=True).judged.verdict is Verdict.IDENTICAL
    assert faulty("fine").judged.verdict is Verdict.IDENTICAL
    assert [event["late"] for event in faulty.events("imported") if event["late"]] == []


def test_what_a_case_finds_imported_does_not_depend_on_the_one_that_came_first(project: Project) -> None:
    quiet, patching = project.folder / "quiet.py", project.folder / "patching.py"
    shipped = "from harness.probes import probe\n@probe(returns=('x',))\ndef one(run):\n    return {'x': 1}\n"
    quiet.write_text(shipped)
    patching.write_text(f"PRELOAD = ('mbridge',)\n{shipped}")
    with running(project, preload=[f"{quiet}::one", f"{patching}::one"]) as runner:
        sides = runner.runner.sides
        for stack in (sides.old, sides.new):
            (stack.overlay / "peft.py").write_text("def merged():\n    pass\n")
            (stack.overlay / "mbridge.py").write_text("import peft\ndef other():\n    pass\npeft.merged = other\n")
        on = ToyRunner(runner.runner, quiet)
        before = on("one")
        psutil.Process(runner.events("worker_started")[-1]["pid"]).kill()
        outcomes = [before, on("one"), ToyRunner(runner.runner, patching)("one")]
    assert [outcome.judged.verdict for outcome in outcomes] == [Verdict.IDENTICAL] * 3
    found = [side.ranks[0].environment["patched"] for outcome in outcomes for side in outcome.sides.values()]
    assert found == [{"peft:merged": "mbridge:other"}] * 6
    assert len(runner.events("worker_started")) == 3


def test_a_side_imports_once_however_many_cases_it_runs(toy_runner: ToyRunner) -> None:
    for size in range(5):
        assert toy_runner("config", size=size).judged.verdict is Verdict.IDENTICAL
    assert len(toy_runner.events("imported")) == 2
    assert len(toy_runner.events("worker_started")) == 2


@pytest.mark.parametrize("file", ["toy-*.dist-info/METADATA", "toy-*.dist-info/direct_url.json", "toy/__init__.py"])
def test_an_overlay_that_is_not_what_was_installed_stops_the_worker(toy_runner: ToyRunner, file: str) -> None:
    [changed] = toy_runner.runner.sides.new.overlay.glob(file)
    changed.write_text(changed.read_text() + " ")
    outcome = toy_runner("config")
    assert outcome.judged.verdict is Verdict.BROKEN
    assert "is not what was installed; delete " in outcome.judged.why


def test_a_pin_that_is_not_what_was_asked_for_stops_the_worker(toy_runner: ToyRunner) -> None:
    sides = toy_runner.runner.sides
    [pin] = sides.new.pins
    asked = dataclasses.replace(sides.new, pins=(dataclasses.replace(pin, tree_hash="0"),))
    toy_runner.runner.sides = dataclasses.replace(sides, new=asked)
    outcome = toy_runner("config")
    assert outcome.judged.verdict is Verdict.BROKEN
    assert "0 is pinned" in outcome.judged.why


def test_a_checkout_is_accepted_with_its_commit_and_dirt(project: Project) -> None:
    tree = project.folder / "trees" / "2"
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tree), *words], check=True)
    project.edit(2, "size: int = 1", "size: int = 2")
    with running(project) as runner:
        assert runner("config", size=5).judged.verdict is Verdict.IDENTICAL
        [pin] = runner.runner.sides.new.pins
    assert pin.dirty
    assert pin.commit is not None


def test_an_import_from_elsewhere_is_noticed(project: Project) -> None:
    elsewhere = project.write("elsewhere/toy/__init__.py", TOY)
    project.write(
        "trees/2/toy/__init__.py",
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('toy', {str(elsewhere)!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['toy'] = module\n"
        "spec.loader.exec_module(module)\n",
    )
    with running(project) as runner:
        outcome = runner("config")
    assert outcome.judged.verdict is Verdict.BROKEN
    assert "not from its overlay" in outcome.judged.why


def test_a_mask_in_which_the_sides_differ_is_masked(project: Project) -> None:
    project.edit(2, "fusion: bool = True", "fusion: bool = False")
    with running(project) as runner:
        outcome = ToyRunner(runner.runner, FAULTY_PROBES)("forces")
    assert outcome.judged.verdict is Verdict.MASKED
    assert outcome.judged.why == "the lane forces Config.fusion: True → False"


def test_observations_name_what_the_probe_entered_with_its_hash(toy_runner: ToyRunner) -> None:
    [entered] = toy_runner("config").new.ranks[0].entered
    assert entered.function == "toy:build"
    assert Path(entered.file).is_relative_to(toy_runner.runner.sides.new.overlay)
    assert len(entered.sha256) == 64
