"""The run a probe is given: its layout and folder, and where it reports what it replaced or forced."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.layouts import Layout
from harness.observe.codec import Encoded, EncodingError, encode
from harness.observe.evidence import FileMonitor
from harness.observe.placement import Placement
from harness.observe.rebuild import CannotRebuildError, rebuild
from harness.observe.trace import Step

WRITTEN = "written"
"""Name of the folder, in a reading probe's own, with a copy of the files that the other probe wrote."""


class MissingSymbol(Exception):
    """An upstream module or attribute that the pin does not have: an observation, not a fault of the probe."""


class Refused(Exception):
    """Upstream's function or class does not take the arguments given: an observation too."""


class Unavailable(Exception):
    """The host or the lane lacks what the case needs; the case is `not_run`, with this message as its reason."""


class HarnessFault(Exception):
    """A fault of the harness itself (a stand-in, a lane, a probe); the case is `broken`."""


class Lane(Protocol):
    """Where a case runs; see `harness.workers.lanes`. A probe may `start_distributed` and `force` a config."""

    @property
    def name(self) -> str:
        """`cpu` or `cuda`."""

    @property
    def device(self) -> str:
        """Where a probe puts the tensors it makes, as torch calls it."""

    @property
    def initialised_by(self) -> str | None:
        """The module whose import has made this process unfit to fork ranks, None if it is fit."""

    def prepare(self) -> None:
        """In the worker, before any upstream import."""

    def importing(self) -> AbstractContextManager[None]:
        """In the worker, around the imports."""

    def warm(self) -> None:
        """In the worker, after the imports and before a fork."""

    def enter(self, run: Run) -> None:
        """In the rank's process, before the probe."""

    def start_distributed(self, run: Run) -> None:
        """Join the ranks of the case in one process group; a second call does nothing."""

    def force(self, run: Run, config: Any, spec: str = "local") -> None:
        """Make a Megatron config build the layers of `spec` on this lane, recording each forced field as a mask."""

    def leave(self, run: Run, *, raised: bool) -> dict[str, Any]:
        """In the rank's process, after the probe, which `raised` or not: what the observation says of the lane."""

    def fault_of(self, error: BaseException) -> str | None:
        """Why an exception is a fault of the device, hence no observation; None if it is none."""


@dataclass(frozen=True)
class Mask:
    """One config field the lane forces.

    Attributes:
        field: name of the field, `ClassName.field`.
        own: the value the stack had chosen.
        forced: the value that ran.
    """

    field: str
    own: Any
    forced: Any


@dataclass(frozen=True)
class StandIn:
    """Something the harness put in place of an upstream or device call."""

    replaced: str
    by: str
    reason: str


@dataclass
class Run:
    """One rank of one case on one side.

    Attributes:
        folder: the case's own scratch folder, shared by its ranks, empty at the start.
        devices: ids of the GPUs this case has, one for each rank; none on the cpu lane.
        seed: the seed a probe must use for anything random.
        perturbed: if not 0, a seed by which to move every float input by one unit in the last place, up or down (see
            `harness.compare.noise`).
        trace: what passed each module in the order of execution, filled by a probe; it names where sides part.
        restored: fields of resolved configs, `config.field`, → what to set them to, encoded (see `resolve`).
        configs: the configs that were resolved, name → field → encoded value; kept where `restored` is not None.
        watched: the module, as the trace calls it, whose source files are asked for; None: none.
        scans: whether the probe imports whole packages to look at them. What it imported is not kept for later cases:
            some modules register models when they are imported.
        sources: notices the files entered within calls of that module; a probe that traces turns it on and off.
        placement: tensor's path in the tree → what part of it this rank holds, filled by a probe whose cases may have
            another layout on each side; then every tensor needs one.
    """

    lane: Lane
    layout: Layout
    rank: int
    world_size: int
    folder: Path
    seed: int = 1234
    perturbed: int = 0
    devices: tuple[str, ...] = ()
    masks: list[Mask] = field(default_factory=list)
    stand_ins: list[StandIn] = field(default_factory=list)
    set_by_hand: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    trace: list[Step] = field(default_factory=list)
    placement: dict[str, Placement] = field(default_factory=dict)
    restored: Mapping[str, Encoded] | None = None
    configs: dict[str, dict[str, Encoded]] = field(default_factory=dict)
    watched: str | None = None
    scans: bool = False
    sources: FileMonitor = field(default_factory=FileMonitor)

    @property
    def written(self) -> Path:
        """A copy of the folder of the probe that this one `reads`, as all its ranks left it.

        Raises:
            HarnessFault: this probe declares no `reads`.
        """
        found = self.folder / WRITTEN
        if not found.is_dir():
            raise HarnessFault("nothing was written for this probe: it must say `reads=` whose files it needs")
        return found

    def mask(self, name: str, own: Any, forced: Any) -> None:
        """Record that the lane forces a config field. Both sides must force the same value."""
        self.masks.append(Mask(name, own, forced))

    def stand_in(self, replaced: str, by: str, reason: str) -> None:
        """Record something the harness put in the place of an upstream or device call."""
        entry = StandIn(replaced, by, reason)
        if entry not in self.stand_ins:
            self.stand_ins.append(entry)

    def by_hand(self, name: str, value: Any) -> Any:
        """Record an attribute the probe sets itself because it does not go through upstream's constructor."""
        self.set_by_hand[name] = value
        return value

    def resolve(self, name: str, config: Any) -> None:
        """Keep a config as the stack has resolved it, then set those of its fields that this run is to restore.

        Raises:
            Unavailable: a value cannot be made from its encoding.
        """
        if self.restored is None:
            return
        self.configs[name] = _encoded_fields(config)
        for path, value in self.restored.items():
            owner, _, attribute = path.partition(".")
            if owner != name:
                continue
            try:
                object.__setattr__(config, attribute, self.by_hand(path, rebuild(value)))
            except CannotRebuildError as error:
                raise Unavailable(f"{path} cannot be set back: {error}") from error

    def comes_from(self, name: str, value: Any) -> Any:
        """Record which module a hook, class or function really comes from, and return it."""
        code = getattr(value, "__wrapped__", value)
        module = getattr(code, "__module__", type(value).__module__)
        qualified = getattr(code, "__qualname__", type(value).__qualname__)
        self.provenance[name] = f"{module}:{qualified}"
        return value

    def upstream(self, reference: str) -> Any:
        """The upstream object `package.module:attribute.path` (or the module, without a colon).

        Raises:
            MissingSymbol: this pin does not have it.
        """
        module_name, _, attribute = reference.partition(":")
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise
            raise MissingSymbol(f"no module {error.name}") from error
        for name in filter(None, attribute.split(".")):
            if not hasattr(found, name):
                raise MissingSymbol(f"{module_name} has no {attribute}")
            found = getattr(found, name)
        return found

    def call(self, reference: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Call the upstream object `reference` (see `upstream`).

        Raises:
            MissingSymbol: this pin does not have it.
            Refused: its signature does not take these arguments.
        """
        function = self.upstream(reference)
        try:
            inspect.signature(function).bind(*arguments, **keywords)
        except TypeError as error:
            raise Refused(f"{reference} {error}") from error
        return function(*arguments, **keywords)


def _encoded_fields(config: Any) -> dict[str, Encoded]:
    """The fields of a config that can be encoded; those that can't are no settings."""
    encoded = {}
    for name, value in vars(config).items():
        try:
            encoded[name] = encode(value).tree
        except EncodingError:
            continue
    return encoded
