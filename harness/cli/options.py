"""What the commands of `parity` share: their options, how a case is typed, where lines go."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from harness.cases import OWN
from harness.layouts import LAYOUTS
from harness.probes import ProbeError
from harness.report.records import FILE, Records, RecordsError, without_controls
from harness.schedule import LaneChoice, LaneError, choose_lane
from harness.selection import Selection
from harness.stacks import Builder, Settings, StackUsageError, load_settings
from harness.workers.protocol import Limits

USAGE, ENVIRONMENT = 2, 3
SECONDS = Limits().seconds


class _Lines(Console):
    r"""A console that shows control characters of the texts it prints (`\x1b`) instead of letting a terminal obey."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as any console does."""
        super().print(*map(without_controls, objects), **how)


console = _Lines(highlight=False, emoji=False)
errors = _Lines(stderr=True, highlight=False, emoji=False)


def writable(file: Path | None) -> Path | None:
    """The file that an option names; what cannot be one is said before the work, not after it.

    Raises:
        StackUsageError: it is a folder, or its own folder cannot be made.
    """
    if file is None:
        return None
    if file.is_dir():
        raise StackUsageError(f"{file} is a folder: name a file in it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StackUsageError(f"cannot write {file}: {error.strerror}; name another file") from None
    return file


Old = Annotated[str | None, typer.Option(help="Stack of the old side (default: `old` of tool.parity).")]
New = Annotated[str | None, typer.Option(help="Stack of the new side (default: `new` of tool.parity).")]
RunOld = Annotated[str | None, typer.Option("--old", help="Stack of the old side (default: the run's).")]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", help="Override a pin of both sides: NAME==VERSION, NAME=path:DIR or NAME=git:SOURCE@REVISION."
    ),
]
StackPins = Annotated[
    list[str] | None, typer.Option("--pin", help="Override a pin of the stack, as NAME==VERSION; may be repeated.")
]
OldPins = Annotated[list[str] | None, typer.Option("--old-pin", help="Override a pin of the old side only.")]
NewPins = Annotated[list[str] | None, typer.Option("--new-pin", help="Override a pin of the new side only.")]
Base = Annotated[str | None, typer.Option(help="`current`, or an interpreter, in place of the locked base.")]
Clones = Annotated[list[str] | None, typer.Option("--clone", help="NAME=DIR: a local clone for git pins of NAME.")]
WrittenBy = Annotated[str, typer.Option(help="Who writes the files that the probe reads: own, old, new, or a stack.")]
WrittenLayout = Annotated[str | None, typer.Option(help="Layout in which they are written.")]
Layout = Annotated[str, typer.Option(help=f"Parallelism: {', '.join(LAYOUTS)}.")]
Seconds = Annotated[float, typer.Option(help="Time limit of a case on one side.")]
Workers = Annotated[int | None, typer.Option(min=1, help="How many at a time (default: what the host holds).")]
Wanted = Annotated[str | None, typer.Option("--path", help="Glob of the difference to look for (default: the first).")]
Parameters = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="The probe's parameters.")]
Bundle = Annotated[str | None, typer.Option(help="Take the stacks from this bundle, see `parity bundle`.")]
Lane = Annotated[str, typer.Option(help="`cpu`, or `cuda`: NCCL on the GPUs of this host.")]
Gpus = Annotated[str | None, typer.Option(metavar="IDS", help="Which GPUs, as nvidia-smi counts them (default: all).")]
Nondeterministic = Annotated[
    bool, typer.Option("--nondeterministic", help="The cuda lane with production settings; the noise floor judges.")
]
GoldenOnly = Annotated[bool, typer.Option("--golden-only", help="Do not run the old side: its goldens stand in.")]
ChangedPins = Annotated[
    str | None,
    typer.Option(
        metavar="BASE",
        help="Compare the stack whose pins in pyproject.toml moved since git revision BASE with what it was there.",
    ),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", callback=writable, help="Write to this file.")]
RunFolder = Annotated[Path | None, typer.Option("--run", help="A run's folder (default: the latest).")]
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of stacks, see `parity stacks list`.")]


@dataclass(frozen=True)
class HowItRuns:
    """How a case runs: options of every command that takes one."""

    layout: Layout = "single"
    written_by: WrittenBy = OWN
    written_layout: WrittenLayout = None
    seconds: Seconds = SECONDS


@dataclass(frozen=True)
class WhereItRuns:
    """The lane of a case: options of every command that runs one."""

    lane: Lane = "cpu"
    gpus: Gpus = None
    nondeterministic: Nondeterministic = False

    @property
    def choice(self) -> LaneChoice:
        """The lane, on this host.

        Raises:
            LaneError: see `choose_lane`, or there is no GPU.
        """
        chosen = choose_lane(self.lane, self.gpus, deterministic=not self.nondeterministic)
        if not chosen.places:
            raise LaneError(f"--lane {self.lane}: this host has no GPU; `parity doctor` says what it can run")
        return chosen


@dataclass(frozen=True)
class WhichSides:
    """Which two stacks are compared: options of every command that compares two."""

    old: Old = None
    new: New = None
    pin: Pins = None
    old_pin: OldPins = None
    new_pin: NewPins = None
    base: Base = None
    clone: Clones = None
    bundle: Bundle = None

    def selection(self, **more: Any) -> Selection:
        """The sides these options choose; `more` are further fields of a `Selection`."""
        pins = self.pin or (), self.old_pin or (), self.new_pin or ()
        return Selection(self.old, self.new, *pins, self.base, self.clone or (), self.bundle, **more)

    def builder(self, settings: Settings) -> Builder:
        """What builds the stacks these options choose."""
        return Builder(settings, self.base, Path(self.bundle) if self.bundle else None, progress)


def with_groups[R](command: Callable[..., R]) -> Callable[..., R]:
    """Let a command take groups of options: a parameter whose type is a dataclass stands for the fields of that."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    given: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        given += _options_of(group) if group else [parameter.replace(annotation=hints[parameter.name])]

    @functools.wraps(command)
    def grouped(**options: Any) -> R:
        made = {
            name: group(**{field.name: options.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**options, **made)

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in given]
    grouped.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in given}
    return grouped


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]


def typed_parameters(words: list[str]) -> dict[str, Any]:
    """Parameters of a probe, typed as KEY=VALUE.

    Raises:
        ProbeError: one that is not.
    """
    pairs = [word.partition("=") for word in words]
    malformed = next((name for name, equals, _ in pairs if not equals), None)
    if malformed is not None:
        raise ProbeError(f"{malformed!r} is no parameter: write KEY=VALUE")
    return {name: typed_value(text) for name, _, text in pairs}


def typed_value(text: str) -> Any:
    """A value as it was typed: JSON where it can be, else text; the path of a JSON file is made absolute.

    Raises:
        ProbeError: a text that is none, or JSON that nests too deep.
    """
    if Path(text).suffix == ".json" and Path(text).is_file():
        return str(Path(text).resolve())  # workers run in a folder of their own
    try:
        text.encode()
        return json.loads(text)
    except UnicodeEncodeError:
        raise ProbeError(f"{text!r} is no valid text in this locale's encoding") from None
    except RecursionError:
        raise ProbeError("a parameter nests too deep") from None
    except ValueError:
        return text


def latest_run() -> Path:
    """The folder of the latest run that compared; others (of `explain`, `bisect`, `matrix`) have no report.

    Raises:
        RecordsError: there is none.
    """
    runs = sorted(file.parent for file in (load_settings().root / ".parity" / "runs").glob(f"*/{FILE}"))
    found = next((run for run in reversed(runs) if any(Records(run).read("run_started"))), None)
    if found is None:
        raise RecordsError("no run here yet: type `python3 -m nox -s parity`")
    return found


def write_file(file: Path, text: str) -> None:
    """Write what a command made.

    Raises:
        StackUsageError: it cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StackUsageError(f"cannot write {file}: {error.strerror}; name another file") from None


def progress(line: str) -> None:
    """A line for whoever waits, on standard error."""
    errors.print(f"parity: {line}", style="dim", markup=False, soft_wrap=True)
