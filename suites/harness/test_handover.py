"""Files that one probe wrote and another reads: each side's own, the other side's, another stack's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_project import PYPROJECT, Project, ToyRunner, make_project, running

from harness.cases import make_case
from harness.compare import Verdict
from harness.layouts import UnknownLayoutError
from harness.probes import ProbeError
from harness.runner import Outcome

PROBES = '''
import json
from harness.probes import probe


@probe(enters=("toy:build",), returns=("written",))
def written(run, *, size: int = 1, fails: str = "no"):
    """Each rank leaves what toy builds in a file."""
    if fails == "raises":
        run.upstream("toy:refuse")()
    config = run.upstream("toy:build")(size) if fails != "blind" else None
    assert fails != "breaks"
    (run.folder / f"{run.rank}.json").write_text(json.dumps(vars(config) if config else {}))
    return {"written": 1}


@probe(enters=("toy:build",), returns=("found",), reads="written")
def readback(run, *, size: int = 1, fails: str = "no", spoils: bool = False):
    """What the other left, and what toy builds now."""
    found = {file.name: json.loads(file.read_text()) for file in sorted(run.written.glob("*.json"))}
    if spoils:
        [file.unlink() for file in run.written.glob("*.json")]
    return {"found": found, "now": run.upstream("toy:build")(size)}


@probe(returns=("found",))
def forgetful(run):
    """Reads, and never said so."""
    return {"found": str(run.written)}


@probe(returns=("found",), reads="nobody")
def lost(run):
    """Reads what no probe writes."""
'''
THIRD = '\n[tool.parity.stacks.toy-3.pins]\ntoy = { path = "trees/3" }\n'


def reading_project(folder: Path) -> Project:
    """Three stacks, which build configs of 1, 2 and 3 times the size they are asked for."""
    project = make_project(folder)
    project.write("pyproject.toml", PYPROJECT + THIRD)
    project.write("trees/3/toy/__init__.py", (folder / "trees/1/toy/__init__.py").read_text())
    for side in (2, 3):
        project.edit(side, "return Config(size)", f"return Config({side} * size)")
    project.write("probes.py", PROBES)
    return project


@pytest.fixture
def reading(tmp_path: Path) -> Project:
    return reading_project(tmp_path)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyRunner]:
    with running(reading_project(tmp_path_factory.mktemp("read"))) as runner:
        yield runner


def sizes(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Side → what it found in the files, and what it builds itself."""
    trees = {side.name: side.ranks[0].tree for side in (outcome.old, outcome.new)}
    found = {name: {file: each["size"] for file, each in tree["found"].items()} for name, tree in trees.items()}
    return {name: found[name] | {"now": tree["now"]["fields"]["size"]} for name, tree in trees.items()}


@pytest.mark.parametrize(
    ("written_by", "old", "new"), [("own", 1, 2), ("old", 1, 1), ("new", 2, 2), ("toy-3", 3, 3), ("toy-1", 1, 1)]
)
def test_each_side_reads_what_the_case_says(read: ToyRunner, written_by: str, old: int, new: int) -> None:
    outcome = read.run("readback", written_by=written_by)
    assert sizes(outcome) == {"old": {"0.json": old, "now": 1}, "new": {"0.json": new, "now": 2}}
    paths = {difference.path for difference in outcome.judged.undeclared}
    assert paths == {"now.size"} | ({"found.0.json.size"} if old != new else set())


def test_parameters_that_both_take_reach_the_writer(read: ToyRunner) -> None:
    assert sizes(read.run("readback", size=5, written_by="new"))["old"] == {"0.json": 10, "now": 5}


def test_files_may_come_from_another_layout(read: ToyRunner) -> None:
    outcome = read.run("readback", written_by="old", written_layout="tp2")
    assert sizes(outcome)["new"] == {"0.json": 1, "1.json": 1, "now": 2}
    assert outcome.case.id == "readback[written_by=old,written_layout=tp2]"
    assert outcome.command.endswith("::readback --written-by old --written-layout tp2")


