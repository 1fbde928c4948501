"""Bundles: written, used without a network, and refused when damaged or hostile."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import struct
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toy_project import Project

from harness.stacks import bundle as bundles
from harness.stacks import distinfo, fatbin, unpack
from harness.stacks.errors import StackError, StackUsageError

PYTHON = "{}.{}".format(*sys.version_info[:2])


def packed(folder: Path, members: Mapping[str, bytes], listed: Mapping[str, str] | None = None, **odd: Any) -> Path:
    """A bundle of these files in two parts; `odd` are attributes of members, `listed` what the list of files says."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in {unpack.FILES: json.dumps(listed or hashes).encode(), **members}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for attribute, value in odd.items() if name != unpack.FILES else ():
                setattr(member, attribute, value)
            archive.addfile(member, io.BytesIO(content))
    folder.mkdir()
    whole = lzma.compress(stream.getvalue())
    parts = []
    for number, content in enumerate((whole[:40], whole[40:])):
        (folder / f"bundle.{number}").write_bytes(content)
        parts.append({"file": f"bundle.{number}", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)})
    manifest = {"format": unpack.FORMAT, "python": PYTHON, "stacks": {}, "site": [], "parts": parts}
    (folder / unpack.MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    members = {"site/a/__init__.py": b"x = 1\n", "overlays/k/empty": b""}
    unpack.unpack(packed(tmp_path / "b", members), tmp_path / "out")
    assert (tmp_path / "out" / "site" / "a" / "__init__.py").read_bytes() == b"x = 1\n"
    assert (tmp_path / "out" / "overlays" / "k" / "empty").read_bytes() == b""
    assert list((tmp_path / "out" / "site" / "a" / "__pycache__").glob("*.pyc"))


@pytest.mark.parametrize("name", ["../out.py", "site/../../out.py", "/etc/out.py", "site\\..\\out.py"])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(unpack.BundleError, match="leads out of the folder"):
        unpack.unpack(packed(tmp_path / "b", {name: b"x"}), tmp_path / "in" / "out")
    assert not list(tmp_path.rglob("out.py"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    hostile = packed(tmp_path / "b", {"site/link": b""}, type=kind, linkname="/etc/passwd")
    with pytest.raises(unpack.BundleError, match="is no plain file"):
        unpack.unpack(hostile, tmp_path / "out")


def test_a_part_with_another_hash_is_refused(tmp_path: Path) -> None:
    folder = packed(tmp_path / "b", {"site/a.py": b"x"})
    part = folder / "bundle.1"
    part.write_bytes(part.read_bytes() + b"!")
    with pytest.raises(unpack.BundleError, match=r"bundle\.1 has another hash"):
        unpack.unpack(folder, tmp_path / "out")


def test_a_part_that_is_missing_or_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = packed(tmp_path / "b", {"site/a.py": b"x"})
    (folder / "bundle.1").unlink()
    with pytest.raises(unpack.BundleError, match=r"bundle\.1 cannot be read"):
        unpack.unpack(folder, tmp_path / "out")
    manifest = json.loads((folder / unpack.MANIFEST).read_text())
    manifest["parts"][1]["file"] = "../bundle.1"
    (folder / unpack.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(unpack.BundleError, match="leads out of the bundle"):
        unpack.unpack(folder, tmp_path / "out2")


@pytest.mark.parametrize(
    ("listed", "told"),
    [({"site/a.py": "0" * 64}, "a.py is not what"), ({"site/b.py": "0" * 64}, "a.py is not what")],
)
def test_files_other_than_listed_are_refused(tmp_path: Path, listed: dict[str, str], told: str) -> None:
    with pytest.raises(unpack.BundleError, match=told):
        unpack.unpack(packed(tmp_path / "b", {"site/a.py": b"x"}, listed), tmp_path / "out")


def test_a_file_that_is_listed_and_not_there_is_told(tmp_path: Path) -> None:
    listed = {"site/a.py": hashlib.sha256(b"x").hexdigest(), "site/b.py": "0" * 64}
    with pytest.raises(unpack.BundleError, match=r"site/b\.py is missing"):
        unpack.unpack(packed(tmp_path / "b", {"site/a.py": b"x"}, listed), tmp_path / "out")


def test_another_format_or_python_is_told(tmp_path: Path) -> None:
    folder = packed(tmp_path / "b", {"site/a.py": b"x"})
    manifest = json.loads((folder / unpack.MANIFEST).read_text())
    (folder / unpack.MANIFEST).write_text(json.dumps(manifest | {"python": "3.9"}))
    with pytest.raises(unpack.BundleError, match=r"is for Python 3\.9; this is"):
        unpack.unpack(folder, tmp_path / "out")
    (folder / unpack.MANIFEST).write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(unpack.BundleError, match="another format"):
        unpack.unpack(folder, tmp_path / "out")
    with pytest.raises(unpack.BundleError, match="is no bundle"):
        unpack.unpack(tmp_path, tmp_path / "out")


ENTRY = {
    "key": "0a",
    "asked": {"toy": "toy==1"},
    "pins": [
        {
            "distribution": "toy",
            "kind": "release",
            "version": "1",
            "requested": "toy==1",
            "commit": None,
            "dirty": False,
            "tree_hash": None,
        }
    ],
}


@pytest.mark.parametrize(
    "damage",
    [
        {"python": None},
        {"stacks": None},
        {"stacks": [1]},
        {"stacks": {"s": "x"}},
        {"stacks": {"s": ENTRY | {"key": 7}}},
        {"stacks": {"s": ENTRY | {"key": "../../site"}}},
        {"stacks": {"s": ENTRY | {"key": "/etc"}}},
        {"stacks": {"s": ENTRY | {"asked": ["toy"]}}},
        {"stacks": {"s": ENTRY | {"asked": {"toy": 1}}}},
        {"stacks": {"s": ENTRY | {"pins": []}}},
        {"stacks": {"s": ENTRY | {"pins": ["x"]}}},
        {"stacks": {"s": ENTRY | {"pins": [{"distribution": "toy"}]}}},
        {"parts": "x"},
        {"parts": [{}]},
        {"parts": [{"file": "bundle.0"}]},
    ],
)
def test_a_damaged_manifest_is_told_before_it_is_used(tmp_path: Path, damage: dict[str, Any]) -> None:
    folder = packed(tmp_path / "b", {"site/a.py": b"x"})
    manifest = json.loads((folder / unpack.MANIFEST).read_text()) | {"stacks": {"s": ENTRY}}
    (folder / unpack.MANIFEST).write_text(json.dumps(manifest))
    assert unpack.read_manifest(folder) == manifest
    (folder / unpack.MANIFEST).write_text(json.dumps(manifest | damage))
    with pytest.raises(unpack.BundleError, match=r"bundle\.json is damaged; make the bundle again"):
        unpack.unpack(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_by_hand_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    script = Path(unpack.__file__)
    folder, target = packed(tmp_path / "b", {"site/a.py": b"x"}), tmp_path / "out"
    done = subprocess.run([sys.executable, "-S", script, folder, target], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (target / "site" / "a.py").read_bytes() == b"x"
    (folder / "bundle.1").write_bytes(b"")
    done = subprocess.run([sys.executable, "-S", script, folder, target], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("unpack: ")
    assert (target / "site" / "a.py").read_bytes() == b"x"
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".out")] == []


@pytest.mark.parametrize(("text", "size"), [("58M", 58_000_000), ("2G", 2 * 10**9), ("10k", 10_000), ("7", 7)])
def test_sizes(text: str, size: int) -> None:
    assert bundles.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0M", "many", "-1"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(StackUsageError, match="is no size"):
        bundles.parse_size(text)


def test_what_the_other_host_has_is_named_whatever_its_version(tmp_path: Path) -> None:
    file = tmp_path / "have.txt"
    file.write_text("# an image\nTorch==2.11.0\nml_dtypes\nray[default]>=2\n")
    assert bundles.names_in(file) == {"torch", "ml-dtypes", "ray"}
    file.write_text("not a requirement\n")
    with pytest.raises(StackUsageError, match="--have"):
        bundles.names_in(file)


def test_the_command_writes_a_bundle_that_the_command_uses(project: Project) -> None:
    """Everything is on the other host already, so that nothing but the overlays travels."""
    names = bundles.pinned_base().keys() | bundles._own_closure()
    everything = project.write("have.txt", "\n".join(sorted(names)))
    made = project.parity("bundle", "toy-1", "toy-2", "-o", "packed", "--have", str(everything), "--max-part", "1K")
    assert made.returncode == 0, made.stderr
    assert "bundle.tar.xz.01" in made.stdout
    used = project.parity("compare", "probes.py::config", "--bundle", "packed", "--base", "current")
    assert used.returncode == 0, used.stdout + used.stderr
    assert used.stdout.startswith("config: identical")
    assert "unpacked and verified" in used.stderr
    other = project.parity("compare", "probes.py::config", "--bundle", "packed", "--new-pin", "toy==9")
    assert other.returncode == 2
    assert "holds toy=path:trees/1, toy=path:trees/2, and toy-2 needs toy==9; `parity bundle` makes" in other.stderr
    again = project.parity("bundle", "toy-1", "-o", "packed", "--have", str(everything))
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


def test_a_bundle_that_cannot_be_made_leaves_nothing(project: Project) -> None:
    before = {*project.folder.iterdir()}
    wheel = str(project.write("no.whl", "no wheel"))
    everything = str(project.write("have.txt", "\n".join(bundles.pinned_base().keys() | bundles._own_closure())))
    made = project.parity("bundle", "toy-1", "-o", "packed", "--have", everything, "--wheel", wheel)
    assert (made.returncode, "cannot install" in made.stderr) == (3, True), made.stderr
    assert {path.name for path in {*project.folder.iterdir()} - before} <= {"no.whl", "have.txt", "cache"}


TWO_PINS = """
[tool.parity]
old = "toy-1"
new = "toy-2"
base = "current"

[tool.parity.stacks.toy-1.pins]
part = { path = "parts/1" }
toy = { path = "trees/1" }

[tool.parity.stacks.toy-2.pins]
part = { path = "parts/2" }
toy = { path = "trees/2" }
"""


def test_explain_puts_pins_of_a_bundle_together(project: Project) -> None:
    project.write("pyproject.toml", TWO_PINS)
    for side in (1, 2):
        project.write(f"parts/{side}/part/__init__.py", f"VALUE = {side}\n")
    project.edit(2, "size: int = 1", "size: int = 5")
    project.edit(2, "Config(size)", "Config(5)")
    everything = project.write("have.txt", "\n".join(sorted(bundles.pinned_base().keys() | bundles._own_closure())))
    made = project.parity("bundle", "toy-1", "toy-2", "-o", "packed", "--have", str(everything))
    assert made.returncode == 0, made.stderr
    # What the bundle was made of is not needed.
    for folder in ("parts", "trees"):
        (project.folder / folder).rename(project.folder / f"no-{folder}")
    done = project.parity("explain", "probes.py::config", "--bundle", "packed", "--no-bisect")
    assert done.returncode == 0, done.stderr
    assert "comes with toy=path:" in done.stdout
    assert "; part plays no part (put back" in done.stdout
    assert "putting its overlay together" in done.stderr


@pytest.mark.parametrize("path", ["../outside.py", "{folder}/outside.py"])
def test_a_distribution_that_lists_a_path_outside_is_refused(tmp_path: Path, path: str) -> None:
    info = tmp_path / "site" / "toy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "RECORD").write_text(f"{path.format(folder=tmp_path)},,\n")
    (tmp_path / "outside.py").touch()
    with pytest.raises(StackError, match="leads out of the folder"):
        distinfo.copy("toy", tmp_path / "site", tmp_path / "target")


def test_two_distributions_with_one_file_are_not_mixed(tmp_path: Path) -> None:
    info = tmp_path / "site" / "toy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "RECORD").write_text("toy.py,,\n")
    (tmp_path / "site" / "toy.py").touch()
    distinfo.copy("toy", tmp_path / "site", tmp_path / "target")
    assert (tmp_path / "target" / "toy.py").is_file()
    with pytest.raises(StackError, match=r"both hold toy\.py"):
        distinfo.copy("toy", tmp_path / "site", tmp_path / "target")
    with pytest.raises(StackError, match="holds no distribution part"):
        distinfo.copy("part", tmp_path / "site", tmp_path / "target")


def library(*entries: tuple[int, int, bytes]) -> bytes:
    """A file with one container of GPU code: kind (1: text, 2: machine code), architecture, code."""
    inside = b"".join(
        struct.pack("<HHIQIIHHI", kind, 0, 64, len(code), 0, 0, 0, 0, arch).ljust(64, b"\1") + code
        for kind, arch, code in entries
    )
    return b"\x7fELF" + b"." * 60 + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside + b"end"


def test_code_for_other_architectures_is_blanked(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    whole = library((1, 90, b"text"), (2, 80, b"8" * 32), (2, 90, b"9" * 32), (2, 120, b"b" * 8))
    file.write_bytes(whole)
    assert fatbin.keep_only(file, 90) == 4 + 32 + 8
    left = file.read_bytes()
    assert len(left) == len(whole)
    assert b"9" * 32 in left
    assert not any(code in left for code in (b"text", b"8888", b"bbbb"))
    assert left.startswith(b"\x7fELF") and left.endswith(b"end")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no library",
        library((2, 80, b"8" * 32), (1, 80, b"text")),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 40) + b"x" * 64,
        struct.pack("<IHHQ", 0xBA55ED50, 7, 16, 8) + b"x" * 64,
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + b"\xff" * 64,
    ],
)
def test_other_files_stay_as_they_are(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(content)
    assert fatbin.keep_only(file, 90) == 0
    assert file.read_bytes() == content
