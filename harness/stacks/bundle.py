"""Bundles: everything that stacks need beyond the interpreter of another host, for hosts without a network.

A bundle is a folder with a manifest and an archive in parts. The archive holds the overlays of the stacks as they are
built here, and `site`: what of the base environment, and of the harness's own dependencies, the other host lacks.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.metadata
import io
import json
import lzma
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.stacks import base as bases
from harness.stacks import distinfo, fatbin, unpack, uv
from harness.stacks.build import BuiltStack
from harness.stacks.cache import Progress, build_once
from harness.stacks.errors import StackError, StackUsageError
from harness.stacks.pins import BuiltPin
from harness.stacks.settings import Settings, Stack

PRUNED = (
    "site/bin/*",
    "site/botocore/data/*",
    "site/mistral_common/data/*",
    "site/mlflow/server/js/*",
    "site/pulp/solverdir/*",
    "site/pycountry/locales/*",
    "site/ray/core/src/ray/gcs/gcs_server",
    "site/ray/core/src/ray/raylet/raylet",
    "site/ray/dashboard/client/*",
    "site/ray/jars/*",
    "site/ray/rllib/*",
    "site/wandb/bin/*",
    "*/__pycache__/*",
)
"""What is large and no import needs."""

_CONTROLLER_LEAVES_OUT = ("uv",)
_PRESET = 4
_PLATFORM = "x86_64-manylinux_2_28"
_SIZE = re.compile(r"(\d+)([KMG]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class BundlePlan:
    """What a bundle is to hold.

    Attributes:
        stacks: built here.
        python: `MAJOR.MINOR` of the other host's interpreter.
        have: names of distributions it has already.
        wheels: wheel files to install besides, e.g. Transformer Engine's.
        max_part: largest size of one part, in bytes.
        gpu: architecture whose code is kept of libraries that hold many, 90 for sm_90; None keeps all.
    """

    stacks: Sequence[BuiltStack]
    python: str
    have: frozenset[str]
    wheels: Sequence[Path]
    max_part: int
    gpu: int | None = None


def parse_size(text: str) -> int:
    """`58M` in bytes; K, M and G are powers of 1000.

    Raises:
        StackUsageError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise StackUsageError(f"'{text}' is no size. Write 58M, for example.")
    return int(found[1]) * _UNITS[found[2].upper()]


