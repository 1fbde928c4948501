"""How a probe is declared, and how one is found by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any


class ProbeError(ValueError):
    """A probe that does not exist, or parameters it does not take."""


@dataclass(frozen=True)
class Evidence:
    """What proves that a probe looked.

    Attributes:
        enters: upstream functions that must have been entered, each `package.module:qualified.name`; alternatives
            are separated by ` | ` where two pins keep one step in different places.
        returns: dotted paths that must exist in the returned tree (`*` matches one level).
        tensors: globs over tensor names, each of which must match at least one tensor.
    """

    enters: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probe:
    """A function that runs inside one stack and returns the tree of what it saw.

    Attributes:
        preload: modules that its worker imports before it forks.
        source: the file it stands in.
        reads: name of the probe whose files it needs: a shipped one, or one of the same file.
        one_stack: the tree holds `expected` and `actual`, which are compared with each other: a check that needs no
            second stack.
    """

    name: str
    function: Callable[..., Mapping[str, Any]]
    evidence: Evidence
    preload: tuple[str, ...]
    source: Path
    reads: str | None = None
    one_stack: bool = False

    @property
    def writer(self) -> Probe | None:
        """The probe whose files this one reads.

        Raises:
            ProbeError: there is none of that name.
        """
        if self.reads is None:
            return None
        return registered_probes().get(self.reads) or find_probe(f"{self.source}::{self.reads}")

    @property
    def reference(self) -> str:
        """What a worker needs to find this probe again: its name, or `file.py::name` outside `harness.probes`."""
        shipped = self.source.is_relative_to(Path(__file__).parent)
        return self.name if shipped else f"{self.source}::{self.name}"

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The keyword parameters a case may give, in the order of the signature."""
        own = inspect.signature(self.function).parameters
        return {name: value for name, value in own.items() if value.kind is inspect.Parameter.KEYWORD_ONLY}

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given parameters in the order of the signature, without those equal to their default.

        Raises:
            ProbeError: a parameter the probe does not take, or a required one that is missing.
        """
        unknown = sorted(set(given) - set(self.parameters))
        if unknown:
            known = ", ".join(self.parameters) or "none"
            raise ProbeError(f"probe {self.name} takes no parameter {unknown[0]!r}; it takes: {known}")
        missing = [
            name
            for name, parameter in self.parameters.items()
            if parameter.default is inspect.Parameter.empty and name not in given
        ]
        if missing:
            raise ProbeError(f"probe {self.name} needs {missing[0]}=…; see `parity probes {self.name}`")
        return {
            name: given[name]
            for name, parameter in self.parameters.items()
            if name in given and not _same(given[name], parameter.default)
        }


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


_ATTRIBUTE = "__parity_probe__"

Function = Callable[..., Mapping[str, Any]]


def probe(
    *,
    enters: tuple[str, ...] = (),
    returns: tuple[str, ...] = (),
    tensors: tuple[str, ...] = (),
    reads: str | None = None,
) -> Callable[[Function], Function]:
    """Declare a function as a probe, with the evidence it must bring back.

    The function takes a `Run` and keyword-only parameters, and returns a mapping with string keys; tensors may stand
    anywhere in it.

    Args:
        enters: with `returns` and `tensors`, the evidence; see `Evidence`.
        reads: the probe whose files this one needs. It runs first, on the side or stack that the case says, with those
            of the case's parameters that it takes too; `run.written` is a copy of what it left in its `run.folder`.
    """
    if not (enters or returns or tensors):
        raise ProbeError("a probe must declare its evidence: enters=, returns= or tensors=")
    return _declare(Evidence(enters, returns, tensors), reads, one_stack=False)


def consistency_probe(
    *,
    enters: tuple[str, ...] = (),
    returns: tuple[str, ...] = (),
    tensors: tuple[str, ...] = (),
    reads: str | None = None,
) -> Callable[[Function], Function]:
    """Declare a function as a self-consistency check of one stack, with the evidence it must bring back.

    It returns `{"expected": tree, "actual": tree}`, which are compared with each other as the trees of two sides are;
    the first must hold something. Whatever else it returns can only be evidence. Arguments are those of `probe`.
    """
    return _declare(Evidence(enters, ("expected.*", "actual", *returns), tensors), reads, one_stack=True)


def _declare(evidence: Evidence, reads: str | None, *, one_stack: bool) -> Callable[[Function], Function]:
    def declare(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, {"evidence": evidence, "reads": reads, "one_stack": one_stack})
        return function

    return declare


def registered_probes() -> dict[str, Probe]:
    """Every probe shipped in `harness.probes` or a package below it, by name, in alphabetical order."""
    package = importlib.import_module("harness.probes")
    modules = (
        importlib.import_module(info.name) for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    )
    found = [declared for module in modules for declared in _declared_in(module)]
    return {declared.name: declared for declared in sorted(found, key=lambda declared: declared.name)}


def find_probe(reference: str) -> Probe:
    """The probe called `reference`, or the one in `file.py::name`.

    Raises:
        ProbeError: no such probe, file or function.
    """
    if "::" not in reference:
        known = registered_probes()
        if reference in known:
            return known[reference]
        close = get_close_matches(reference, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "`parity probes` lists them"
        raise ProbeError(f"unknown probe {reference!r}; {hint}")
    file, _, name = reference.partition("::")
    path = Path(file).resolve()
    if not path.is_file():
        raise ProbeError(f"probe file {file} does not exist")
    for declared in _declared_in(_module_from(path)):
        if declared.name == name:
            return declared
    raise ProbeError(f"{file} declares no probe {name!r}")


def _module_from(path: Path) -> ModuleType:
    name = f"parity_probe_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProbeError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ProbeError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _declared_in(module: ModuleType) -> list[Probe]:
    source = Path(str(module.__file__)).resolve()
    preload = tuple(getattr(module, "PRELOAD", ()))
    return [
        Probe(name, value, preload=preload, source=source, **getattr(value, _ATTRIBUTE))
        for name, value in vars(module).items()
        if hasattr(value, _ATTRIBUTE) and value.__module__ == module.__name__
    ]
