"""The sessions: all there, documented, taking arguments; and what `--changed-pins` makes of them."""

import ast
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "noxfile.py"
SESSIONS = {"parity", "tests", "fuzz", "gpu", "golden", "bisect", "matrix", "bench", "lint"}


@pytest.fixture
def noxfile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The sessions, loaded without nox; listing them looks for no Python."""
    nox = ModuleType("nox")
    nox.Session, nox.options = object, SimpleNamespace()  # type: ignore[attr-defined]
    nox.session = lambda **_: lambda function: function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nox", nox)
    monkeypatch.setattr(sys, "argv", ["nox", "--list"])
    spec = importlib.util.spec_from_file_location("parity_noxfile", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_session_is_documented_and_takes_arguments() -> None:
    tree = ast.parse(FILE.read_text(), feature_version=(3, 8))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    assert {function.name for function in functions} == SESSIONS
    for function in functions:
        assert ast.get_docstring(function)
        assert "session.posargs" in ast.unparse(function)


@pytest.mark.parametrize(
    ("words", "ran", "status"),
    [
        (["-k", "a"], [["suites/parity", "-k", "a"]], 1),
        (
            ["--changed-pins", "main"],
            [["suites/parity", "--changed-pins", "main", "--new", name] for name in ("one", "two")],
            1,
        ),
        (["--changed-pins=main", "--new=two"], [["suites/parity", "--changed-pins=main", "--new=two"]], 1),
        (["--changed-pins", "nowhere"], [], 2),
        (["--changed-pins", "same"], [], 0),
    ],
)
def test_each_stack_that_moved_has_a_run_of_its_own(
    noxfile: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    ran: list[list[str]],
    status: int,
) -> None:
    moved = {"main": ("one\ntwo\n", 0), "nowhere": ("", 2), "same": ("", 0)}
    runs: list[list[str]] = []

    def pytest_run(_session: Any, *arguments: str) -> int:
        runs.append(list(arguments))
        return 0 if "two" in arguments else 1

    answer: Callable[..., tuple[str, int]] = lambda *arguments: moved[arguments[-2]]  # noqa: E731
    monkeypatch.setattr(noxfile, "_output", answer)
    monkeypatch.setattr(noxfile, "_pytest", pytest_run)
    assert noxfile._compared(SimpleNamespace(), "suites/parity", *words) == status
    assert runs == ran
