"""Arguments of the calls inside a package against the signatures of what is called, as both stand after the imports."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from harness.observe.run import HarnessFault, Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes._upstream_modules import classes_of, function_in, import_modules, package_of
from harness.probes._without import call_in_fresh_process
from harness.probes.registry import consistency_probe

PRELOAD = _engine.PRELOAD

_CORE, _ALONE = "megatron.core", "core alone"
_PACKAGES = ("verl", _CORE, "megatron.bridge", "mbridge", _ALONE)
_GUARD = re.compile(r"signature|parameters|hasattr|version|HAVE_|_available|_AVAILABLE|is_te_min|is_torch_min")
"""What a condition says that asks first whether the callee takes something."""
_CANNOT_TELL = object()


@dataclass
class Calls:
    """Calls whose arguments were held against a signature.

    Attributes:
        decided: how many there are.
        refused: place and callee → what the signature has against the arguments.
    """

    decided: int = 0
    refused: dict[str, str] = field(default_factory=dict)


@consistency_probe()
def call_arguments(run: Run, *, package: str) -> Mapping[str, Any]:
    """Every call whose callee the source names: methods of the own class, and functions and classes the module has.

    The callee is what stands at that name once everything is imported, so that a function which another package has
    put there counts. Not judged are calls behind a condition that asks what the callee takes, what only a value of the
    run could name, and packing by `*` or `**` but for the names beside it.

    Args:
        package: `verl`, `megatron.core`, `megatron.bridge` or `mbridge`; all of its modules are imported. `core alone`
            is Megatron-Core in a fresh process that imports nothing else, so that nobody has put anything into it.

    Returns:
        Under `actual`, by place and callee, what is refused, where `expected` has nothing; under both, the number of
        calls that were judged.
    """
    choice("package", package, _PACKAGES)
    found = _core_in_fresh_process(run) if package == _ALONE else calls_of(run, package)
    if not found.decided:
        raise HarnessFault(f"no call of {package} could be judged")
    judged = {"(calls judged)": found.decided}
    return {"expected": judged, "actual": judged | found.refused}


def _core_in_fresh_process(run: Run) -> Calls:
    answer = call_in_fresh_process(run, (_CORE,), f"{__name__}:{core_alone.__name__}")
    if answer.returned is None:
        raise HarnessFault(f"the fresh process gave no answer: {answer.output.splitlines()[-1:]}")
    return Calls(**answer.returned)


def core_alone(run: Run) -> dict[str, Any]:
    """What `calls_of` finds of Megatron-Core."""
    return asdict(calls_of(run, _CORE))


def calls_of(run: Run, package: str) -> Calls:
    """Judge the calls in all modules of a package."""
    found = Calls()
    for module in list(import_modules(run, package)):
        for kind, function in _functions(module):
            for call in _calls_in(function):
                _judge(found, module, kind, function, call)
    return found


def _judge(found: Calls, module: ModuleType, kind: type | None, function: FunctionType, call: ast.Call) -> None:
    callee, bound = _callee(kind, function, call.func)
    if callee is _CANNOT_TELL:
        return
    why = _refusal(callee, bound, call)
    if why is None:
        return
    found.decided += 1
    if why:
        place = f"{module.__name__}:{function.__qualname__}"
        found.refused[f"{place} → {ast.unparse(call.func)}"] = why


def _functions(module: ModuleType) -> Iterator[tuple[type | None, FunctionType]]:
    """Functions of a module and of its classes, each with its class; those that another package put there too."""
    for value in vars(module).values():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield None, inspect.unwrap(value)
    for kind in classes_of(module):
        for member in vars(kind).values():
            function = function_in(member)
            if function is not None:
                yield kind, inspect.unwrap(function)


# Callees --------------------------------------------------------------------------------------------------------------


def _callee(kind: type | None, function: FunctionType, named: ast.expr) -> tuple[Any, bool]:
    """What a call names (`_CANNOT_TELL` where that is a value), and whether an object stands before its arguments."""
    path: list[str] = []
    while isinstance(named, ast.Attribute):
        path.insert(0, named.attr)
        named = named.value
    if isinstance(named, ast.Call) and ast.unparse(named) == "super()" and kind and len(path) == 1:
        return _inherited(kind, path[0])
    if not isinstance(named, ast.Name):
        return _CANNOT_TELL, False
    first = next(iter(inspect.signature(function).parameters), None)
    if kind and len(path) == 1 and named.id == first in ("self", "cls"):
        return _own(kind, path[0])
    if named.id in _local_names(function.__code__.co_filename, function.__code__.co_firstlineno):
        return _CANNOT_TELL, False
    return _global(function, named.id, path), False


def _own(kind: type, name: str) -> tuple[Any, bool]:
    """A method of the class, unless an object of it may have something else under that name."""
    if name in _names_set_on_objects(kind):
        return _CANNOT_TELL, False
    return _member(inspect.getattr_static(kind, name, _CANNOT_TELL))


def _inherited(kind: type, name: str) -> tuple[Any, bool]:
    """The method that `super()` gives where the class is not one of several bases."""
    bases = [base for base in kind.__mro__[1:] if name in vars(base)]
    if len(kind.__bases__) != 1 or not bases or package_of(bases[0].__module__) is None:
        return _CANNOT_TELL, False
    return _member(vars(bases[0])[name])


def _member(member: Any) -> tuple[Any, bool]:
    if isinstance(member, staticmethod):
        return member.__func__, False
    function = function_in(member)
    return (function, True) if function is not None else (_CANNOT_TELL, False)


def _global(function: FunctionType, name: str, path: list[str]) -> Any:
    found: Any = function.__globals__.get(name, _CANNOT_TELL)
    for part in path:
        if not isinstance(found, ModuleType):
            return _CANNOT_TELL
        found = getattr(found, part, _CANNOT_TELL)
    home = inspect.getattr_static(found, "__module__", None) if isinstance(found, FunctionType | type) else None
    return found if isinstance(home, str) and package_of(home) else _CANNOT_TELL


def _names_set_on_objects(kind: type) -> set[str]:
    """Attributes that methods of a class or its bases set on their object, and fields of dataclasses."""
    bases = [base for base in kind.__mro__ if package_of(base.__module__)]
    fields = {name for base in bases for name in inspect.get_annotations(base)}
    files = {inspect.getfile(sys.modules[base.__module__]) for base in bases}
    return fields.union(*map(_stored_attributes, files))


# Arguments ------------------------------------------------------------------------------------------------------------


def _refusal(callee: Any, bound: bool, call: ast.Call) -> str | None:
    """What a signature has against the arguments; empty for nothing, None where it cannot be told."""
    try:
        signature = inspect.signature(callee)
    except Exception:  # noqa: BLE001 - none is known; what stands for an absent class has an exception of its own
        return None
    keywords = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    packed = any(isinstance(argument, ast.Starred) for argument in call.args)
    packed = packed or len(keywords) < len(call.keywords)
    if packed:
        parameters = signature.parameters.values()
        anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        unknown = [] if anything else [name for name in keywords if name not in signature.parameters]
        return f"got an unexpected keyword argument {unknown[0]!r}" if unknown else ""
    arguments = [None] * (len(call.args) + bound)
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return ""


# Sources --------------------------------------------------------------------------------------------------------------


def _calls_in(function: FunctionType) -> Iterator[ast.Call]:
    """The calls in a function's source that no condition guards."""
    node = _nodes(function.__code__.co_filename).get((function.__code__.co_firstlineno, function.__name__))
    yield from _unguarded(node.body) if node else ()


def _unguarded(nodes: list[Any]) -> Iterator[ast.Call]:
    for node in nodes:
        if isinstance(node, ast.If | ast.IfExp) and _GUARD.search(ast.unparse(node.test)):
            continue
        if isinstance(node, ast.Try | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _unguarded(list(ast.iter_child_nodes(node)))


@cache
def _nodes(file: str) -> dict[tuple[int, str], Any]:
    """Functions of a source file by their first line, decorators included, and name."""
    return {
        (min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.name): node
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@cache
def _local_names(file: str, line: int) -> frozenset[str]:
    """Every name that a function, or one inside it, binds itself."""
    node = next((found for (start, _), found in _nodes(file).items() if start == line), None)
    names = set()
    for inner in ast.walk(node) if node else ():
        match inner:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add(asname or name.partition(".")[0])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
    return frozenset(names - {getattr(node, "name", "")})


@cache
def _stored_attributes(file: str) -> frozenset[str]:
    return frozenset(
        node.attr
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
    )


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@cache
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_text())
    except (OSError, SyntaxError):
        return ast.Module([], [])  # a function made at run time has no source
