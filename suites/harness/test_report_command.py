"""`parity report`: one run or two, in every format, from records as they are or as they should not be."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from recorded_runs import case, regression, view, write_run
from rich.console import Console
from toy_project import Project, make_project
from typer.testing import CliRunner

from harness.cli import app
from harness.report import (
    Records,
    RecordsError,
    RunView,
    markdown_report,
    read_run,
)
from harness.report.against import KINDS, against, print_against
from harness.stacks import StackUsageError

SIDE = {"name": "verl-1", "pins": [], "golden": None}
STARTED = json.dumps({"event": "run_started", "time": 1, "old": SIDE, "new": SIDE})


def parity(*words: str, status: int = 0) -> str:
    """Standard output of the `parity` command in this process; starting another takes seconds."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == status, done.output
    return done.stdout


def two_runs(folder: Path) -> tuple[RunView, RunView]:
    """An earlier run, and a later one in which every kind of change occurs."""
    size, norm = ("size", "1", "2"), ("norm", "1", "2")
    earlier = view(
        folder / "earlier",
        *(case("same"), case("breaks"), regression("mended", size), regression("other", size)),
        *(regression("still", ("size", "1", "3")), case("moved"), case("gone")),
    )
    later = view(
        folder / "later",
        *(case("same"), regression("breaks", norm), case("mended"), regression("other", norm)),
        *(regression("still", size), case("moved", "declared", why="the size moved"), case("added")),
        regression("new", norm),
    )
    return earlier, later


def test_a_run_against_an_earlier_one_tells_only_what_changed(tmp_path: Path) -> None:
    earlier, later = two_runs(tmp_path)
    found = against(later, earlier)
    kinds = {kind: [change.case for change in getattr(found, kind)] for kind in KINDS}
    assert kinds == {
        "worse": ["breaks", "new"],
        "better": ["mended"],
        "otherwise": ["other"],
        "moved": ["moved"],
        "gone": ["gone"],
        "added": ["added"],
    }
    assert found.line.startswith("WORSE: 2 fail now, and did not, 1 no longer fail, ")
    assert against(later, later).line == "NOT WORSE: every case came to the same"


def test_two_runs_are_compared_in_every_format_that_can(tmp_path: Path) -> None:
    earlier, later = two_runs(tmp_path)
    words = ("report", str(later.folder), "--against", str(earlier.folder))
    shown = parity(*words, status=1)
    assert "  breaks: identical → regression  norm: 1 → 2" in shown
    assert "### 2 fail now, and did not\n\n| case |" in parity(*words, "--format", "md", status=1)
    assert json.loads(parity(*words, "--format", "json", status=1))["better"][0]["case"] == "mended"
    assert "NOT WORSE" in parity("report", str(later.folder), "--against", str(later.folder))
    refused = CliRunner().invoke(app, [*words, "--format", "html"])
    assert isinstance(refused.exception, RecordsError)


