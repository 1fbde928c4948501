"""The base environment, and the search for a Python 3.12 that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stacks_support import Workshop, assert_short, run_in

from harness.stacks import StackError, python


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path, monkeypatch)
    workshop.wheel("heavy", "1.0", {"heavy/__init__.py": "weight = 1\n", "six.py": "origin = 'base'\n"})
    workshop.wheel("six", "1.0", {"six.py": "origin = 'overlay'\n"})
    (workshop.root / "base.txt").write_text("heavy==1.0\n")
    return workshop


def script(folder: Path, text: str) -> Path:
    """Write an executable shell script."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text(f"#!/bin/sh\n{text}\n")
    folder.chmod(0o755)
    return folder


def test_a_locked_base_is_built_once_under_its_overlays(workshop: Workshop) -> None:
    workshop.project('[tool.parity]\nbase = "base.txt"\n[tool.parity.stacks.one]\n')
    built = workshop.build("six==1.0")
    code = "import heavy, six, sys, json; print(json.dumps([heavy.weight, six.origin, sys.prefix]))"
    weight, origin, prefix = run_in(built, code)
    # The environment knows its final place although it was built beside it; the overlay comes first.
    assert (weight, origin, Path(prefix)) == (1, "overlay", workshop.cache / "base" / built.base_key)
    again = workshop.build("six==1.0")
    assert again == built
    assert sum("base: installing" in line for line in workshop.progress) == 1
    (workshop.root / "base.txt").write_text("heavy==1.0\nsix==1.0\n")
    assert workshop.build("six==1.0").base_key != built.base_key


def test_a_locked_base_that_cannot_be_built_leaves_nothing(workshop: Workshop) -> None:
    (workshop.root / "base.txt").write_text("heavy==1.0\nabsent==1.0\n")
    with pytest.raises(StackError, match=r"base: cannot install base.txt: .*absent") as caught:
        workshop.build(base="base.txt")
    assert caught.value.exit_code == 3
    assert_short(caught.value)
    assert workshop.left_over() == []


def test_a_mistake_in_a_pin_is_told_before_the_base_is_built(workshop: Workshop) -> None:
    with pytest.raises(StackError, match="there is no folder"):
        workshop.build("alpha=path:gone", base="base.txt")
    assert not workshop.cache.exists()


def test_a_base_whose_interpreter_is_gone_is_built_anew(workshop: Workshop) -> None:
    built = workshop.build(base="base.txt")
    built.python.unlink()
    built.python.symlink_to(workshop.folder / "gone")
    assert run_in(workshop.build(base="base.txt"), "import heavy; print(heavy.weight)") == 1


def test_the_current_interpreter_is_used_itself(workshop: Workshop) -> None:
    built = workshop.build(base="current")
    assert built.python == Path(sys.executable)
    assert workshop.build(base=sys.executable).base_key == built.base_key
    assert workshop.build(base=sys.prefix).base_key == built.base_key
    assert not (workshop.cache / "base").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 3.11", "is Python 3.11; the stacks need 3.12"),
        ("echo broken >&2; exit 1", "does not run: broken"),
        (None, "there is no interpreter"),
    ],
)
def test_an_interpreter_that_will_not_do(workshop: Workshop, text: str | None, said: str) -> None:
    interpreter = workshop.folder / "python"
    if text is not None:
        script(interpreter, text)
    with pytest.raises(StackError, match=said) as caught:
        workshop.build(base=str(interpreter))
    assert caught.value.exit_code == 3
    assert_short(caught.value)


def test_a_requirement_file_that_is_not_there(workshop: Workshop) -> None:
    with pytest.raises(StackError, match="cannot read"):
        workshop.build(base="gone.txt")


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which the running interpreter is not a 3.12, and nothing else is installed."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "absent"))
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    return tmp_path


def real(path: Path) -> Path:
    """Put the running interpreter at a path."""
    return script(path, f'exec {sys.executable} "$@"')


def test_no_python_at_all(bare_machine: Path) -> None:
    with pytest.raises(python.PythonNotFoundError, match=r"uv python install 3\.12"):
        python.find()


def test_a_missing_python_is_an_environment_error(workshop: Workshop, bare_machine: Path) -> None:
    script(workshop.folder / "uv", "exit 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.stacks.uv.executable", lambda: str(workshop.folder / "uv"))
        with pytest.raises(StackError, match=r"base: No working Python 3.12") as caught:
            workshop.build(base="base.txt")
    assert caught.value.exit_code == 3
    assert_short(caught.value)


def test_a_working_python_on_path(bare_machine: Path) -> None:
    real(bare_machine / "path" / "python3.12")
    assert python.find() == sys.executable


def test_a_shim_that_refuses_gives_way_to_the_newest_of_pyenv(bare_machine: Path) -> None:
    shims = bare_machine / "home" / ".pyenv" / "shims"
    script(shims / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    versions = shims.parent / "versions"
    script(versions / "3.12.2" / "bin" / "python", "echo called > $0.called; exit 1")
    real(versions / "3.12.10" / "bin" / "python")
    assert python.find() == sys.executable
    assert not (versions / "3.12.2" / "bin" / "python.called").exists()


def test_pyenv_is_found_in_an_empty_home_by_its_shims(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bare_machine / "elsewhere" / "shims"))
    real(bare_machine / "elsewhere" / "versions" / "3.12.1" / "bin" / "python")
    assert python.find() == sys.executable


def test_uv_finds_one_or_installs_one(bare_machine: Path) -> None:
    interpreter = real(bare_machine / "managed" / "python")
    uv = script(
        bare_machine / "uv",
        f'case "$2" in install) : > {bare_machine}/installed;;\n'
        f"find) test -e {bare_machine}/installed && echo {interpreter};; esac",
    )
    with pytest.raises(python.PythonNotFoundError):
        python.find(str(uv))
    assert python.find(str(uv), install=True) == sys.executable


def test_the_search_runs_on_the_python_that_runs_nox() -> None:
    source = Path(python.__file__)
    code = (
        f"import importlib.util as u; s = u.spec_from_file_location('p', {str(source)!r})\n"
        "m = u.module_from_spec(s); s.loader.exec_module(m)"
    )
    for older in sorted(Path("~/.pyenv/versions").expanduser().glob("3.[89]*/bin/python")):
        subprocess.run([str(older), "-c", code], check=True)
