"""Cases: a probe with its parameters and layout, and the stable id that names it everywhere."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.layouts import layout_named
from harness.probes.registry import Probe, find_probe

_LONGEST_VALUE = 40


@dataclass(frozen=True)
class Case:
    """One probe call, the same on both sides, but for the layout where that is what is compared.

    Attributes:
        parameters: the given keyword parameters in the order of the signature, without defaults.
        lane: `cpu` or `cuda`.
        layout: name of an entry of `LAYOUTS`.
        old_layout: the old side's, where it is another.
    """

    probe: Probe
    parameters: Mapping[str, Any]
    lane: str = "cpu"
    layout: str = "single"
    old_layout: str | None = None

    @property
    def id(self) -> str:
        """`probe[value,other=1,tp2]`: the parameters that differ from their default, and the layout (or two).

        A text stands for itself; other values carry their name, and so does a key that is `absent` by default, since
        two of those could have the same text.
        """
        parts = [_part(name, value, self._is_key(name)) for name, value in self.parameters.items()]
        if self.old_layout is not None:
            parts.append(f"{self.old_layout}→{self.layout}")
        elif self.layout != "single":
            parts.append(self.layout)
        return f"{self.probe.name}[{','.join(parts)}]" if parts else self.probe.name

    def layout_of(self, side: str) -> str:
        """The layout of `old` or `new`."""
        return self.old_layout if side == "old" and self.old_layout is not None else self.layout

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
) -> Case:
    """A case of a probe, named or found in `file.py::name`.

    Args:
        old_layout: the old side's layout (default: `layout`); the shards of each side are put together to compare.

    Raises:
        ProbeError: no such probe, or parameters it does not take.
        UnknownLayoutError: no such layout.
    """
    found = probe if isinstance(probe, Probe) else find_probe(probe)
    for name in (layout, old_layout or layout):
        layout_named(name)
    return Case(found, found.bind(parameters), lane, layout, None if old_layout == layout else old_layout)


def _part(name: str, value: Any, named: bool) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    if len(text) > _LONGEST_VALUE:
        text = f"{text[: _LONGEST_VALUE - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"{name}={text}" if named or not isinstance(value, str) else text