def test_the_terminals_report_can_be_a_plain_file(tmp_path: Path) -> None:
    run = view(tmp_path, case("config"))
    assert parity("report", str(run.folder), "-o", str(tmp_path / "report.txt")) == ""
    assert (tmp_path / "report.txt").read_text().startswith("PASSES: nothing to act on in 1 case\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The toy project with one difference, run once with pytest's own JUnit file."""
    found = make_project(tmp_path_factory.mktemp("reports"))
    found.write(
        "test_toy.py",
        'def test_config(parity):\n    parity("probes.py::config")\n\n\n'
        'def test_refusal(parity):\n    parity("probes.py::refusal")\n',
    )
    found.edit(2, "fusion: bool = True", "fusion: bool = False")
    done = found.pytest("test_toy.py", "--junitxml", "junit.xml")
    assert done.returncode == 1
    return found


def test_pytests_own_junit_has_the_same_properties(project: Project) -> None:
    root = ElementTree.parse(project.folder / "junit.xml").getroot()
    config = root.find(".//testcase[@name='test_config']")
    assert config is not None
    properties = {item.get("name"): item.get("value") or "" for item in config.iterfind("properties/*")}
    assert properties["verdict"] == "regression"
    assert properties["pins"].startswith("toy ")
    assert properties["first_difference"] == "config.fusion: True → False"


def test_report_renders_every_format_from_the_records(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    assert "@@ config.fusion @@\n- True\n+ False" in parity("report", "--format", "md", "--fit", "comment")
    for form, told in (("junit", b"<testsuites"), ("json", b'"format": 1')):
        assert parity("report", "--format", form, "-o", f"out/report.{form}") == ""
        assert told in (project.folder / "out" / f"report.{form}").read_bytes()


def test_a_run_that_did_not_finish_can_be_shown(tmp_path: Path) -> None:
    unfinished = write_run(tmp_path, [case("config")], finished=False)
    assert markdown_report(read_run(unfinished)).count("not finished") == 1


@pytest.mark.parametrize("text", ["\x1b[31mred", "\x9b2Jcleared", "bell\x07", "\ud800 alone", "e" * 10_000])
@pytest.mark.parametrize("form", ["terminal", "md", "html", "junit", "json"])
def test_texts_that_terminals_and_files_cannot_take_are_shown(tmp_path: Path, text: str, form: str) -> None:
    run = write_run(tmp_path / "run", [regression(f"config[{text}]", (text, text, text), exit_code=1)])
    parity("report", str(run.folder), "--format", form, "-o", str(tmp_path / "report"))
    shown = (tmp_path / "report").read_text()
    assert "config[" in shown
    if form == "terminal":
        assert not set(shown) & set("\x1b\x9b\x07")
    told = io.StringIO()
    print_against(against(read_run(run), view(tmp_path / "before", case("config"))), Console(file=told))
    assert not set(told.getvalue()) & set("\x1b\x9b\x07")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{"], "line 1 is damaged"),
        (["[]"], "line 1 is no record"),
        (['{"event": "run_started", "time": 1}'], "line 1 has no proper old"),
        (
            ['{"event": "run_started", "time": 1, "old": {"name": "a", "pins": []}, "new": {}}'],
            "line 1 has no proper old.golden",
        ),
        ([STARTED, '{"event": "run_finished", "time": 1}'], "line 2 has no proper exit_code"),
        ([STARTED, '{"event": "imported", "stack": "a"}'], "line 2 has no proper seconds"),
        ([], "ended before it compared anything"),
    ],
)
def test_damaged_records_are_told_with_their_line(tmp_path: Path, lines: list[str], told: str) -> None:
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    with pytest.raises(RecordsError, match=told):
        read_run(Records(tmp_path))


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([{"event": "matrix", "cases": []}], "run ended before it compared anything: run again"),
        ([json.loads(STARTED)], "run compared no case of verl-1 and verl-1: run again, or name another run with --run"),
        (
            [json.loads(STARTED), {"event": "case", **case("gpu", "not_run", sides=[])}],
            "run compared no case of verl-1 and verl-1: run again, or name another run with --run",
        ),
    ],
)
def test_nothing_can_be_declared_of_a_run_that_compared_nothing(
    tmp_path: Path, events: list[dict[str, object]], told: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "records.jsonl").write_text("\n".join(map(json.dumps, events)))
    refused = CliRunner().invoke(app, ["declare", "--run", str(run)])
    assert isinstance(refused.exception, RecordsError)
    assert str(refused.exception) == told


@pytest.mark.parametrize("name", [".", "folder", "file/report.html", "/dev/full"])
def test_a_file_that_cannot_be_written_is_wrong_usage(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", [case("config")])
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    refused = CliRunner().invoke(app, ["report", str(run.folder), "-o", str(tmp_path / name)])
    assert isinstance(refused.exception, StackUsageError)
    assert re.search("is a folder: name a file in it|cannot write .*; name another file", str(refused.exception))
