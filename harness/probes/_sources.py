"""What a package's source says of the names it takes from others, read without importing the package.

Names are followed through scopes, aliases of imports and re-exports within the package. What has no name (a method of
an object that some function returned) is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from harness.probes._arguments import Arguments, Takes, arguments_of, shortened, takes
from harness.probes._scopes import Branches, Scope, absolute, below, bindings

_CATCHES = ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException")


@dataclass(frozen=True)
class Use:
    """One place where the package uses a name of another.

    Attributes:
        names: names it may have, each `module:attributes` or `module`, in the order in which the source binds them: the
            first that exists counts.
        where: `module:function` of the package, or `module` where it runs on import.
        otherwise: what holds where the name does not exist: conditions it stands under, handlers that catch it.
        own: whether the package binds something of its own to the same name, as a fallback does.
        call: the arguments, where it is called; `super` calls leave the object out.
        bound: whether the call is of a method through `super`.
        replaced: what is put in its place, where it is assigned.
    """

    names: tuple[str, ...]
    where: str
    otherwise: tuple[str, ...] = ()
    own: bool = False
    call: Arguments | None = None
    bound: bool = False
    replaced: Takes | None = None


class Sources:
    """The modules of one package below a folder.

    Args:
        name: of the package, dotted.
        folder: that holds its `__init__.py`, or is a namespace package.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._modules: dict[str, _Module | None] = {}

    def uses(self, *packages: str) -> list[Use]:
        """Every use of a name in other packages (dotted), in the order of files and lines.

        Raises:
            SyntaxError: a file that this Python cannot parse.
        """
        found: list[Use] = []
        for path in sorted(self._folder.rglob("*.py")):
            parts = path.relative_to(self._folder).with_suffix("").parts
            dotted = ".".join([self._name, *(parts[:-1] if parts[-1] == "__init__" else parts)])
            module = self.module(dotted)
            if module is not None:
                found += module.uses(packages)
        return found

    def module(self, dotted: str) -> _Module | None:
        """The module of that name, if it is one of this package."""
        if dotted not in self._modules:
            stem = self._folder.joinpath(*dotted.split(".")[len(self._name.split(".")) :])
            candidates = [stem / "__init__.py", stem.with_suffix(".py")] if self.holds(dotted) else []
            path = next((path for path in candidates if path.is_file()), None)
            self._modules[dotted] = _Module(self, dotted, path) if path else None
        return self._modules[dotted]

    def holds(self, dotted: str) -> bool:
        """Whether a module is of this package."""
        return f"{dotted}.".startswith(f"{self._name}.")

    def origins(self, target: str, seen: frozenset[str] = frozenset()) -> list[str | None]:
        """What `module:attributes` stands for after re-exports within the package; None for what is its own."""
        module, _, attributes = target.partition(":")
        if not self.holds(module):
            return [target]
        first, _, rest = attributes.partition(".")
        known = self.module(module)
        if known is None or not first or target in seen:
            return [None]
        found: list[str | None] = []
        itself = f"{module}:{first}"
        for bound in known.scope.targets(first) or [itself]:
            # A name that is bound to itself, or nowhere, is a module below.
            inner = f"{module}.{first}:{rest}" if bound == itself else bound and below(bound, rest)
            found += self.origins(inner, seen | {target}) if inner else [None]
        return found


class _Module:
    def __init__(self, sources: Sources, name: str, path: Path) -> None:
        self.name = name
        self.is_package = path.name == "__init__.py"
        self.tree = ast.parse(path.read_text(), str(path))
        self._sources = sources

    @cached_property
    def scope(self) -> Scope:
        """The module's own scope."""
        return bindings(self.tree, None, self.name, self.is_package)

    def uses(self, packages: Sequence[str]) -> list[Use]:
        """Uses of some packages' names in this module."""
        reader = _Reader(self, packages, self._sources)
        reader.visit(self.tree)
        return reader.found


