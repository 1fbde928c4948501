"""Scopes of a source: which names each binds, to what was imported, and in which branch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Branches = tuple[tuple[int, int], ...]
"""The branches that a place lies in, from the outside in: id of the statement and which of its bodies."""


@dataclass(frozen=True)
class Bound:
    """What a name is bound to in one place: `module:attributes` as imported, None where it is anything else."""

    target: str | None
    branches: Branches


@dataclass
class Scope:
    """Names bound in a module, class or function."""

    node: ast.AST
    parent: Scope | None = None
    nodes: list[ast.AST] = field(default_factory=list)
    bound: dict[str, list[Bound]] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)

    def targets(self, name: str, branches: Branches = ()) -> list[str | None]:
        """What a name may be bound to, as seen from a place in this scope: bindings of the innermost branch around it.

        Where no binding lies on the way to that place, it may be any of them.
        """
        found = self.bound.get(name, [])
        before = [bound for bound in found if bound.branches == branches[: len(bound.branches)]]
        innermost = max((len(bound.branches) for bound in before), default=0)
        nearest = [bound for bound in before if len(bound.branches) == innermost]
        return [bound.target for bound in nearest or found]

    def owner(self, name: str) -> Scope | None:
        """The scope that binds a name, as seen from here: classes hide theirs from what is within."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bound and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope
            scope = scope.parent
        return None


def bindings(node: ast.AST, parent: Scope | None, module: str, is_package: bool) -> Scope:
    """The names that one scope binds, scopes within it left out."""
    scope = Scope(node, parent)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        given = node.args
        for argument in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]:
            if argument is not None:
                scope.bound.setdefault(argument.arg, []).append(Bound(None, ()))
    for inner, branches in _own_nodes(node):
        scope.nodes.append(inner)
        for name, target in _bound_by(inner, module, is_package):
            scope.bound.setdefault(name, []).append(Bound(target, branches))
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            scope.functions[inner.name] = inner
    return scope


def _own_nodes(scope: ast.AST) -> Iterator[tuple[ast.AST, Branches]]:
    """Nodes of a scope in the order of the source, with their branches, without those of scopes within."""
    body = [scope.body] if isinstance(scope, ast.Lambda) else getattr(scope, "body", [])
    waiting: list[tuple[ast.AST, Branches]] = [(node, ()) for node in reversed(body)]
    while waiting:
        node, branches = waiting.pop()
        yield node, branches
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            inner = [(child, branches) for child in ast.iter_child_nodes(node)]
            for number, bodies in enumerate(_bodies(node)):
                apart = {id(child) for child in bodies}
                inner = [
                    (child, (*branches, (id(node), number)) if id(child) in apart else kept) for child, kept in inner
                ]
            waiting += reversed(inner)


def _bodies(node: ast.AST) -> list[Sequence[ast.AST]]:
    """The bodies of a statement of which one run takes one, or not all of each."""
    match node:
        case ast.If():
            return [node.body, node.orelse]
        case ast.Try():
            return [node.body, node.handlers]
    return []


def _bound_by(node: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, str | None]]:
    match node:
        case ast.Import():
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first
        case ast.ImportFrom():
            source = absolute(node, module, is_package)
            for alias in node.names:
                yield alias.asname or alias.name, f"{source}:{alias.name}"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name, None
        case ast.Name(ctx=ast.Store()):
            yield node.id, None
        case ast.ExceptHandler(name=str()):
            yield str(node.name), None


def below(target: str, attributes: str) -> str:
    """A target's attribute: `module:name` and `inner` make `module:name.inner`."""
    if not attributes:
        return target
    return f"{target}.{attributes}" if ":" in target else f"{target}:{attributes}"


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The module that a `from … import` names, as seen from a module of the given name."""
    if not node.level:
        return node.module or ""
    climb = node.level - 1 if is_package else node.level
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - climb], *([node.module] if node.module else [])])
