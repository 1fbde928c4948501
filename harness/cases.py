"""Cases: a probe with its parameters and layout, and the stable id that names it everywhere."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.layouts import layout_named
from harness.probes.registry import Probe, ProbeError, find_probe

_LONGEST_VALUE = 40

OWN = "own"
"""As `written_by`: each side reads what it wrote itself."""


@dataclass(frozen=True)
class Case:
    """One probe call, the same on both sides, but for the layout where that is what is compared.

    Attributes:
        parameters: the given keyword parameters in the order of the signature, without defaults.
        lane: `cpu` or `cuda`.
        layout: name of an entry of `LAYOUTS`.
        old_layout: the old side's, where it is another.
        written_by: who writes the files that the probe reads, if it reads any: `own` (each side its own), `old`, `new`
            or the name of a stack.
        written_layout: the layout in which they are written, where it is another.
    """

    probe: Probe
    parameters: Mapping[str, Any]
    lane: str = "cpu"
    layout: str = "single"
    old_layout: str | None = None
    written_by: str = OWN
    written_layout: str | None = None

    @property
    def id(self) -> str:
        """`probe[value,other=1,tp2]`: the parameters that differ from their default, and the layout (or two).

        Files that are not each side's own, written in the same layout, add `written_by=…` and `written_layout=…`.
        A text stands for itself; other values carry their name, and so does a key that is `absent` by default, since
        two of those could have the same text.
        """
        parts = [_part(name, value, self._is_key(name)) for name, value in self.parameters.items()]
        parts += [f"{name}={value}" for name, value in self.written.items()]
        if self.old_layout is not None:
            parts.append(f"{self.old_layout}→{self.layout}")
        elif self.layout != "single":
            parts.append(self.layout)
        return f"{self.probe.name}[{','.join(parts)}]" if parts else self.probe.name

    @property
    def written(self) -> dict[str, str]:
        """`written_by` and `written_layout`, where they are not the default."""
        given = {"written_by": self.written_by, "written_layout": self.written_layout}
        return {name: value for name, value in given.items() if value not in (None, OWN)}

    @property
    def spans(self) -> str | None:
        """Why this case can have no golden, which is of one stack in one layout; None if it can."""
        if self.old_layout is not None:
            return "a golden is of one layout, and this case compares two"
        if self.written_by != OWN:
            return "a golden is of one stack, and this case reads what another wrote"
        return None

    def writer(self, side: str) -> tuple[str, Case] | None:
        """Who writes what `side` reads (a side or a stack's name), and the case that does; None if it reads nothing."""
        probe = self.probe.writer
        if probe is None:
            return None
        who = side if self.written_by == OWN else self.written_by
        shared = {name: value for name, value in self.parameters.items() if name in probe.parameters}
        return who, make_case(probe, shared, self.lane, self.written_layout or self.layout_of(who))

    def layout_of(self, side: str) -> str:
        """The layout of `old` or `new`."""
        return self.old_layout if side == "old" and self.old_layout is not None else self.layout

    @property
    def layouts(self) -> frozenset[str]:
        """Every layout that the case runs in: of both sides, and of who writes what they read."""
        writers = [found[1].layout for side in ("old", "new") if (found := self.writer(side))]
        return frozenset([self.layout_of("old"), self.layout_of("new"), *writers])

    @property
    def command(self) -> str:
        """The command that runs this case alone, on the default stacks."""
        return f"parity compare {self.arguments}"

    @property
    def arguments(self) -> str:
        """The case as one types it after `parity compare`."""
        given = [f"{name}={_typed(value)}" for name, value in self.parameters.items()]
        layout = ["--layout", self.layout] if self.layout != "single" else []
        if self.old_layout is not None:
            layout = ["--old-layout", self.old_layout, "--new-layout", self.layout]
        for name, value in self.written.items():
            layout += [f"--{name.replace('_', '-')}", value]
        return shlex.join([self.probe.reference, *given, *layout])

    def _is_key(self, name: str) -> bool:
        return bool(self.probe.parameters[name].default == "absent")

    @property
    def slug(self) -> str:
        """The id as a folder name, unique among cases."""
        readable = re.sub(r"[^A-Za-z0-9_.=-]+", "-", self.id).strip("-")[:80]
        return f"{readable}-{hashlib.sha256(self.id.encode()).hexdigest()[:8]}"


def make_case(
    probe: str | Probe,
    parameters: Mapping[str, Any],
    lane: str = "cpu",
    layout: str = "single",
    old_layout: str | None = None,
    written_by: str = OWN,
    written_layout: str | None = None,
) -> Case:
    """A case of a probe, named or found in `file.py::name`.

    Args:
        old_layout: the old side's layout (default: `layout`); the shards of each side are put together to compare.
        written_by: see `Case`.
        written_layout: see `Case`; default: the layout of the side that writes, else `layout`.

    Raises:
        ProbeError: no such probe, parameters it does not take, or a writer for a probe that reads nothing.
        UnknownLayoutError: no such layout.
    """
    found = probe if isinstance(probe, Probe) else find_probe(probe)
    for name in (layout, old_layout or layout, written_layout or layout):
        layout_named(name)
    if found.reads is None and (written_by, written_layout) != (OWN, None):
        raise ProbeError(f"probe {found.name} reads no files of another, so nobody can write them")
    old_layout = None if old_layout == layout else old_layout
    case = Case(found, found.bind(parameters), lane, layout, old_layout, written_by, written_layout)
    case.writer("new")  # raises for a writer that cannot be, before anything runs
    return case


def make_check(
    probe: str | Probe,
    parameters: Mapping[str, Any],
    layout: str = "single",
    written_by: str = OWN,
    written_layout: str | None = None,
) -> Case:
    """A case of a check of one stack; arguments as `make_case`.

    Raises:
        ProbeError: as `make_case`, and for a probe whose stacks are compared with each other.
        UnknownLayoutError: no such layout.
    """
    case = make_case(probe, parameters, layout=layout, written_by=written_by, written_layout=written_layout)
    if not case.probe.one_stack:
        raise ProbeError(f"probe {case.probe.name} checks nothing within one stack; `parity compare` compares two")
    return case


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _part(name: str, value: Any, named: bool) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    if len(text) > _LONGEST_VALUE:
        text = f"{text[: _LONGEST_VALUE - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"{name}={text}" if named or not isinstance(value, str) else text