def test_a_reader_that_spoils_its_files_spoils_a_copy(read: ToyRunner) -> None:
    outcome = read.run("readback", spoils=True, written_by="old")
    assert sizes(outcome) == {"old": {"0.json": 1, "now": 1}, "new": {"0.json": 1, "now": 2}}


def test_what_the_writer_raises_is_what_the_side_raises(read: ToyRunner) -> None:
    outcome = read.run("readback", fails="raises", written_by="new")
    assert outcome.judged.verdict is Verdict.BOTH_RAISE
    assert outcome.judged.why == "both raise ValueError: no such option (from toy:refuse)"
    assert (outcome.old.stack, outcome.new.stack) == ("toy-1", "toy-2")


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("breaks", "the harness itself raised AssertionError"),
        ("blind", "old: no evidence: never entered toy:build (written-by-old)"),
    ],
)
def test_a_writer_that_breaks_breaks_the_case(read: ToyRunner, fails: str, told: str) -> None:
    outcome = read.run("readback", fails=fails)
    assert outcome.judged.verdict is Verdict.BROKEN
    assert told in outcome.judged.why


def test_a_probe_that_did_not_say_it_reads_is_broken(read: ToyRunner) -> None:
    outcome = read.run("forgetful")
    assert outcome.judged.verdict is Verdict.BROKEN
    assert "it must say `reads=` whose files it needs" in outcome.judged.why


def test_records_hold_the_run_that_wrote(read: ToyRunner) -> None:
    read.run("readback", written_by="toy-3")
    record = read.events("case")[-1]
    assert record["written"] == {"written_by": "toy-3"}
    assert [side["reads"]["stack"] for side in record["sides"]] == ["toy-3", "toy-3"]
    assert record["sides"][0]["reads"]["entered"][0]["function"] == "toy:build"


@pytest.mark.parametrize(
    ("probe", "given", "error", "told"),
    [
        ("written", {"written_by": "old"}, ProbeError, "written reads no files of another"),
        ("written", {"written_layout": "tp2"}, ProbeError, "written reads no files of another"),
        ("readback", {"written_layout": "tp9"}, UnknownLayoutError, "tp9"),
        ("lost", {}, ProbeError, "declares no probe 'nobody'"),
    ],
)
def test_a_case_that_cannot_be_is_refused_at_once(
    reading: Project, probe: str, given: dict[str, str], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        make_case(f"{reading.probes}::{probe}", {}, **given)


def test_the_fixture_and_the_command_take_a_writer(reading: Project) -> None:
    done = reading.parity("compare", "probes.py::readback", "--written-by", "toy-3")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("readback[written_by=toy-3]: regression now.size: 1 → 2")
    done = reading.parity("compare", "probes.py::readback", "--written-by", "toy-9")
    assert (done.returncode, done.stdout) == (2, "")
    reading.write(
        "test_reading.py",
        "import pytest\n\n@pytest.mark.parametrize('who', ['own', 'old', 'toy-9'])\n"
        "def test_reading(parity, who):\n    parity('probes.py::readback', written_by=who)\n",
    )
    done = reading.pytest("test_reading.py", "--old-pin", "toy=path:trees/2")
    assert done.returncode == 1
    assert done.stdout.count("toy-9") >= 1
    assert [case["verdict"] for case in reading.records("case")] == ["identical", "identical"]


def test_a_golden_is_kept_of_what_one_stack_wrote_and_read(reading: Project) -> None:
    reading.write(
        "test_reading.py",
        "import pytest\n\n@pytest.mark.parametrize('who', ['own', 'new'])\n"
        "def test_reading(parity, who):\n    parity('probes.py::readback', written_by=who)\n",
    )
    assert reading.pytest("test_reading.py", "--new-pin", "toy=path:trees/1").returncode == 0
    assert reading.parity("golden", "new").returncode == 0
    assert len(list((reading.folder / "golden" / "cpu").glob("*.json"))) == 1
    done = reading.pytest("test_reading.py", "--golden-only", "--new-pin", "toy=path:trees/1")
    assert done.returncode == 0, done.stdout
    assert "a golden is of one stack" in done.stdout
