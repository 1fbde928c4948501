"""What a call in a source gives to what it calls, and what a function of the source takes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

_LONGEST_TEXT = 80


@dataclass(frozen=True)
class Arguments:
    """What a call gives.

    Attributes:
        positional: how many positional arguments stand there.
        keywords: names of the keyword arguments that stand there.
        perhaps: keys of dictionaries that are unpacked there, as far as the function around writes them.
        unpacks: what is unpacked besides and may hold anything, as written: `*sizes`, `**overrides`.
    """

    positional: int
    keywords: tuple[str, ...]
    perhaps: tuple[str, ...] = ()
    unpacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Takes:
    """What a function takes.

    Attributes:
        name: of the function, `module:name`.
        names: of its parameters.
        anything: whether it takes keyword arguments of any name.
    """

    name: str
    names: tuple[str, ...]
    anything: bool


def arguments_of(call: ast.Call, around: Iterable[ast.AST]) -> Arguments:
    """What a call gives.

    Args:
        around: nodes of the function in which it stands, where dictionaries are written before they are unpacked.
    """
    unpacks = [f"*{shortened(ast.unparse(value.value))}" for value in call.args if isinstance(value, ast.Starred)]
    perhaps: list[str] = []
    for mapping in [keyword.value for keyword in call.keywords if keyword.arg is None]:
        keys, anything = _keys(mapping, around)
        perhaps += keys
        unpacks += [f"**{shortened(ast.unparse(mapping))}"] if anything else []
    return Arguments(
        sum(not isinstance(value, ast.Starred) for value in call.args),
        tuple(keyword.arg for keyword in call.keywords if keyword.arg),
        tuple(dict.fromkeys(perhaps)),
        tuple(unpacks),
    )


def takes(function: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> Takes:
    """What a function definition takes."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return Takes(f"{module}:{function.name}", tuple(names), given.kwarg is not None)


def shortened(text: str) -> str:
    """A text on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 1]}…"


def _keys(mapping: ast.AST, around: Iterable[ast.AST]) -> tuple[list[str], bool]:
    """Keys that an unpacked mapping may hold, and whether it may hold any other."""
    if not isinstance(mapping, ast.Name):
        return _written(mapping)
    nodes = list(around)
    parts = [part for node in nodes if (part := _put(node, mapping.id)) is not None]
    bound = sum(isinstance(node, ast.Name) and node.id == mapping.id and _is_store(node) for node in nodes)
    understood = sum(_is_assignment(node, mapping.id) for node in nodes)
    anything = not understood or bound != understood or any(part[1] for part in parts)
    return [key for part in parts for key in part[0]], anything


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_assignment(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr()):
            return target == name
    return False


def _put(node: ast.AST, name: str) -> tuple[list[str], bool] | None:
    """Keys that a node puts into the mapping called `name`, and whether others too; None where it does not."""
    match node:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return _written(value)
        case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
            return _written(value)
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target), slice=key)]) if target == name:
            return _constant(key)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="setdefault"), args=[key, *_]):
            return _constant(key) if target == name else None
        case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="update"), args=given) if target == name:
            parts = [_written(value) for value in given]
            named = [keyword.arg for keyword in node.keywords]
            anything = any(part[1] for part in parts) or None in named
            return [*(key for part in parts for key in part[0]), *filter(None, named)], anything
    return None


def _written(value: ast.AST) -> tuple[list[str], bool]:
    """Keys of a dictionary that is written out, or of either that a condition chooses."""
    match value:
        case ast.Dict():
            known = [key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            return known, len(known) < len(value.keys)
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            known = [keyword.arg for keyword in value.keywords if keyword.arg]
            return known, len(known) < len(value.keywords)
        case ast.IfExp():
            one, other = _written(value.body), _written(value.orelse)
            return one[0] + other[0], one[1] or other[1]
    return [], True


def _constant(key: ast.AST) -> tuple[list[str], bool]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return [key.value], False
    return [], True
