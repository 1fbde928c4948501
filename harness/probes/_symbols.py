"""A package's names as another package's source uses them, looked up and judged in this stack."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.observe.run import Run
from harness.probes._arguments import Arguments, Takes
from harness.probes._models import choice
from harness.probes._sources import Sources, Use

USERS = {
    "verl": ("megatron.core", "megatron.bridge", "megatron.training", "mbridge", "vllm"),
    "mbridge": ("megatron.core",),
    "megatron.bridge": ("megatron.core",),
}
"""Whose source is read → the packages whose names it uses."""

_ABSENT = "no such attribute or module"
_OURS = "harness."
_VERDICTS = ("refused", "undecided", "accepted")
"""Of a call, worst first."""


def report_on(run: Run, user: str) -> dict[str, Any]:
    """What a package's source does with names of those below it, judged in this stack: what `upstream_symbols` returns.

    Args:
        user: one of `USERS`.

    Raises:
        ProbeError: none of `USERS`.
    """
    packages = choice("user", user, USERS)
    run.scans = True
    here = [package for package in packages if importlib.util.find_spec(package.partition(".")[0]) is not None]
    [folder] = run.upstream(user).__path__
    report = Report()
    for use in Sources(user, Path(folder)).uses(*here):
        report.add(use)
    return report.tree() | {"absent": [package for package in packages if package not in here]}


@dataclass(frozen=True)
class _Found:
    """A name that is here.

    Attributes:
        name: `module:attributes`, or `module`.
        value: what it names.
        called: what a call of it calls: the value, or what the source asks of the value; None where that is not here.
        owner: what it is an attribute of; None for a module that is imported by its whole name.
    """

    name: str
    value: Any
    called: Any
    owner: Any


@dataclass(frozen=True)
class _Lacking:
    """A name that is not: as much of it as could be asked for, and the answer."""

    name: str
    why: str


class Report:
    """What is found of each name."""

    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}
        self._unresolved: dict[str, dict[str, str]] = {}
        self._calls: dict[str, dict[str, dict[str, set[str]]]] = {verdict: {} for verdict in _VERDICTS}
        self._replaced: dict[str, dict[str, list[str]]] = {}

    def add(self, use: Use) -> None:
        """Look up what a use names, and judge what it does with it."""
        answers = [_look_up(name) for name in use.names]
        found = next((answer for answer in answers if isinstance(answer, _Found)), None)
        for answer in answers:
            if isinstance(answer, _Lacking):
                entry = self._unresolved.setdefault(answer.name, {"why": answer.why})
                entry[use.where] = _otherwise(use, found)
        if found is None:
            return
        self._found[found.name] = found
        if use.call is not None:
            verdict, why = _judged(found, use.call, use.bound)
            self._calls[verdict].setdefault(found.name, {}).setdefault(use.where, set()).add(why)
        if use.replaced is not None and callable(found.value):
            lacking = _lacking_parameters(found.value, use.replaced)
            self._replaced.setdefault(found.name, {})[use.replaced.name] = lacking

    def tree(self) -> dict[str, Any]:
        """What the probe returns."""
        homes = {name: _home(found) for name, found in self._found.items()}
        return {
            "names": {
                name: {"is": _kind(found.value), "private": _is_private(name), "calls": self._worst(name)}
                for name, found in self._found.items()
            },
            "unresolved": self._unresolved,
            "refused": self._reasons("refused"),
            "undecided": self._reasons("undecided"),
            "replaced": self._replaced,
            "foreign": {name: home for name, home in homes.items() if home and _top(home) != _top(name)},
        }

    def _worst(self, name: str) -> str:
        return next((verdict for verdict in _VERDICTS if name in self._calls[verdict]), "none")

    def _reasons(self, verdict: str) -> dict[str, dict[str, str]]:
        return {
            name: {place: "; ".join(sorted(reasons)) for place, reasons in places.items()}
            for name, places in self._calls[verdict].items()
        }


def _look_up(name: str) -> _Found | _Lacking:
    """The object of `module:attributes`; modules below are imported as needed.

    A name ends where it reaches a value that is neither module nor class, or a stand-in of the harness.
    """
    module, _, rest = name.partition(":")
    value: Any = _imported(module)
    owner: Any = None
    attributes: list[str] = []
    parts = [part for part in rest.split(".") if part]
    while parts and not isinstance(value, _Lacking) and isinstance(value, ModuleType | type) and not _is_ours(value):
        owner, part = value, parts.pop(0)
        asked = f"{module}:{'.'.join([*attributes, part])}"
        if hasattr(owner, part):
            value = getattr(owner, part)
        elif isinstance(owner, ModuleType):
            value = _imported(f"{owner.__name__}.{part}")
            if isinstance(value, _Lacking) and value.why == _ABSENT:
                return _Lacking(asked, _ABSENT)
        else:
            return _Lacking(asked, f"class {'.'.join(attributes)} has no {part}")
        if isinstance(value, ModuleType) and not attributes:
            module = value.__name__
        else:
            attributes.append(part)
    if isinstance(value, _Lacking):
        return value
    called = value
    for part in parts:
        called = getattr(called, part, None)
    return _Found(f"{module}:{'.'.join(attributes)}" if attributes else module, value, called, owner)


def _imported(name: str) -> ModuleType | _Lacking:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return _Lacking(name, _ABSENT)
        return _Lacking(name, f"import fails: no module {error.name}")
    except Exception as error:  # noqa: BLE001  what a module raises when it is imported is the answer
        return _Lacking(name, f"import fails: {type(error).__name__}: {error}")


def _otherwise(use: Use, found: _Found | None) -> str:
    """What happens where a name is not here."""
    if found is not None:
        return f"takes {found.name}"
    if use.otherwise:
        return "; ".join(use.otherwise)
    if use.own:
        return "takes its own"
    return "fails when called" if ":" in use.where else "cannot be imported"


def _judged(found: _Found, given: Arguments, bound: bool) -> tuple[str, str]:
    """Whether a function takes what a call gives it, and if not, or if nobody can say, why."""
    if _is_ours(found.called) or _is_ours(found.value):
        return "undecided", "a stand-in of the harness"
    if not callable(found.called):
        return "undecided", f"{_kind(found.called)} here"
    try:
        signature = inspect.signature(found.called)
    except (TypeError, ValueError):
        return "undecided", "no signature"
    itself = bound and not inspect.ismethod(found.called)
    open_ended = given.unpacks or given.perhaps
    bind: Callable[..., object] = signature.bind_partial if open_ended else signature.bind
    try:
        bind(*[None] * (given.positional + itself), **dict.fromkeys(given.keywords))
    except TypeError as error:
        return "refused", str(error)
    for name in given.perhaps:
        try:
            signature.bind_partial(**{name: None})
        except TypeError as error:
            return "refused", f"{error}, which is unpacked under a condition"
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    open_to = {"*": inspect.Parameter.VAR_POSITIONAL, "**": inspect.Parameter.VAR_KEYWORD}
    unknown = [text for text in given.unpacks if open_to["**" if text.startswith("**") else "*"] not in kinds]
    return ("undecided", f"unpacks {', '.join(unknown)}") if unknown else ("accepted", "")


def _lacking_parameters(original: Any, takes: Takes) -> list[str]:
    """Parameters of a function by name that its replacement does not have."""
    if takes.anything:
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(original).parameters.values()
    return [item.name for item in parameters if item.kind in named and item.name not in takes.names]


def _kind(value: Any) -> str:
    if _is_ours(value):
        return "stand-in"
    if isinstance(value, ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    return "function" if inspect.isroutine(value) else type(value).__name__


def _is_ours(value: Any) -> bool:
    """Whether a value is a stand-in: made by the harness, or of a class that is or derives from one of its own."""
    kinds = value.__mro__ if isinstance(value, type) else (value, type(value))
    return any(str(getattr(kind, "__module__", "")).startswith(_OURS) for kind in kinds)


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.replace(":", ".").split("."))


def _home(found: _Found) -> str | None:
    """`module:name` of a function or class; None for what has none, is inherited, or is the harness's."""
    value = inspect.unwrap(found.value) if callable(found.value) else found.value
    inherited = isinstance(found.owner, type) and found.name.rpartition(".")[2] not in vars(found.owner)
    if inherited or _is_ours(value) or not (isinstance(value, type) or inspect.isroutine(value)):
        return None
    return f"{value.__module__}:{value.__qualname__}" if getattr(value, "__module__", None) else None


def _top(name: str) -> str:
    """The package of a name; of `megatron`, which several share, with the part that follows."""
    module = name.partition(":")[0].split(".")
    return ".".join(module[: 2 if module[0] == "megatron" else 1])