class _Reader(ast.NodeVisitor):
    """Collects uses while it keeps scope, place and conditions."""

    def __init__(self, module: _Module, packages: Sequence[str], sources: Sources) -> None:
        self.found: list[Use] = []
        self._module = module
        self._packages = tuple(f"{package}." for package in packages)
        self._sources = sources
        self._scope = module.scope
        self._place: list[str] = []
        self._conditions: list[Callable[[], str | None]] = []
        self._branches: Branches = ()

    # Scopes -----------------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._all([*node.decorator_list, *node.args.defaults, *(value for value in node.args.kw_defaults if value)])
        with self._within(node, node.name):
            self._all(node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all([*node.decorator_list, *node.bases, *node.keywords])
        with self._within(node, node.name):
            self._all(node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        with self._within(node, ""):
            self.visit(node.body)

    @contextmanager
    def _within(self, node: ast.AST, name: str) -> Iterator[None]:
        outer, self._branches = (self._scope, self._branches), ()
        self._scope = bindings(node, self._scope, self._module.name, self._module.is_package)
        self._place.append(name)
        yield
        self._scope, self._branches = outer
        self._place.pop()

    # Conditions -------------------------------------------------------------------------------------------------------

    def visit_Try(self, node: ast.Try) -> None:
        with self._branch(node, 0, *(partial(_fallback, handler) for handler in node.handlers)):
            self._all(node.body)
        with self._branch(node, 1):
            self._all(node.handlers)
        self._all([*node.orelse, *node.finalbody])

    def visit_If(self, node: ast.If) -> None:
        never_runs = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        self._either(node, node.test, [] if never_runs else node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._either(node, node.test, [node.body], [node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        first, *rest = node.values
        self._either(node, first, *((rest, []) if isinstance(node.op, ast.And) else ([], rest)))

    def _either(self, node: ast.AST, test: ast.expr, body: Sequence[ast.AST], otherwise: Sequence[ast.AST]) -> None:
        self.visit(test)
        with self._branch(node, 0, lambda: f"if {shortened(ast.unparse(test))}"):
            self._all(body)
        with self._branch(node, 1, lambda: f"if not ({shortened(ast.unparse(test))})"):
            self._all(otherwise)

    @contextmanager
    def _branch(self, node: ast.AST, number: int, *conditions: Callable[[], str | None]) -> Iterator[None]:
        outer = self._branches, self._conditions
        self._branches = (*self._branches, (id(node), number))
        self._conditions = [*self._conditions, *conditions]
        yield
        self._branches, self._conditions = outer

    # Uses -------------------------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._use([alias.name])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = absolute(node, self._module.name, self._module.is_package)
        for alias in node.names:
            name = source if alias.name == "*" else f"{source}:{alias.name}"
            bound = self._scope.bound.get(alias.asname or alias.name, [])
            if not self._sources.holds(source):
                self._use([name], own=any(other.target is None for other in bound))

    def visit_Call(self, node: ast.Call) -> None:
        named = self._targets(node.func)
        if named is not None:
            self._use(named, call=node)
        elif (inherited := self._inherited(node.func)) is not None:
            self._use(inherited, call=node, bound=True)
        else:
            self.visit(node.func)
        self._all([*node.args, *node.keywords])

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            named = self._targets(target) if isinstance(target, ast.Attribute) else None
            replacement = self._function(node.value)
            if named is None:
                self.visit(target)
            elif replacement is not None:
                self._use(named, replaced=replacement)
        self.visit(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        named = self._targets(node)
        if named is None:
            self.visit(node.value)
        elif isinstance(node.ctx, ast.Load):
            self._use(named)

    def _use(
        self,
        targets: Sequence[str | None],
        own: bool = False,
        *,
        call: ast.Call | None = None,
        bound: bool = False,
        replaced: Takes | None = None,
    ) -> None:
        names = tuple(name for name in targets if name and self._is_asked_for(name))
        if names:
            place = ".".join(filter(None, self._place))
            where = f"{self._module.name}:{place}" if place else self._module.name
            own = own or None in targets
            conditions = tuple(text for condition in self._conditions if (text := condition()))
            given = arguments_of(call, self._scope.nodes) if call else None
            self.found.append(Use(names, where, conditions, own, given, bound, replaced))

    def _is_asked_for(self, name: str) -> bool:
        return f"{name.replace(':', '.')}.".startswith(self._packages)

    def _targets(self, node: ast.AST) -> list[str | None] | None:
        """What a name, or a name with attributes, may stand for; None where it is nobody else's."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        owner = self._scope.owner(node.id) if isinstance(node, ast.Name) else None
        if owner is None or not isinstance(node, ast.Name):
            return None
        tail = ".".join(reversed(attributes))
        here = self._branches if owner is self._scope else ()
        origins: list[str | None] = []
        for target in owner.targets(node.id, here):
            origins += [None] if target is None else self._sources.origins(below(target, tail))
        found = list(dict.fromkeys(origins))
        return found if any(found) else None

    def _inherited(self, node: ast.AST) -> list[str | None] | None:
        """What `super().method` may stand for: the method of each base that is somebody else's."""
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                scope: Scope | None = self._scope
                while scope is not None and not isinstance(scope.node, ast.ClassDef):
                    scope = scope.parent
                bases = scope.node.bases if scope is not None and isinstance(scope.node, ast.ClassDef) else []
                named = [self._targets(base) for base in bases[:1]]
                return [base and below(base, node.attr) for found in named if found for base in found] or None
        return None

    def _function(self, node: ast.AST) -> Takes | None:
        """The package's own function that a name stands for."""
        if not isinstance(node, ast.Name):
            return None
        owner = self._scope.owner(node.id)
        function = owner.functions.get(node.id) if owner else None
        if function is None:
            return None
        return takes(function, self._module.name)

    def _all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


def _fallback(handler: ast.ExceptHandler) -> str | None:
    """`except ImportError` for a handler that catches a name's absence and does not raise; else None."""
    if any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement)):
        return None
    if handler.type is None:
        return "except"
    text = ast.unparse(handler.type)
    return f"except {text}" if any(name in text for name in _CATCHES) else None
