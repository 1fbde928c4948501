"""GPU code inside shared libraries: a library for many architectures is mostly code that one host never loads."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

_CONTAINER = struct.Struct("<IHHQ")
"""Magic number, version, size of this header, size of the entries that follow."""
_ENTRY = struct.Struct("<HHIQIIHHI")
"""Kind, -, size of this header, size of the code, -, -, -, -, architecture."""
_MAGIC = struct.pack("<I", 0xBA55ED50)
_VERSION = 1
_MACHINE_CODE = 2


def keep_only(library: Path, architecture: int) -> int:
    """Blank all GPU code in `library` but the machine code of one architecture (90: sm_90); return the bytes blanked.

    The file keeps its size and its headers: the driver never looks at code of another architecture where it finds its
    own. Containers without machine code of that architecture are left alone. What is blank packs to nothing.
    """
    if not library.stat().st_size:
        return 0
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        blanked = 0
        for entries in _containers(data):
            if not any(kind == _MACHINE_CODE and arch == architecture for kind, arch, _, _ in entries):
                continue
            for kind, arch, start, size in entries:
                if (kind, arch) != (_MACHINE_CODE, architecture):
                    data[start : start + size] = bytes(size)
                    blanked += size
        return blanked


def _containers(data: mmap.mmap) -> Iterator[list[tuple[int, int, int, int]]]:
    """The entries of every container: kind, architecture, start and size of the code."""
    at = data.find(_MAGIC)
    while at >= 0:
        entries = _entries(data, at)
        if entries is not None:
            yield entries
        at = data.find(_MAGIC, at + 4)


def _entries(data: mmap.mmap, at: int) -> list[tuple[int, int, int, int]] | None:
    """The entries of the container at `at`; None where the magic number stands for something else."""
    if at + _CONTAINER.size > len(data):
        return None
    _, version, header, size = _CONTAINER.unpack_from(data, at)
    end = at + header + size
    if version != _VERSION or header != _CONTAINER.size or end > len(data):
        return None
    found = []
    position = at + header
    while position + _ENTRY.size <= end:
        kind, _, entry_header, code, _, _, _, _, architecture = _ENTRY.unpack_from(data, position)
        if entry_header < _ENTRY.size or position + entry_header + code > end:
            return None
        found.append((kind, architecture, position + entry_header, code))
        position += entry_header + code
    return found
