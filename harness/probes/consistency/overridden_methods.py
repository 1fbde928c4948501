"""Methods that one package overrides of another's classes: do they take what the overridden ones take?"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes._upstream_modules import (
    PACKAGES,
    classes_of,
    function_in,
    import_modules,
    package_of,
    sources_of,
)
from harness.probes.registry import consistency_probe

PRELOAD = _engine.PRELOAD

_FINE = "takes what the overridden method takes"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BARE = ("megatron.core.transformer.module", "megatron.core.models.common.vision_module.vision_module")
"""Modules of base classes whose constructors nobody calls through the base."""


@consistency_probe()
def overridden_methods(run: Run, *, package: str) -> Mapping[str, Any]:
    """Every method of a package's classes that overrides one of another package's class.

    Callers know the overridden method: what it takes by name, the override must take; what the override needs, the
    other must have. Of constructors this holds where some source hands the class on, as a layer spec does; one that is
    built by its own name alone is called by who knows it.

    Args:
        package: `verl`, `megatron.bridge` or `mbridge`; all of its modules are imported, as far as they can be.

    Returns:
        By method, under `expected` that it takes what the overridden one takes, under `actual` the same or what it
        lacks or needs besides; and the number of classes of the package.
    """
    choice("package", package, ("verl", "megatron.bridge", "mbridge"))
    classes = [kind for module in import_modules(run, package) for kind in classes_of(module)]
    outcomes = {
        f"{kind.__module__}:{kind.__qualname__}.{name}": outcome
        for kind in classes
        for name, own, base, overridden in _overrides(kind, package)
        if (outcome := _outcome(own, base, overridden)) == _FINE or name != "__init__" or _is_handed_on(kind)
    }
    looked_at = {"(classes looked at)": len(classes)}
    return {"expected": looked_at | dict.fromkeys(outcomes, _FINE), "actual": looked_at | outcomes}


def _overrides(kind: type, package: str) -> Iterator[tuple[str, FunctionType, type, FunctionType]]:
    """Methods with what they override: name, method, base and its method."""
    for name, member in vars(kind).items():
        own = function_in(member)
        base = next((base for base in kind.__mro__[1:] if name in vars(base)), None)
        overridden = function_in(vars(base)[name]) if base is not None else None
        if own is None or base is None or overridden is None or package_of(base.__module__) in (None, package):
            continue
        if name != "__init__" or _is_of_a_layer(base, overridden):
            yield name, own, base, overridden


def _is_of_a_layer(base: type, constructor: FunctionType) -> bool:
    """Whether others construct the class through the base's constructor, as layers are from their specs."""
    return "config" in inspect.signature(constructor).parameters and base.__module__ not in _BARE


def _is_handed_on(kind: type) -> bool:
    sources = [text for package in PACKAGES for text in sources_of(package)]
    return any(hands_on(text, name) for name in _names(kind) for text in sources)


def _names(kind: type) -> Iterator[str]:
    """Of a class and of those derived from it."""
    yield kind.__name__
    derived: list[type] = type.__subclasses__(kind)
    for inner in derived:
        yield from _names(inner)


def hands_on(source: str, name: str) -> bool:
    """Whether a source has a class of that name as a value: not only to call it, derive from it or ask for it."""
    if name not in source:
        return False
    nodes = list(ast.walk(ast.parse(source)))
    no_values = {id(inner) for node in nodes for part in _no_values(node) for inner in ast.walk(part)}
    return any(_is_named(node, name) and id(node) not in no_values for node in nodes)


def _no_values(node: ast.AST) -> list[ast.expr]:
    """Parts of a node in which a class stands for itself."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass" | "super"), args=args):
            return args
        case ast.Call(func=ast.Name() as called):
            return [called]
        case ast.ClassDef(bases=bases):
            return bases
        case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=annotation):
            return [annotation]
        case ast.FunctionDef(returns=ast.expr() as returned):
            return [returned]
    return []


def _is_named(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(id=found, ctx=ast.Load()) | ast.Attribute(attr=found, ctx=ast.Load()):
            return found == name
        case ast.alias(name=found, asname=str(other)):
            return found == name != other
    return False


def _outcome(own: FunctionType, base: type, overridden: FunctionType) -> str:
    takes, asked = (inspect.signature(function).parameters for function in (own, overridden))
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    lacks = [name for name, parameter in asked.items() if parameter.kind in _NAMED and name not in takes]
    needs = [
        name
        for name, parameter in takes.items()
        if parameter.kind in _NAMED and parameter.default is inspect.Parameter.empty and name not in asked
    ]
    told = [f"lacks {', '.join(lacks)}"] if lacks and not anything else []
    told += [f"needs {', '.join(needs)}"] if needs else []
    told += ["takes them in another order"] if _order(takes, asked) != _order(asked, takes) else []
    return f"{' and '.join(told)} ({base.__module__}:{base.__qualname__})" if told else _FINE


def _order(of: Mapping[str, inspect.Parameter], common: Mapping[str, inspect.Parameter]) -> list[str]:
    """What may be given by position of the parameters that both have."""
    return [name for name, parameter in of.items() if parameter.kind in _POSITIONAL and name in common]
