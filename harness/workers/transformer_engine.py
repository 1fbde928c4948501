"""The stand-in for Transformer Engine on hosts without it.

Megatron-Bridge imports `transformer_engine.pytorch` unconditionally in its PEFT layers, although Transformer Engine is
an optional extra. Where the package is absent, three things are done here, and nowhere else:

- modules of `megatron.bridge`, and they alone, get an answer when they import `transformer_engine` or anything below
  it. Everybody else keeps seeing that the package is absent, and nothing enters `sys.modules`.
- Megatron-Core, seeing none, leaves `MagicMock` objects where its `TE…` classes would be, which breaks `isinstance`
  in every caller. Each is replaced by a class of its own that has no instances.
- Megatron-Core refuses a config that asks for fused rotary embeddings or fused permutation while it has None for
  those functions; on the hosts that configs are made for it would accept. They get a value, so that the config can
  be observed; a lane switches the fields off before anything calls them.

Whoever tries to use one of them gets a `HarnessFault` raised in this file.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any
from unittest.mock import NonCallableMock

from harness.observe.run import HarnessFault, Run

PACKAGE = "transformer_engine"
_IMPORTER = "megatron.bridge"
_CORE_CLASSES = "megatron.core.extensions.transformer_engine"
_CORE_FUNCTIONS = {
    "megatron.core.models.common.embeddings.rope_utils": (
        "fused_apply_rotary_pos_emb",
        "fused_apply_rotary_pos_emb_thd",
    ),
    "megatron.core.transformer.moe.moe_utils": (
        "fused_permute",
        "fused_permute_with_probs",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
        "fused_unpermute",
    ),
}


def install() -> None:
    """Answer for Transformer Engine in this process, unless the real one is there. Call it before upstream imports."""
    if importlib.util.find_spec(PACKAGE) is None and not is_installed():
        sys.meta_path.insert(0, _Finder())


def uninstall() -> None:
    """Answer for it no longer: what is imported from now on sees that it is absent."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def is_installed() -> bool:
    """Whether this process answers for Transformer Engine."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def record(run: Run) -> None:
    """List in the observation what was replaced, as far as its modules were imported."""
    if is_installed() and _IMPORTER in sys.modules:
        run.stand_in(
            f"{PACKAGE}.*, for importers in {_IMPORTER}",
            __name__,
            "the package is absent on this host",
        )
    if is_installed() and _CORE_CLASSES in sys.modules:
        run.stand_in(
            f"{_CORE_CLASSES}.TE*",
            __name__,
            "Megatron-Core leaves MagicMock objects there; isinstance fails",
        )
    for module, names in _CORE_FUNCTIONS.items():
        if is_installed() and module in sys.modules:
            run.stand_in(
                f"{module}: {', '.join(names)}",
                __name__,
                "while None, Megatron-Core refuses the config",
            )


class _Absent:
    """Base of the classes that stand where Transformer Engine's would; they have no instances."""

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        raise HarnessFault(f"{type(self).__qualname__} needs Transformer Engine, which this host does not have")


def _absent_class(module: str, name: str) -> type:
    return type(name, (_Absent,), {"__module__": module})


class _Absence(ModuleType):
    """Anything of the absent package; what is below it is a class where capitalised, and like this otherwise."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        qualified = f"{self.__name__}.{name}"
        value = _absent_class(self.__name__, name) if name[:1].isupper() else _Absence(qualified)
        setattr(self, name, value)
        return value

    def __call__(self, *_arguments: Any, **_keywords: Any) -> Any:
        raise HarnessFault(f"{self.__name__} needs Transformer Engine, which this host does not have")


_root = _Absence(PACKAGE)


def _import_with_answers(name: str, *context: Any) -> ModuleType:
    """`__import__`; an import statement gives globals, locals, the names wanted, and the level, all by position."""
    __tracebackhide__ = True
    top, *below = name.split(".")
    wanted = context[2] if len(context) > 2 else ()
    level = context[3] if len(context) > 3 else 0
    if level or top != PACKAGE:
        return builtins.__import__(name, *context)
    module: Any = _root
    for part in below if wanted else ():
        module = getattr(module, part)
    return module


class _Finder(MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname == _CORE_CLASSES:
            loader: type[SourceFileLoader] = _CoreClassesLoader
        elif fullname in _CORE_FUNCTIONS:
            loader = _CoreFunctionsLoader
        elif fullname == _IMPORTER or fullname.startswith(f"{_IMPORTER}."):
            loader = _ImporterLoader
        else:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = loader(fullname, spec.loader.path)
        return spec


class _ImporterLoader(SourceFileLoader):
    """Runs a module of Megatron-Bridge with an `__import__` of its own."""

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {
            **vars(builtins),
            "__import__": _import_with_answers,
        }
        super().exec_module(module)


class _CoreClassesLoader(SourceFileLoader):
    """Runs Megatron-Core's Transformer Engine extension, then puts a class in the place of each mock."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name, value in list(vars(module).items()):
            # The grouped layers alone are None, not mocks; Megatron-Bridge asks `isinstance` of them as of the others.
            grouped = value is None and name.endswith("GroupedLinear")
            if name.startswith("TE") and (grouped or isinstance(value, NonCallableMock)):
                setattr(module, name, _absent_class(module.__name__, name))


class _CoreFunctionsLoader(SourceFileLoader):
    """Runs a module of Megatron-Core, then lets the functions it has None for exist."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name in _CORE_FUNCTIONS[module.__name__]:
            if getattr(module, name, None) is None:
                setattr(module, name, _Absence(f"{module.__name__}.{name}"))
