"""`parity bisect`, `parity explain` and `parity check`, as a user types them, on repositories made for the test."""

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from stacks_support import commit, git
from toy_project import PROBES, Project, make_project

CLONES = """
[tool.parity.clones]
toy = "{toy}"
part = "{part}"
"""
PROJECT = """
[tool.parity]
old = "toy-old"
new = "toy-new"
base = "current"

[tool.parity.stacks.toy-old.pins]
toy = {{ git = "{toy}", rev = "{first}" }}
part = {{ git = "{part}", rev = "{part_first}" }}

[tool.parity.stacks.toy-new.pins]
toy = {{ git = "{toy}", rev = "main" }}
part = {{ git = "{part}", rev = "main" }}
"""
GOOD = """
def build(size=1):
    return {"size": size}
"""
BAD = GOOD.replace('"size": size', '"size": size + 1')
MORE_PROBES = """

@probe(enters=("toy:build",), returns=("config.size",))
def size(run):
    \"\"\"What toy makes of one.\"\"\"
    return {"config": run.upstream("toy:build")(1)}


@probe(enters=("toy:both",), returns=("total",))
def both(run):
    \"\"\"What toy and part make together.\"\"\"
    config = run.upstream("toy:configured")()
    run.resolve("config", config)
    return {"total": run.upstream("toy:both")(config)}


@probe(enters=("toy.layers:scaled",), tensors=("out",))
def traced(run):
    \"\"\"What two layers make of four numbers.\"\"\"
    import numpy
    from harness.observe.trace import Step, TracedTensor

    value = numpy.arange(4.0)
    for name in ("first", "second"):
        if name == run.watched:
            run.sources.start()
        before, value = value, run.upstream(f"toy:{name}")(value)
        if name == run.watched:
            run.sources.stop()
        seen = [TracedTensor("float64", each.shape, each.tobytes().hex()) for each in (before, value)]
        run.trace.append(Step(name, "forward", (seen[0],), (seen[1],)))
    return {"out": value}


@probe(enters=("toy:build",), returns=("config.size",))
def slow(run, *, begun: str):
    \"\"\"What toy makes of one, a minute after it made a file.\"\"\"
    import pathlib
    import time

    pathlib.Path(begun).touch()
    time.sleep(60)
    return {"config": run.upstream("toy:build")(1)}
"""
METADATA = '[project]\nname = "{name}"\nversion = "1.0"\n'


def repository(folder: Path, name: str, texts: list[str]) -> tuple[Path, list[str]]:
    """A repository of one module, a commit for each text."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    hashes = []
    for number, text in enumerate(texts):
        files = {f"{name}/__init__.py": f"# {number}\n{text}", "pyproject.toml": METADATA.format(name=name)}
        hashes.append(commit(folder, files))
    return folder, hashes


def project_of(
    tmp_path: Path, toy: list[str], part: list[str], *, clones: bool = True
) -> tuple[Project, Path, list[str]]:
    project = make_project(tmp_path / "project")
    clone, hashes = repository(tmp_path / "toy", "toy", toy)
    other, others = repository(tmp_path / "part", "part", part)
    text = (PROJECT + (CLONES if clones else "")).format(toy=clone, part=other, first=hashes[0], part_first=others[0])
    project.write("pyproject.toml", text)
    project.write("probes.py", PROBES + MORE_PROBES)
    return project, clone, hashes


@pytest.fixture
def history(tmp_path: Path) -> tuple[Project, Path, list[str]]:
    """Twelve commits of toy: the ninth brings the change; the sixth and seventh cannot be imported."""
    texts = [GOOD] * 8 + [BAD] * 4
    texts[5] = texts[6] = "import no_such_package\n" + GOOD
    return project_of(tmp_path, texts, ["VALUE = 1\n"])


def ends(hashes: list[str]) -> list[str]:
    return ["--axis", "toy", "--good", hashes[0], "--bad", "main"]


def test_bisect_names_the_commit_its_files_and_a_command_that_shows_it(
    history: tuple[Project, Path, list[str]],
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


def test_what_was_observed_is_read_back_by_the_next_bisection(history: tuple[Project, Path, list[str]]) -> None:
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


def test_ends_that_do_not_differ_are_said(history: tuple[Project, Path, list[str]]) -> None:
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


def test_a_dry_run_starts_nothing(history: tuple[Project, Path, list[str]]) -> None:
    project, _, hashes = history
    done = project.parity("bisect", "probes.py::size", *ends(hashes), "--dry-run", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "11 candidates, about 3 rounds of 2" in done.stderr
    assert not (project.folder / ".parity").exists()


FLAKY = """
from pathlib import Path


def build(size=1):
    count = Path({file!r})
    with count.open("a") as file:
        file.write("x")
    return {{"size": size + (count.stat().st_size % 3 != {good})}}
