"""Who patched whom, and what else is imported: what every observation of a worker has in common."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from types import FunctionType, ModuleType
from typing import Any

_UPSTREAM = ("megatron.bridge", "megatron.core", "megatron.energon", "megatron.training", "mbridge", "verl")
_OTHERS = ("apex", "flash_attn", "modelopt", "peft", "torch", "transformer_engine", "transformers", "vllm")


def foreign_functions() -> dict[str, str]:
    """`module:attribute` → `module:qualified.name` of every function that another package put there.

    Looked at are all imported modules of the packages that a stack pins and of those that they build on, and the
    classes that these modules define. A function of a module counts where the module's own source defines one of that
    name; one of a class wherever it stands, but for values of its fields.
    """
    found: dict[str, str] = {}
    for module in list(sys.modules.values()):
        owner = _package_of(getattr(module, "__name__", ""))
        if owner is None or not isinstance(module, ModuleType):
            continue
        for place, function in _functions(module):
            home = function.__globals__.get("__name__", "")
            if _package_of(home) not in (None, owner) and _stands_for_own(module, place):
                found[place] = f"{home}:{function.__qualname__}"
    return dict(sorted(found.items()))


def imported_versions() -> dict[str, str]:
    """Distribution → version of every distribution of which something is imported."""
    tops = {name.partition(".")[0] for name in sys.modules}
    names = {distribution for top in tops for distribution in _distributions().get(top, ())}
    return {name: found for name in sorted(names) if (found := _version(name))}


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def _package_of(module: str) -> str | None:
    return next((package for package in (*_UPSTREAM, *_OTHERS) if f"{module}.".startswith(f"{package}.")), None)


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Functions of a module and of the classes it defines, with their place."""
    for name, value in list(vars(module).items()):
        if isinstance(value, FunctionType):
            yield f"{module.__name__}:{name}", _unwrapped(value)
        elif isinstance(value, type) and value.__module__ == module.__name__:
            fields = inspect.get_annotations(value)
            for attribute, member in list(vars(value).items()):
                function = _function_in(member)
                if function is not None and attribute not in fields:
                    yield f"{module.__name__}:{name}.{attribute}", _unwrapped(function)


def _stands_for_own(module: ModuleType, place: str) -> bool:
    """Whether what stands at a place is in the stead of something that the module's code defines."""
    name = place.rpartition(":")[2]
    return "." in name or name in _defined_names(module.__name__)


@cache
def _defined_names(module: str) -> frozenset[str]:
    """Names of the functions that a module's code defines at its top, whatever stands there now."""
    loader: Any = getattr(sys.modules[module], "__loader__", None)
    try:
        code = loader.get_code(module) if hasattr(loader, "get_code") else None
    except (ImportError, OSError, TypeError):
        code = None
    constants = code.co_consts if code is not None else ()
    return frozenset(constant.co_name for constant in constants if inspect.iscode(constant))


def _function_in(member: Any) -> FunctionType | None:
    found = getattr(member, "__func__", getattr(member, "fget", member))
    return found if isinstance(found, FunctionType) else None


def _unwrapped(function: FunctionType) -> FunctionType:
    found = inspect.unwrap(function)
    return found if isinstance(found, FunctionType) else function
