"""Feature tests by name: does what they ask for exist anywhere, or is the fallback all there is?"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes._upstream_modules import sources_of
from harness.probes.registry import consistency_probe

PRELOAD = _engine.PRELOAD

_FINE = "exists somewhere"
_WORD = re.compile(r"[A-Za-z_]\w*")
_OF_A_MODEL = re.compile(r"\b(hf|text|vision|llm|audio|thinker)_(config|cfg|pretrained)\b")
"""Configs that come with a model: their fields may be defined in its own files, which no package holds."""
_ABOUT_MEGATRON = re.compile(r"^\s*(from|import) (megatron|mbridge)\b", re.M)


@dataclass(frozen=True)
class _Asked:
    """One feature test.

    Attributes:
        name: that is asked for.
        where: `module:line of the enclosing function's name`.
        owner: what is asked, dotted, where the source says so by name; else None.
    """

    name: str
    where: str
    owner: str | None


@consistency_probe(returns=("asked.*",))
def feature_tests(run: Run, *, package: str) -> Mapping[str, Any]:
    """Every `hasattr`, `getattr` with a default, and `"name" in …parameters` in the source that imports Megatron.

    A test that no pin of the stack can answer with yes takes the fallback without a word: the name was renamed or
    removed, or the pin is too old or too new for it. Where the source says which module, class or function is asked,
    that one answers; else a name exists if the source of any other package of the stack has it. What the package itself
    sets somewhere exists too. Configs that come with a model are not asked.

    Args:
        package: whose source is read: `verl`, `megatron.bridge` or `mbridge`.

    Returns:
        By name and place, under `expected` that it exists somewhere, under `actual` the same, or who lacks it. `asked`:
        how often each name is asked for.
    """
    choice("package", package, ("verl", "megatron.bridge", "mbridge"))
    run.scans = True
    [folder] = run.upstream(package).__path__
    files = {file: file.read_text() for file in sorted(Path(folder).rglob("*.py"))}
    about = {file: text for file, text in files.items() if _ABOUT_MEGATRON.search(text)}
    tests = [test for file, text in about.items() for test in _tests(_dotted(package, Path(folder), file), text)]
    own = _Own.of(files.values())
    known = _words_of_others(run, package) | own.names
    outcomes: dict[str, str] = {}
    for test in tests:
        answer = _answer(test, known, own.marks)
        if answer is not None:
            outcomes[f"{test.name} in {test.where}"] = answer
    asked: dict[str, int] = {}
    for test in tests:
        asked[test.name] = asked.get(test.name, 0) + 1
    return {"expected": dict.fromkeys(outcomes, _FINE), "actual": outcomes, "asked": asked}


def _answer(test: _Asked, known: Set[str], marks: Set[str]) -> str | None:
    """What answers a test; None where that is a value that only a run has.

    Args:
        marks: names that the package itself sets on what belongs to others.
    """
    if test.owner is None:
        return _FINE if test.name in known else "nobody"
    owner = _resolved(test.owner)
    if owner is None:
        return f"nobody: there is no {test.owner}"
    if test.name in marks:
        return _FINE
    if isinstance(owner, ModuleType | type):
        return _FINE if hasattr(owner, test.name) or _annotated(owner, test.name) else f"not {test.owner}"
    if inspect.isroutine(owner):
        return _FINE if test.name in inspect.signature(owner).parameters else f"not {test.owner}"
    return _FINE if test.name in known else "nobody"


def _annotated(owner: Any, name: str) -> bool:
    """Whether instances of a class have a field of that name, which the class itself need not have."""
    return any(name in getattr(kind, "__annotations__", {}) for kind in getattr(owner, "__mro__", ()))


def _resolved(dotted: str) -> Any:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except Exception:  # noqa: BLE001 - whatever an import raises, the module is not to be had
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        return found
    return None


def _words_of_others(run: Run, package: str) -> frozenset[str]:
    """Every word in the source of what the package may ask: the other pinned packages, torch and peft."""
    others = {"verl", "megatron.core", "megatron.training", "megatron.bridge", "mbridge", "transformers", "peft"}
    others |= {"modelopt.torch.distill", "torch.nn.modules", "torch.profiler"}
    others -= {package}
    if package == "mbridge":
        others -= {"verl", "megatron.bridge"}
    found: set[str] = set()
    for other in sorted(others - ({"verl"} if package == "megatron.bridge" else set())):
        for text in sources_of(other):
            found.update(_WORD.findall(text))
    torch = run.upstream("torch")
    found.update(
        name
        for kind in (io.IOBase, torch, torch.Tensor, torch.nn.Module, torch.nn.Parameter, torch.distributed)
        for name in dir(kind)
    )
    return frozenset(found)


@dataclass(frozen=True)
class _Own:
    """Names that a package itself gives.

    Attributes:
        names: to attributes, fields, functions and classes.
        marks: those that it sets on something else than its own `self`.
    """

    names: frozenset[str]
    marks: frozenset[str]

    @classmethod
    def of(cls, sources: Iterable[str]) -> _Own:
        """What a package's sources say."""
        defined = [found for text in sources for node in ast.walk(ast.parse(text)) for found in _defined(node)]
        return cls(frozenset(name for name, _ in defined), frozenset(name for name, mark in defined if mark))


def _defined(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Names that a node gives, and whether to what may be another's."""
    match node:
        case ast.ClassDef(name=name, body=body):
            yield name, False
            targets = [target for one in body if isinstance(one, ast.Assign) for target in one.targets]
            yield from ((target.id, False) for target in targets if isinstance(target, ast.Name))
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            yield name, False
        case ast.Attribute(value=owner, attr=name, ctx=ast.Store()):
            yield name, not (isinstance(owner, ast.Name) and owner.id == "self")
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
            yield name, True


def _dotted(package: str, folder: Path, file: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])


def _tests(module: str, text: str) -> Iterator[_Asked]:
    tree = ast.parse(text)
    imported = dict(_imports(tree, module))
    yield from _Tests(module, imported).of(tree)


def _imports(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Name in the module → dotted name of what was imported under it, wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield alias.asname or alias.name, f"{source}.{alias.name}"


class _Tests:
    """Finds the feature tests of one module, with the function around each."""

    def __init__(self, module: str, imported: Mapping[str, str]) -> None:
        self._module = module
        self._imported = imported

    def of(self, node: ast.AST, place: str = "") -> Iterator[_Asked]:
        """The feature tests below a node."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            place = f"{place}.{node.name}" if place else node.name
        asked = self._asked(node)
        if asked is not None:
            name, owner = asked
            yield _Asked(name, f"{self._module}:{place}".rstrip(":"), owner)
        for child in ast.iter_child_nodes(node):
            yield from self.of(child, place)

    def _asked(self, node: ast.AST) -> tuple[str, str | None] | None:
        match node:
            case (
                ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))])
                | ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), _])
            ):
                return None if _OF_A_MODEL.search(ast.unparse(owner)) else (name, self._owner(owner))
            case ast.Compare(
                left=ast.Constant(value=str(name)),
                ops=[ast.In() | ast.NotIn()],
                comparators=[ast.Attribute(value=ast.Call(args=[owner, *_]), attr="parameters")],
            ):
                return name, self._owner(owner)
        return None

    def _owner(self, node: ast.AST) -> str | None:
        """The dotted name of what is asked, if the module imports it by that name."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._imported:
            return None
        return ".".join([self._imported[node.id], *reversed(attributes)])
