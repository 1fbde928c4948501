"""No function of the project is a copy of one in an overlay, whatever its names."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from harness.selection import Selection

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM = ("verl", "mbridge", "megatron/bridge", "megatron/core", "megatron/training")
SMALLEST = 40
"""Nodes of a syntax tree below which two functions are alike by chance."""


class _Anonymous(ast.NodeTransformer):
    """Renames everything a copier would rename: the function, its arguments and variables; drops docs and types."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._name(node.id), ast.Load())

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._name(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        arguments = self.visit(node.args)
        return ast.FunctionDef("", arguments, [self.visit(step) for step in body], [], None, None, [])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return self.generic_visit(ast.Assign([node.target], node.value or ast.Constant(None)))

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"n{len(self._names)}")


def fingerprints(source: str) -> Iterator[tuple[str, str]]:
    """Name and fingerprint of every function that is large enough to be a copy."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for node in reversed(functions):  # inner ones first: the transformer works in place
        anonymous = _Anonymous().visit(node)
        if sum(1 for _ in ast.walk(anonymous)) >= SMALLEST:
            yield node.name, hashlib.sha256(ast.dump(anonymous).encode()).hexdigest()


def files(folders: Iterable[Path]) -> Iterator[Path]:
    return (file for folder in folders for file in folder.rglob("*.py") if ".parity" not in file.parts)


@pytest.fixture(scope="module")
def ours() -> dict[str, str]:
    found = files([ROOT / "harness", ROOT / "suites"])
    return {
        mark: f"{file.relative_to(ROOT)}: {name}" for file in found for name, mark in fingerprints(file.read_text())
    }


def test_no_function_of_the_project_is_one_of_upstream(ours: dict[str, str]) -> None:
    sides = Selection(root=ROOT).build(lambda _line: None)
    overlays = {side.overlay for side in (sides.old, sides.new)}
    upstream = files(overlay / package for overlay in overlays for package in UPSTREAM)
    sources = {file.read_text(): file.name for file in upstream}
    copies = {
        ours[mark]: f"{file}: {name}"
        for source, file in sources.items()
        for name, mark in fingerprints(source)
        if mark in ours
    }
    assert len(ours) > 100
    assert copies == {}


def test_a_copy_with_other_names_would_be_found() -> None:
    original = (
        "def add(model, names):\n    '''Docs.'''\n    found = []\n    for name in names:\n"
        "        if hasattr(model, name):\n            found.append(getattr(model, name).data)\n    return found\n"
    )
    copy = original.replace("add", "take").replace("model", "m").replace("found", "f").replace("'''Docs.'''", "")
    copy = copy.replace("    \n", "").replace("(m, names)", "(m: object, names: list[str]) -> list[object]")
    other = original.replace("append", "insert")
    marks = [[mark for _, mark in fingerprints(source)] for source in (original, copy, other)]
    assert marks[0] == marks[1]
    assert marks[0] != marks[2]
    assert len(marks[0]) == 1
