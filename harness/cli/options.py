"""What the commands of `parity` share: their options, how a case is typed, where lines go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from harness.probes import ProbeError
from harness.workers.protocol import Limits

console = Console(highlight=False, emoji=False)
errors = Console(stderr=True, highlight=False, emoji=False)

USAGE, ENVIRONMENT = 2, 3
SECONDS = Limits().seconds

Old = Annotated[str | None, typer.Option(help="Stack of the old side (default: `old` of [tool.parity]).")]
New = Annotated[str | None, typer.Option(help="Stack of the new side (default: `new` of [tool.parity]).")]
RunOld = Annotated[str | None, typer.Option("--old", help="Stack of the old side (default: the run's).")]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", help="Override a pin of both sides: NAME==VERSION, NAME=path:DIR or NAME=git:SOURCE@REVISION."
    ),
]
OldPins = Annotated[list[str] | None, typer.Option("--old-pin", help="Override a pin of the old side only.")]
NewPins = Annotated[list[str] | None, typer.Option("--new-pin", help="Override a pin of the new side only.")]
Base = Annotated[str | None, typer.Option(help="`current`, or an interpreter, in place of the locked base.")]
Clones = Annotated[list[str] | None, typer.Option("--clone", help="NAME=DIR: a local clone for git pins of NAME.")]
WrittenBy = Annotated[str, typer.Option(help="Who writes the files that the probe reads: own, old, new, or a stack.")]
WrittenLayout = Annotated[str | None, typer.Option(help="Layout in which they are written.")]
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
RunFolder = Annotated[Path | None, typer.Option("--run", help="A run's folder (default: the latest).")]
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of stacks, see `parity stacks list`.")]


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


def progress(line: str) -> None:
    """A line for whoever waits, on standard error."""
    errors.print(f"parity: {line}", style="dim", markup=False, soft_wrap=True)
