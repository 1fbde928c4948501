"""Unpack a bundle: check every part and every file by its hash, and write nowhere but into the folder given.

Needs the standard library alone, so that a host without the harness's own dependencies, which are in the bundle too,
can run it by its path: `python3 harness/stacks/unpack.py BUNDLE FOLDER`.
"""

from __future__ import annotations

import compileall
import hashlib
import io
import json
import lzma
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

MANIFEST = "bundle.json"
FILES = "files.json"
"""The first member of the archive: every other member with its SHA-256."""
FORMAT = 1
_CHUNK = 1 << 20
_KEY = re.compile(r"[0-9a-f]+")
_PIN_TEXTS = "distribution", "kind", "version", "requested"
_PIN_OTHERS = "commit", "dirty", "tree_hash"


class BundleError(Exception):
    """A bundle that is incomplete, damaged, of another format, or that names a path it must not."""


def read_manifest(bundle: Path) -> dict[str, Any]:
    """What the bundle says it holds.

    Raises:
        BundleError: there is no manifest, or it is of another format or damaged.
    """
    try:
        manifest = json.loads((bundle / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise BundleError(f"{bundle} is no bundle: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{bundle / MANIFEST} has another format than {FORMAT}; make the bundle again")
    if not _is_whole(manifest):
        raise BundleError(f"{bundle / MANIFEST} is damaged; make the bundle again")
    return manifest


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Whether everything that is read of a manifest is there and of its type."""
    stacks, parts = manifest.get("stacks"), manifest.get("parts")
    return (
        isinstance(manifest.get("python"), str)
        and isinstance(stacks, dict)
        and all(_is_stack(entry) for entry in stacks.values())
        and isinstance(parts, list)
        and all(_has_texts(part, "file", "sha256") for part in parts)
    )


def _is_stack(entry: Any) -> bool:
    if not _has_texts(entry, "key") or not _KEY.fullmatch(entry["key"]):
        return False
    asked, pins = entry.get("asked"), entry.get("pins")
    return (
        isinstance(asked, dict)
        and _has_texts(asked, *asked)
        and isinstance(pins, list)
        and all(_has_texts(pin, *_PIN_TEXTS) and set(pin) == {*_PIN_TEXTS, *_PIN_OTHERS} for pin in pins)
        and {pin["distribution"] for pin in pins} >= set(asked)
    )


def _has_texts(table: Any, *names: str) -> bool:
    return isinstance(table, dict) and all(isinstance(table.get(name), str) for name in names)


def unpack(bundle: Path, folder: Path) -> None:
    """Unpack into `folder`, an empty or a new one, and compile what was unpacked.

    Raises:
        BundleError: a part or a file is missing or has another hash, or a member is no plain file inside the folder.
    """
    manifest = read_manifest(bundle)
    python = "{}.{}".format(*sys.version_info[:2])
    if manifest["python"] != python:
        raise BundleError(f"{bundle} is for Python {manifest['python']}; this is {python}")
    folder.mkdir(parents=True, exist_ok=True)
    with _Parts(bundle, manifest["parts"]) as parts:
        try:
            with tarfile.open(fileobj=lzma.open(io.BufferedReader(parts, _CHUNK)), mode="r|") as archive:
                _extract(archive, folder)
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise BundleError(f"{bundle} is damaged: {error}") from error
        parts.check_rest()
    compileall.compile_dir(str(folder), quiet=2, workers=0)


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    expected: dict[str, str] | None = None
    for member in archive:
        _check_member(member)
        content = archive.extractfile(member)
        assert content is not None  # it is a plain file
        if expected is None:
            if member.name != FILES:
                raise BundleError(f"the archive begins with {member.name}, not with {FILES}")
            expected = json.loads(content.read())
            continue
        if _write(content, folder / member.name, executable=bool(member.mode & 0o100)) != expected.pop(member.name, ""):
            raise BundleError(f"{member.name} is not what {FILES} says")
    if expected is None or expected:
        raise BundleError(f"{next(iter(expected or [FILES]))} is missing in the archive")


def _check_member(member: tarfile.TarInfo) -> None:
    """Refuse everything but plain files below the folder."""
    path = PurePosixPath(member.name)
    if not member.isreg():
        raise BundleError(f"{member.name} is no plain file")
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        raise BundleError(f"{member.name} leads out of the folder")


def _write(content: Any, target: Path, *, executable: bool) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with target.open("xb") as file:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
    target.chmod(0o755 if executable else 0o644)
    return digest.hexdigest()


class _Parts(io.RawIOBase):
    """The parts of an archive as one stream; each is checked when its end is reached."""

    def __init__(self, bundle: Path, parts: list[dict[str, Any]]) -> None:
        self._bundle = bundle
        self._waiting = list(parts)
        self._open: BinaryIO | None = None
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._open is None:
                if not self._waiting:
                    return 0
                self._open, self._digest = self._next(), hashlib.sha256()
            chunk = self._open.read(len(buffer))
            if chunk:
                self._digest.update(chunk)
                buffer[: len(chunk)] = chunk
                return len(chunk)
            self._finish_part()

    def check_rest(self) -> None:
        """Read what the archive did not ask for, so that every part is checked."""
        buffer = bytearray(_CHUNK)
        while self.readinto(buffer):
            pass

    def _next(self) -> BinaryIO:
        name = str(self._waiting[0]["file"])
        if PurePosixPath(name).name != name or "\0" in name:
            raise BundleError(f"{name} leads out of the bundle")
        try:
            return (self._bundle / name).open("rb")
        except OSError as error:
            raise BundleError(f"part {name} cannot be read: {error.strerror}") from error

    def _finish_part(self) -> None:
        part = self._waiting.pop(0)
        assert self._open is not None
        self._open.close()
        self._open = None
        if self._digest.hexdigest() != part["sha256"]:
            raise BundleError(f"part {part['file']} has another hash than the manifest says")


def main(arguments: list[str]) -> int:
    """Unpack by hand; what was there before is only replaced when all is well."""
    if len(arguments) != 2:
        print("usage: unpack.py BUNDLE FOLDER", file=sys.stderr)  # noqa: T201
        return 2
    bundle, folder = Path(arguments[0]), Path(arguments[1]).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        unpack(bundle, beside)
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    except BundleError as error:
        print(f"unpack: {error}", file=sys.stderr)  # noqa: T201
        return 3
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
