"""`parity explain`, as a user types it."""

from pathlib import Path

import pytest
from origin_projects import BAD, FLAKY, GOOD, METADATA, project_of


def test_explain_refuses_a_flaky_case(tmp_path: Path) -> None:
    flaky = FLAKY.format(file=str(tmp_path / "count"), good=2)
    project, _, _ = project_of(tmp_path, [GOOD, flaky], ["VALUE = 1\n"])
    done = project.parity("explain", "probes.py::size")
    assert done.returncode == 1
    assert "config.size is not the same twice (old again: good, new again: good)" in done.stderr
    assert "`parity bisect` measures how often a case fails" in done.stderr


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
