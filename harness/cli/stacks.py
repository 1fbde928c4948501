"""Stacks and hosts: `parity stacks`, `parity changed`, `parity bundle`, `parity doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.cli.options import Base, Bundle, Clones, Names, console, progress
from harness.doctor import examine
from harness.probes import registered_probes
from harness.runner import new_run_folder
from harness.selection import settings_with
from harness.stacks import build, changed_stacks, load_settings, nothing_moved
from harness.stacks import bundle as bundles
from harness.workers.pool import Pool

stacks_app = typer.Typer(help="Stacks: named sets of pins that can run.", no_args_is_help=True)


@stacks_app.command("list")
def stacks_list() -> None:
    """List the declared stacks and their pins."""
    settings = load_settings()
    for name in settings.stacks:
        role = " ".join(f"({side})" for side in ("old", "new") if getattr(settings, side) == name)
        console.print(f"[bold]{escape(name)}[/] {role}")
        for pin in settings.stack(name).pins.values():
            console.print(f"  {escape(pin.requested)}")


@stacks_app.command("show")
def stacks_show(name: str) -> None:
    """Show one stack's pins."""
    for pin in load_settings().stack(name).pins.values():
        console.print(escape(pin.requested))


@stacks_app.command("build")
def stacks_build(names: Names, base: Base = None, clone: Clones = None) -> None:
    """Build the base environment and the overlays of stacks."""
    settings = settings_with(clone)
    for name in names:
        built = build(settings.stack(name), settings, base=base, progress=progress)
        console.print(f"{escape(name)}: {built.overlay}", soft_wrap=True)


@stacks_app.command("check")
def stacks_check(names: Names, base: Base = None, clone: Clones = None) -> None:
    """Import the whole closure of stacks in a worker, and say in one line what is missing."""
    settings = settings_with(clone)
    failed = False
    for name in names:
        built = build(settings.stack(name), settings, base=base, progress=progress)
        folder = new_run_folder(settings.root) / "workers"
        pool = Pool(folder, "cpu", os.getpid(), lambda *_: None, preload=registered_probes())
        try:
            imported = pool.preload(built)
        finally:
            pool.stop()
        failed |= bool(imported.failed)
        told = "; ".join(f"{module}: {why}" for module, why in imported.failed.items())
        console.print(f"{escape(name)}: {escape(told) or 'ok'} ({imported.modules} modules, {imported.seconds:.0f} s)")
    raise typer.Exit(int(failed))


def changed(
    base: Annotated[str, typer.Argument(metavar="BASE", help="A git revision of this project.")],
    names: Annotated[bool, typer.Option("--names", help="Names of stacks alone, one a line.")] = False,
) -> None:
    """Say which stacks' pins in pyproject.toml moved since a git revision, as `--changed-pins` will compare them.

    Example: parity changed origin/main
    """
    moves = changed_stacks(load_settings(), base)
    for move in moves:
        console.print(move.new.name if names else f"{move}", markup=False, soft_wrap=True)
    if not moves:
        progress(nothing_moved(base))


def doctor(base: Base = None, bundle: Bundle = None) -> None:
    """Say what this host has and lacks, and what each suite can run here; exit status 1 where something is amiss."""
    findings = examine(load_settings(), base, Path(bundle) if bundle else None)
    for finding in findings:
        mark = {True: "[green]✓[/]", False: "[red]✗[/]", None: " "}[finding.ok]
        console.print(f"{mark} {escape(finding.about):24} {escape(finding.told)}", soft_wrap=True)
    raise typer.Exit(int(any(finding.ok is False for finding in findings)))


def bundle(
    names: Names,
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder for the bundle.")],
    for_python: Annotated[str, typer.Option(help="MAJOR.MINOR of the other host's interpreter.")] = "3.12",
    have: Annotated[
        Path | None, typer.Option(help="A requirement file: what the other host's interpreter has already.")
    ] = None,
    wheel: Annotated[list[Path] | None, typer.Option(help="A wheel to add, e.g. Transformer Engine's.")] = None,
    max_part: Annotated[str, typer.Option(help="Largest size of one file of the bundle.")] = "2G",
    gpu: Annotated[
        int | None, typer.Option(help="Keep GPU code of this architecture alone in added wheels: 90 for sm_90.")
    ] = None,
    base: Base = None,
    clone: Clones = None,
) -> None:
    """Write what stacks need beyond another host's interpreter, for a host without a network.

    There, `--bundle DIR` of `parity compare` and of pytest uses it, every hash verified.

    Example: parity bundle verl-0.7.1 verl-0.8.0 -o bundle --have have.txt --max-part 58M
    """
    settings = settings_with(clone)
    stacks = [build(settings.stack(name), settings, base=base, progress=progress) for name in names]
    lacking = bundles.names_in(have) if have else frozenset()
    plan = bundles.BundlePlan(stacks, for_python, lacking, wheel or [], bundles.parse_size(max_part), gpu)
    manifest = bundles.write(plan, output, settings, progress)
    for part in manifest["parts"]:
        console.print(f"{output / part['file']}: {part['size'] / 1e6:.1f} MB", soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add these commands to `parity`."""
    app.add_typer(stacks_app, name="stacks")
    for command in (changed, doctor, bundle):
        app.command()(command)
