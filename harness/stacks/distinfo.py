"""The metadata of a distribution whose packages were taken from a tree instead of a wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import shutil
from pathlib import Path

from harness.stacks.errors import StackError
from harness.stacks.pins import BuiltPin
from harness.stacks.trees import source_files

INSTALLER = "parity"


def write(site: Path, built: BuiltPin, folders: tuple[str, ...], url: str) -> None:
    """Write a .dist-info folder into `site` for the packages that lie there already.

    direct_url.json follows PEP 610, with one more table, `parity`, that holds commit, dirty flag and tree hash.
    """
    name = built.distribution.replace("-", "_")
    info = site / f"{name}-{built.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {built.distribution}\nVersion: {built.version}\n")
    (info / "INSTALLER").write_text(f"{INSTALLER}\n")
    (info / "top_level.txt").write_text("".join(f"{top}\n" for top in sorted({f.split("/")[0] for f in folders})))
    (info / "direct_url.json").write_text(json.dumps(_direct_url(built, url), indent=1, sort_keys=True) + "\n")
    (info / "RECORD").write_text(_record(site, info, folders), encoding="utf-8")


def drop_from_record(info: Path, dropped: frozenset[str]) -> None:
    """Take the files below the top-level folders `dropped` out of a RECORD, after those folders were removed."""
    record = info / "RECORD"
    if not record.is_file():
        return
    rows = list(csv.reader(io.StringIO(record.read_text(encoding="utf-8"))))
    kept = [row for row in rows if row and _top(row[0]) not in dropped]
    if len(kept) != len(rows):
        # The file may be a hard link into uv's cache: replace it, never write into it.
        record.unlink()
        record.write_text(_csv(kept), encoding="utf-8")


def copy(distribution: str, site: Path, target: Path) -> None:
    """Copy what a distribution's RECORD lists from one folder of distributions into another.

    Raises:
        StackError: the folder does not hold it, it lists a path outside, or the other folder has a file of it already.
    """
    found = next(iter(importlib.metadata.distributions(name=distribution, path=[str(site)])), None)
    if found is None:
        raise StackError(f"{site} holds no distribution {distribution}")
    for file in found.files or ():
        if file.is_absolute() or ".." in file.parts:
            raise StackError(f"{distribution} lists {file}, which leads out of the folder")
        if (target / file).exists():
            raise StackError(f"{distribution} and another distribution both hold {file}")
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(site / file, target / file)


def _top(path: str) -> str:
    return next((part for part in path.split("/") if part != ".."), "")


def _direct_url(built: BuiltPin, url: str) -> dict[str, object]:
    ours = {"commit": built.commit, "dirty": built.dirty, "tree_hash": built.tree_hash}
    if built.kind == "git":
        return {"url": url, "vcs_info": {"vcs": "git", "commit_id": built.commit}, "parity": ours}
    return {"url": url, "dir_info": {"editable": False}, "parity": ours}


def _record(site: Path, info: Path, folders: tuple[str, ...]) -> str:
    packaged = [site / folder / file for folder in folders for file in source_files(site / folder)]
    rows = []
    for file in [*packaged, *sorted(info.iterdir())]:
        content = file.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append([file.relative_to(site).as_posix(), f"sha256={digest}", str(len(content))])
    rows.append([(info / "RECORD").relative_to(site).as_posix(), "", ""])
    return _csv(rows)


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