def names_in(requirements: Path) -> frozenset[str]:
    """The distributions a requirement file names, one a line, whatever their versions.

    Raises:
        StackUsageError: it cannot be read, or a line is no requirement.
    """
    try:
        lines = [line.split("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines()]
        return frozenset(canonicalize_name(Requirement(line).name) for line in lines if line)
    except (OSError, ValueError) as error:
        raise StackUsageError(f"--have {requirements}: {error}") from None


def write(plan: BundlePlan, folder: Path, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Write the bundle into `folder`, which must be new or empty, and return its manifest.

    Raises:
        StackError: the folder is in use, or what is missing cannot be installed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise StackUsageError(f"{folder} is not empty; choose a new folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as work:
        tree, beside = Path(work) / "tree", Path(work) / "bundle"
        beside.mkdir()
        wanted = _missing(plan.have)
        progress(f"bundle: installing {len(wanted)} distributions that the other host lacks")
        _install([*wanted, *map(str, plan.wheels)], tree / "site", plan, settings)
        if plan.gpu is not None:
            blanked = sum(fatbin.keep_only(library, plan.gpu) for library in (tree / "site").rglob("*.so"))
            progress(f"bundle: {blanked >> 20} MiB of GPU code for other architectures blanked")
        for stack in plan.stacks:
            shutil.copytree(stack.overlay, tree / "overlays" / stack.key, dirs_exist_ok=True)
        files = {name: tree / name for name in sorted(_kept(tree), key=_inside)}
        progress(f"bundle: packing {len(files)} files, {sum(f.stat().st_size for f in files.values()) >> 20} MiB")
        manifest = {
            "format": unpack.FORMAT,
            "python": plan.python,
            "stacks": {stack.name: _stack_entry(stack, settings) for stack in plan.stacks},
            "gpu": plan.gpu,
            "site": wanted + [wheel.name for wheel in plan.wheels],
            "parts": _pack(files, beside, plan.max_part),
        }
        (beside / unpack.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        beside.rename(folder)
    return manifest


def _stack_entry(stack: BuiltStack, settings: Settings) -> dict[str, Any]:
    return {
        "key": stack.key,
        "pins": [asdict(pin) for pin in stack.pins],
        "asked": _asked(settings.stack(stack.name), settings.root),
    }


def use(bundle: Path, stack: Stack, settings: Settings, *, base: str | None = None, progress: Progress) -> BuiltStack:
    """A stack of a bundle, unpacked into the cache where need be, on top of an interpreter of this host.

    One that mixes pins of the bundle's stacks is put together from the distributions of their overlays.

    Raises:
        StackError: the bundle is damaged, is for another Python, or does not hold one of the pins.
    """
    try:
        manifest = unpack.read_manifest(bundle)
        key = hashlib.sha256((bundle / unpack.MANIFEST).read_bytes()).hexdigest()[:20]
        unpacked = settings.cache / "bundles" / key
        sources = _sources(bundle, manifest, stack, settings.root)
        environment = bases.ensure(settings, base or "current", progress)
        if build_once(unpacked, lambda target: unpack.unpack(bundle, target), progress):
            progress(f"bundle: unpacked and verified {bundle}")
    except unpack.BundleError as error:
        raise StackError(f"--bundle {error}") from None
    overlay = _overlay(unpacked, sources, stack, progress)
    return BuiltStack(
        name=stack.name,
        python=environment.python,
        overlay=overlay,
        key=overlay.name,
        pins=tuple(_built(name, sources[name]) for name in sorted(sources)),
        base_key=f"{environment.key}-{key}",
        site=unpacked / "site",
    )


_Entry = Mapping[str, Any]
"""What a manifest says of one stack."""


def _sources(bundle: Path, manifest: Mapping[str, Any], stack: Stack, root: Path) -> dict[str, _Entry]:
    """Where each distribution of a stack is taken from: one stack of the bundle, or the first that has the pin."""
    entries: list[_Entry] = list(manifest["stacks"].values())
    asked = _asked(stack, root)
    whole = next((entry for entry in entries if entry["asked"] == asked), None)
    if whole is not None:
        return dict.fromkeys(asked, whole)
    sources = {
        name: next((entry for entry in entries if entry["asked"].get(name) == pin), None) for name, pin in asked.items()
    }
    for name, entry in sources.items():
        if entry is None:
            held = sorted({entry["asked"][name] for entry in entries if name in entry["asked"]})
            told = f"holds {', '.join(held) or f'no {name}'}, and {stack.name} needs {asked[name]}"
            raise StackUsageError(f"--bundle {bundle} {told}; `parity bundle` makes another.")
    return {name: entry for name, entry in sources.items() if entry is not None}


def _built(name: str, entry: _Entry) -> BuiltPin:
    return next(pin for pin in (BuiltPin(**pin) for pin in entry["pins"]) if pin.distribution == name)


def _overlay(unpacked: Path, sources: Mapping[str, _Entry], stack: Stack, progress: Progress) -> Path:
    """The unpacked overlay of the stack, or one put together from several."""
    keys = {name: str(entry["key"]) for name, entry in sources.items()}
    if len(set(keys.values())) == 1:
        return unpacked / "overlays" / next(iter(keys.values()))
    mixed = hashlib.sha256(json.dumps([unpacked.name, keys], sort_keys=True).encode()).hexdigest()[:20]

    def fill(target: Path) -> None:
        progress(f"{stack.name}: putting its overlay together from the bundle's")
        for name, key in keys.items():
            distinfo.copy(name, unpacked / "overlays" / key, target)

    final = unpacked.parent / f"{unpacked.name}-mixed" / mixed
    build_once(final, fill, progress)
    return final


def _asked(stack: Stack, root: Path) -> dict[str, str]:
    """The pins of a stack as texts that are the same on two hosts: paths are told from the project's folder."""
    return {name: pin.requested.replace(f"{root}{os.sep}", "") for name, pin in stack.pins.items()}


def pinned_base() -> dict[str, str]:
    """Every distribution of the locked base environment, by name: pinned requirements."""
    lines = [line.split(" ;")[0].strip() for line in bases.LOCKED.read_text(encoding="utf-8").splitlines()]
    return {canonicalize_name(Requirement(line).name): line for line in lines if line[:1].isalpha()}


def _missing(have: frozenset[str]) -> list[str]:
    """Pinned requirements of the base environment and of the harness itself that are not in `have`."""
    own = {name: f"{name}=={importlib.metadata.version(name)}" for name in _own_closure()}
    return [requirement for name, requirement in sorted({**own, **pinned_base()}.items()) if name not in have]


def _own_closure() -> set[str]:
    """Distributions that the harness's controller imports, as installed here; none where it runs from a bundle."""
    found: set[str] = set()
    frontier = ["parity-harness"]
    while frontier:
        try:
            needed = importlib.metadata.requires(frontier.pop()) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        for text in needed:
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and name not in found and name not in _CONTROLLER_LEAVES_OUT:
                found.add(name)
                frontier.append(name)
    return found


def _install(wanted: Sequence[str], target: Path, plan: BundlePlan, settings: Settings) -> None:
    target.mkdir(parents=True)
    if not wanted:
        return
    try:
        uv.run(
            [
                *("pip", "install", "--no-deps", "--python-version", plan.python, "--python-platform", _PLATFORM),
                *("--target", str(target), *wanted),
            ],
            cwd=settings.root,
            progress=lambda _line: None,
        )
    except uv.UvError as failed:
        raise StackError(f"bundle: cannot install what the other host lacks: {failed.reason}") from None


def _inside(name: str) -> tuple[str, str]:
    """A sort key that puts a file of several overlays next to itself, where packing finds it again."""
    _, _, rest = name.removeprefix("overlays/").partition("/")
    return (rest if name.startswith("overlays/") else name), name


def _kept(tree: Path) -> Iterator[str]:
    for path in tree.rglob("*"):
        name = path.relative_to(tree).as_posix()
        pruned = any(fnmatch.fnmatch(name, pattern) for pattern in PRUNED)
        if path.is_file() and not pruned and name.split("/")[-1] != ".lock":
            yield name


def _pack(files: Mapping[str, Path], folder: Path, max_part: int) -> list[dict[str, Any]]:
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    parts = _PartWriter(folder, max_part)
    with (
        lzma.open(parts, "wb", preset=_PRESET) as compressed,  # type: ignore[call-overload]
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        content = json.dumps(hashes).encode()
        first = tarfile.TarInfo(unpack.FILES)
        first.size = len(content)
        archive.addfile(first, io.BytesIO(content))
        for name, path in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = path.stat().st_size, path.stat().st_mode & 0o777
            with path.open("rb") as file:
                archive.addfile(member, file)
    return parts.close_all()


class _PartWriter(io.RawIOBase):
    """A stream that begins a new file whenever one is full."""

    def __init__(self, folder: Path, max_part: int) -> None:
        self._folder = folder
        self._max = max_part
        self._parts: list[dict[str, Any]] = []
        self._digest = hashlib.sha256()
        self._room = 0
        self._file: Any = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        done = 0
        while done < len(view):
            if not self._room:
                self._begin()
            piece = view[done : done + self._room]
            self._file.write(piece)
            self._digest.update(piece)
            self._room -= len(piece)
            done += len(piece)
        return len(view)

    def close_all(self) -> list[dict[str, Any]]:
        """The parts, with their hashes."""
        self._end()
        return self._parts

    def _begin(self) -> None:
        self._end()
        name = f"bundle.tar.xz.{len(self._parts):02d}"
        self._parts.append({"file": name})
        self._file, self._digest, self._room = (self._folder / name).open("wb"), hashlib.sha256(), self._max

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._parts[-1] |= {"sha256": self._digest.hexdigest(), "size": self._max - self._room}
            self._file = None
