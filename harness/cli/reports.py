"""`parity report`: a run again, in the format that a reader needs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.cli.options import Clones, Output, console, latest_run, progress, write_file
from harness.report import (
    Records,
    RecordsError,
    html_report,
    json_report,
    junit_report,
    markdown_report,
    print_run,
    print_summary,
    read_run,
)
from harness.report.against import Against, against, against_json, against_markdown, print_against
from harness.report.markdown import COMMENT, SUMMARY
from harness.report.run_view import RunView
from harness.selection import settings_with

_PLAIN_WIDTH = 120
"""Columns of a text that no terminal shows."""


class Format(StrEnum):
    """What `--format` takes."""

    TERMINAL = "terminal"
    MD = "md"
    HTML = "html"
    JUNIT = "junit"
    JSON = "json"


class Room(StrEnum):
    """What `--fit` takes: where Markdown is to be shown, which limits it."""

    SUMMARY = "summary"
    COMMENT = "comment"


def register(app: typer.Typer) -> None:
    """Give an app the command."""
    app.command()(report)


def report(
    run: Annotated[Path | None, typer.Argument(help="A run's folder (default: the latest under .parity/runs).")] = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="terminal; md, for the summary of a CI step or a comment on a pull request; html, one file to "
            "explore; junit, for CI systems; json, for scripts.",
        ),
    ] = Format.TERMINAL,
    output: Output = None,
    areas: Annotated[bool, typer.Option("--areas", help="Terminal: counts per area alone.")] = False,
    cases: Annotated[bool, typer.Option("--cases", help="Terminal: list all cases, however many.")] = False,
    fit: Annotated[
        Room, typer.Option(help="Markdown: shorten it to what GitHub shows, 1 MiB or 65,536 characters.")
    ] = Room.SUMMARY,
    other: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="RUN", help="Tell only what changed since this earlier run: terminal, md, json."
        ),
    ] = None,
    clone: Clones = None,
) -> None:
    """Show a run again: what fails and where the sides part, what to type next, and counts.

    With --against, exit status 1 says that a case fails which did not. Local clones (--clone, or the table
    tool.parity.clones of pyproject.toml) let it count the commits between two pins.

    Examples: parity report · parity report --format html -o report.html
    · parity report .parity/runs/20260801-120000 --format md --fit comment
    · parity report --against .parity/runs/20260801-120000
    """
    settings = settings_with(clone)
    view = read_run(Records(run or latest_run()), settings.sources, settings.clones)
    if other is not None:
        raise typer.Exit(_compare(against(view, read_run(Records(other))), form, output))
    if form is Format.TERMINAL:
        with _terminal(output) as shown:
            if areas:
                print_summary(view, shown)
            else:
                print_run(view, shown, all_cases=cases)
        return
    _write(_rendered(view, form, fit), output)


def _compare(found: Against, form: Format, output: Path | None) -> int:
    """Show what changed between two runs; the exit status."""
    match form:
        case Format.TERMINAL:
            with _terminal(output) as shown:
                print_against(found, shown)
        case Format.MD:
            _write(against_markdown(found), output)
        case Format.JSON:
            _write(against_json(found), output)
        case _:
            raise RecordsError(f"--against has no {form}: type --format terminal, md or json")
    return int(bool(found.worse))


@contextmanager
def _terminal(output: Path | None) -> Iterator[Console]:
    """The terminal, or a plain text that becomes a file."""
    if output is None:
        yield console
        return
    plain = Console(file=io.StringIO(), width=_PLAIN_WIDTH, highlight=False, emoji=False)
    with plain.capture() as captured:
        yield plain
    _write(captured.get(), output)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    write_file(output, text)
    progress(f"{output}: {len(text.encode()):,} bytes")


def _rendered(view: RunView, form: Format, fit: Room) -> str:
    match form:
        case Format.MD:
            return markdown_report(view, COMMENT if fit is Room.COMMENT else SUMMARY)
        case Format.HTML:
            return html_report(view)
        case Format.JUNIT:
            return junit_report(view)
        case _:
            return json_report(view)
