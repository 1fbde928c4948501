"""Overlays: a folder of exact distributions, put before the base on a worker's import path.

What an overlay leaves out of its wheels: top-level folders that are no import package of the pins but would answer to
an import of that name (`tests`, `scripts`, `examples`, `docs`, `benchmarks`: verl's wheel ships two of them) and the
console scripts (`bin`), whose first line names an interpreter that does not know the overlay.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.stacks import distinfo, uv
from harness.stacks.cache import Progress, build_once
from harness.stacks.errors import StackError
from harness.stacks.pins import ReleasePin
from harness.stacks.resolve import ResolvedPin
from harness.stacks.settings import Settings
from harness.stacks.trees import FolderTree, folder_digest

DROPPED = ("bin", "benchmarks", "docs", "examples", "scripts", "tests")
MANIFEST = "parity-overlay.json"
# Part of every key: raise it when the same pins would give other files.
_FORMAT = 1


def key_of(pins: Sequence[ResolvedPin], python: str) -> str:
    """Return the name of the overlay that holds `pins` for Python `python` ("3.12"): a digest of what it would hold."""
    identity = [
        {**asdict(pin.built), "requested": None, "folders": pin.folders}
        for pin in sorted(pins, key=lambda pin: pin.built.distribution)
    ]
    return hashlib.sha256(json.dumps([_FORMAT, python, identity], sort_keys=True).encode()).hexdigest()[:20]


def ensure(
    stack: str, pins: Sequence[ResolvedPin], key: str, python: Path, settings: Settings, progress: Progress
) -> Path:
    """Return the overlay folder of `pins`, built where need be. `stack` is named in messages. Raises StackError."""
    final = settings.cache / "overlays" / key

    def fill(target: Path) -> None:
        progress(f"{stack}: building overlay of {', '.join(pin.pin.requested for pin in pins)}")
        releases = [pin.pin for pin in pins if isinstance(pin.pin, ReleasePin)]
        if releases:
            _install(stack, releases, target, python, settings, progress)
        _drop(target)
        for pin in pins:
            _take(stack, pin, target)
        manifest = [{**asdict(pin.built), "folders": pin.folders} for pin in pins]
        (target / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")

    build_once(final, fill, progress)
    return final


def _install(
    stack: str, releases: list[ReleasePin], target: Path, python: Path, settings: Settings, progress: Progress
) -> None:
    wanted = [release.requested for release in releases]
    try:
        uv.run(
            ["pip", "install", "--no-deps", "--python", str(python), "--target", str(target), *wanted],
            cwd=settings.root,
            progress=lambda line: (
                progress(f"{stack}: {line}") if line.startswith(("Downloading", "Building")) else None
            ),
        )
    except uv.UvError as failed:
        raise StackError(f"stack '{stack}': {_reason(failed, releases, python, settings)}") from None


def _reason(failed: uv.UvError, releases: list[ReleasePin], python: Path, settings: Settings) -> str:
    missing = failed.missing()
    if missing is None or failed.offline:
        named = [release for release in releases if release.requested in failed.said]
        return f"cannot install {(named or releases)[0].requested}: {failed.reason}"
    name, version = missing
    if version is None:
        return f"the package index has no distribution '{name}'. Check the spelling of the pin."
    near = uv.nearest_releases(name, version, python=python, cwd=settings.root)
    hint = f"Nearest: {', '.join(near)}; try --pin {name}=={near[0]}" if near else "Choose another version."
    return f"{name}=={version} does not exist as a release for Python 3.12. {hint}"


def _drop(target: Path) -> None:
    # `.lock` is uv's own, left in every --target folder.
    (target / ".lock").unlink(missing_ok=True)
    present = frozenset(name for name in DROPPED if (target / name).is_dir())
    for name in present:
        shutil.rmtree(target / name)
    for info in target.glob("*.dist-info"):
        distinfo.drop_from_record(info, present)


def _take(stack: str, pin: ResolvedPin, target: Path) -> None:
    """Copy the package folders of a git or path pin, with metadata of their own."""
    if pin.tree is None:
        return
    for folder in pin.folders:
        if (target / folder).exists():
            raise StackError(f"stack '{stack}': {pin.pin.requested} and another pin both hold the folder {folder}.")
    pin.tree.copy(pin.prefix, pin.folders, target)
    # Somebody may be editing; the overlay must hold what its key says.
    if isinstance(pin.tree, FolderTree) and folder_digest(target, pin.folders) != pin.built.tree_hash:
        raise StackError(f"stack '{stack}': {pin.pin.requested} changed while it was copied. Run again.")
    distinfo.write(target, pin.built, pin.folders, pin.url)
