"""`parity report`: a run again, in the format that a reader needs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Clones, console, latest_run, progress
from harness.report import (
    Records,
    html_report,
    json_report,
    junit_report,
    markdown_report,
    print_run,
    print_summary,
    read_run,
)
from harness.report.markdown import COMMENT, SUMMARY
from harness.report.run_view import RunView
from harness.selection import settings_with


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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    areas: Annotated[bool, typer.Option("--areas", help="Terminal: counts per area alone.")] = False,
    cases: Annotated[bool, typer.Option("--cases", help="Terminal: list all cases, however many.")] = False,
    fit: Annotated[
        Room, typer.Option(help="Markdown: shorten it to what GitHub shows, 1 MiB or 65,536 characters.")
    ] = Room.SUMMARY,
    clone: Clones = None,
) -> None:
    """Show a run again: what fails and where the sides part, what to type next, and counts.

    Local clones (`--clone`, or `[tool.parity.clones]`) let it count the commits between two pins.

    Examples: parity report · parity report --format html -o report.html
    · parity report .parity/runs/20260801-120000 --format md --fit comment
    """
    records = Records(run or latest_run())
    settings = settings_with(clone)
    view = read_run(records, settings.sources, settings.clones)
    if form is Format.TERMINAL:
        if areas:
            print_summary(view, console)
        else:
            print_run(view, console, all_cases=cases)
        return
    text = _rendered(view, form, fit)
    if output is None:
        typer.echo(text, nl=False)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
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
