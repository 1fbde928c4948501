"""Methods that one package overrides of another's classes: do they take what the overridden ones take?"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes.registry import consistency_probe

PRELOAD = _engine.PRELOAD

_FINE = "takes what the overridden method takes"
_PACKAGES = ("megatron.core", "megatron.training", "megatron.bridge", "mbridge", "verl")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BARE = ("megatron.core.transformer.module", "megatron.core.models.common.vision_module.vision_module")
"""Modules of base classes whose constructors nobody calls through the base."""


@consistency_probe()
def overridden_methods(run: Run, *, package: str) -> Mapping[str, Any]:
    """Every method of a package's classes that overrides one of another package's class.

    Callers know the overridden method: what it takes by name, the override must take; what the override needs, the
    other must have.

    Args:
        package: `verl`, `megatron.bridge` or `mbridge`; all of its modules are imported, as far as they can be.

    Returns:
        By method, under `expected` that it takes what the overridden one takes, under `actual` the same or what it
        lacks or needs besides; and the number of classes of the package.
    """
    choice("package", package, ("verl", "megatron.bridge", "mbridge"))
    classes = list(_classes(run, package))
    outcomes = {
        f"{kind.__module__}:{kind.__qualname__}.{name}": _outcome(own, base, overridden)
        for kind in classes
        for name, own, base, overridden in _overrides(kind, package)
    }
    looked_at = {"(classes looked at)": len(classes)}
    return {"expected": looked_at | dict.fromkeys(outcomes, _FINE), "actual": looked_at | outcomes}


def _classes(run: Run, package: str) -> Iterator[type]:
    found = run.upstream(package)
    for info in pkgutil.walk_packages(found.__path__, f"{package}.", onerror=lambda _name: None):
        if not _deals_with_megatron(info.name):
            continue
        try:
            module = importlib.import_module(info.name)
        except Exception:  # noqa: BLE001 - what cannot be imported here is another check's
            continue
        yield from (
            value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__
        )


def _deals_with_megatron(name: str) -> bool:
    return not name.startswith("verl.") or any(word in name for word in ("megatron", "mcore"))


def _overrides(kind: type, package: str) -> Iterator[tuple[str, FunctionType, type, FunctionType]]:
    """Methods with what they override: name, method, base and its method."""
    for name, member in vars(kind).items():
        own = _function(member)
        base = next((base for base in kind.__mro__[1:] if name in vars(base)), None)
        overridden = _function(vars(base)[name]) if base is not None else None
        if own is None or base is None or overridden is None or not _is_anothers(base, package):
            continue
        if name != "__init__" or base.__module__ not in _BARE:
            yield name, own, base, overridden


def _function(member: Any) -> FunctionType | None:
    found = getattr(member, "__func__", member)
    return found if isinstance(found, FunctionType) else None


def _is_anothers(base: type, package: str) -> bool:
    owner = next((name for name in _PACKAGES if f"{base.__module__}.".startswith(f"{name}.")), None)
    return owner not in (None, package)


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
    return f"{' and '.join(told)} ({base.__module__}:{base.__qualname__})" if told else _FINE
