"""Is what a worker imported what the stack pinned: file, version and commit of every pinned distribution."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import sys
from functools import cache
from pathlib import Path, PurePosixPath

from harness.workers.protocol import Pin, WorkerSpec


def verify_pins(spec: WorkerSpec) -> tuple[dict[str, str], str | None]:
    """Version of every pinned distribution as installed, and the first thing that is not as pinned, in one line."""
    versions: dict[str, str] = {}
    for pin in spec.pins:
        try:
            found = importlib.metadata.distribution(pin.distribution)
        except importlib.metadata.PackageNotFoundError:
            return versions, f"{pin.distribution} is not in the overlay"
        fault = _difference(pin, found, Path(spec.overlay))
        if fault:
            return versions, f"{pin.distribution}: {fault}"
        versions[pin.distribution] = found.version
    return versions, None


def misplaced_import(spec: WorkerSpec, verified: set[tuple[str, str]]) -> str | None:
    """The first imported module of a pinned distribution that did not come from the overlay, in one line.

    Args:
        verified: names of modules, with their files, that were looked at before; the others are added.
    """
    overlay = Path(spec.overlay).resolve()
    imported = {
        (name, file) for name, module in list(sys.modules.items()) if (file := getattr(module, "__file__", None))
    }
    fresh = sorted(imported - verified)
    for pin in spec.pins:
        prefixes = _import_names(pin.distribution)
        for name, file in fresh:
            if _belongs(name, prefixes) and not Path(file).resolve().is_relative_to(overlay):
                return f"{name} of {pin.distribution} was imported from {file}, not from its overlay"
    verified.update(fresh)
    return None


def _difference(pin: Pin, found: importlib.metadata.Distribution, overlay: Path) -> str | None:
    location = Path(str(found.locate_file(""))).resolve()
    if location != overlay.resolve():
        return f"found in {location}, not in the overlay"
    changed = _changed_file(found)
    if changed:
        return f"{changed} is not what was installed; delete {overlay} to build it again"
    if pin.version is not None and found.version != pin.version:
        return f"version {found.version} is installed, {pin.version} is pinned"
    recorded = json.loads(found.read_text("direct_url.json") or "{}").get("parity", {})
    for key, pinned in (("commit", pin.commit), ("tree_hash", pin.tree_hash)):
        if recorded.get(key) != pinned:
            return f"{key} {recorded.get(key)} is installed, {pinned} is pinned"
    return None


def _changed_file(found: importlib.metadata.Distribution) -> str | None:
    """The first file of a distribution that is gone, or whose hash is not the recorded one."""
    for file in found.files or ():
        if file.hash is None or file.hash.mode != "sha256":
            continue
        path = Path(str(found.locate_file(file)))
        if not path.is_file():
            return str(file)
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        if digest != file.hash.value:
            return str(file)
    return None


@cache
def _import_names(distribution: str) -> set[str]:
    """The shallowest packages with an `__init__.py`: `megatron.core`, not the namespace `megatron`."""
    found = importlib.metadata.distribution(distribution)
    packages = {PurePosixPath(str(file)).parent for file in found.files or () if str(file).endswith("/__init__.py")}
    shallowest = {package for package in packages if not packages.intersection(package.parents)}
    return {".".join(package.parts) for package in shallowest}


def _belongs(module: str, prefixes: set[str]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)