"""


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


def test_explain_refuses_a_flaky_case(tmp_path: Path) -> None:
    flaky = FLAKY.format(file=str(tmp_path / "count"), good=2)
    project, _, _ = project_of(tmp_path, [GOOD, flaky], ["VALUE = 1\n"])
    done = project.parity("explain", "probes.py::size")
    assert done.returncode == 1
    assert "config.size is not the same twice (old again: good, new again: good)" in done.stderr
    assert "`parity bisect` measures how often a case fails" in done.stderr


def test_git_bisect_run_with_check_finds_it_too(history: tuple[Project, Path, list[str]]) -> None:
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
def test_check_has_the_exit_status_of_git_bisect(
    history: tuple[Project, Path, list[str]], tree: str, status: int
) -> None:
    project, _, _ = history
    project.write("mine/toy/__init__.py", tree)
    project.write("mine/pyproject.toml", METADATA.format(name="toy"))
    done = project.parity("check", "probes.py::size", "--new-pin", "toy=path:mine")
    assert done.returncode == status, done.stdout + done.stderr


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


def test_an_interrupted_bisection_goes_on_where_it_was(history: tuple[Project, Path, list[str]]) -> None:
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
    history: tuple[Project, Path, list[str]], command: str, number: signal.Signals
) -> None:
    project, _, hashes = history
    begun = project.folder / "begun"
    words = (command, "probes.py::slow", f"begun={begun}", *(ends(hashes) if command == "bisect" else ()))
    with started_command(project, *words) as running:
        while not begun.exists() and running.poll() is None:
            time.sleep(0.05)
        started = time.monotonic()
        running.send_signal(number)
        _, said = running.communicate(timeout=30)
    assert time.monotonic() - started < 10, "60 s were left"
    assert running.returncode == 128 + number
    assert "what was observed is kept, and the same command goes on from there" in said
    assert "Traceback" not in said
    assert not [worker for worker in project.records("worker_started") if psutil.pid_exists(worker["pid"])]


TOGETHER = """
from part import VALUE


class Config:
    def __init__(self, changed):
        self.wide = self.deep = 2 if changed else 1
        self.plain = VALUE


def configured():
    return Config(VALUE == 2 and {own} == 2)


def both(config):
    return 10 if config.wide == 2 or config.deep == 2 else 1
"""


def commit_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("commit: ")]


def test_explain_names_the_two_pins_and_the_two_fields_of_which_each_alone_is_harmless(tmp_path: Path) -> None:
    toy = [TOGETHER.format(own=1), TOGETHER.format(own=2)]
    project, _, hashes = project_of(tmp_path, toy, ["VALUE = 1\n", "VALUE = 2\n"])
    done = project.parity("explain", "probes.py::both")
    assert done.returncode == 0, done.stderr
    difference, pins, cause, *_ = done.stdout.splitlines()
    assert "both: total: 1 → 10" in difference
    assert pins.startswith("comes with part")
    assert "and toy" in pins
    assert "no part" not in pins
    assert cause == "caused by config.deep 1 → 2, config.wide 1 → 2: set back, the sides agree"
    commits = commit_lines(done.stdout)
    assert [line.split()[1] for line in commits] == ["part", "toy"]
    assert commits[1].startswith(f"commit: toy {hashes[1][:12]}: change (Ann, ")
    assert all("--field deep --field wide" in line for line in commits)


def test_explain_says_which_pin_plays_no_part_and_goes_on_to_the_commit(tmp_path: Path) -> None:
    project, _, hashes = project_of(tmp_path, [GOOD, GOOD, BAD, BAD], ["VALUE = 1\n", "VALUE = 2\n"])
    done = project.parity("explain", "probes.py::size")
    assert done.returncode == 0, done.stderr
    assert "comes with toy" in done.stdout
    assert "part plays no part" in done.stdout
    assert "put back on the new side, it is gone" in done.stdout
    assert "no config was resolved; no module was traced; changed of what the probe must enter: toy/" in done.stdout
    [line] = commit_lines(done.stdout)
    assert line.startswith(f"commit: toy {hashes[2][:12]}: change (Ann, ")
    assert "changes toy/__init__.py; found by parity bisect " in line
    again = project.parity(*line.partition("found by parity ")[2].split())
    assert f"bad from toy {hashes[2][:12]}" in again.stdout, again.stderr


@pytest.mark.parametrize(("clones", "more"), [(True, ["--no-bisect"]), (False, [])])
def test_without_a_clone_explain_ends_with_the_command(tmp_path: Path, clones: bool, more: list[str]) -> None:
    project, clone, hashes = project_of(tmp_path, [GOOD, BAD], ["VALUE = 1\n"], clones=clones)
    done = project.parity("explain", "probes.py::size", *more)
    assert done.returncode == 0, done.stderr
    [line] = commit_lines(done.stdout)
    assert line.startswith("commit: parity bisect ")
    assert f"--axis toy --good {hashes[0]} --bad main --stack toy-old --path config.size" in line
    assert line.endswith("" if clones else " --clone toy=PATH")
    found = project.parity(*line.removeprefix("commit: parity ").replace("toy=PATH", f"toy={clone}").split())
    assert f"bad from toy {hashes[1][:12]}" in found.stdout, found.stderr


LAYERS = """
from toy.layers import scaled


def first(value):
    return value + 1


def second(value):
    return scaled(value)
"""


def test_where_no_field_explains_it_the_first_module_and_its_changed_files_are_named(tmp_path: Path) -> None:
    project, _, _ = project_of(tmp_path, [GOOD], ["VALUE = 1\n"], clones=False)
    for side, factor in (("old", 2), ("new", 3)):
        project.write(f"{side}/toy/__init__.py", LAYERS)
        project.write(f"{side}/toy/same.py", "SCALE = 1\n")
        project.write(
            f"{side}/toy/layers.py",
            f"from toy.same import SCALE\n\n\ndef scaled(value):\n    return value * {factor} * SCALE\n",
        )
        project.write(f"{side}/pyproject.toml", METADATA.format(name="toy"))
    done = project.parity("explain", "probes.py::traced", "--old-pin", "toy=path:old", "--new-pin", "toy=path:new")
    assert done.returncode == 0, done.stderr
    assert (
        "no config was resolved; first diverges in second (forward); changed of second: toy/layers.py"
        in done.stdout.splitlines()
    )
    [line] = commit_lines(done.stdout)
    assert line.startswith("commit: none to look for, toy=path:")


def test_a_case_id_of_an_earlier_run_is_enough(history: tuple[Project, Path, list[str]]) -> None:
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
