"""Path pins: a source tree as it is now, dirty or without any metadata."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from stacks_support import Workshop, assert_short, git, run_in, write

from harness.stacks import StackError, trees

ALPHA = {"alpha/__init__.py": "value = 1\n", "alpha/part/__init__.py": "", "alpha/version/version": "1.2.dev\n"}


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path, monkeypatch)


def test_a_clean_checkout_and_a_dirty_one(workshop: Workshop) -> None:
    checkout = workshop.repository("alpha", {**ALPHA, "README": "x\n"})
    head = git(checkout, "rev-parse", "HEAD")
    write(checkout, {"README": "changed, and no part of the package\n"})
    clean = workshop.build(f"alpha=path:{checkout}")
    write(checkout, {"alpha/__init__.py": "value = 2\n"})
    dirty = workshop.build(f"alpha=path:{checkout}")
    assert (clean.pins[0].commit, clean.pins[0].dirty) == (head, False)
    assert clean.pins[0].version == f"1.2.dev0+g{head[:9]}"
    assert (dirty.pins[0].commit, dirty.pins[0].dirty) == (head, True)
    assert dirty.pins[0].version == f"1.2.dev0+g{head[:9]}.d{dirty.pins[0].tree_hash[:9]}"  # type: ignore[index]
    assert clean.key != dirty.key
    read = "import alpha; print(alpha.value)"
    assert (run_in(clean, read), run_in(dirty, read)) == (1, 2)
    direct = json.loads(next(dirty.overlay.glob("alpha-*.dist-info/direct_url.json")).read_text())
    assert direct["url"] == checkout.as_uri()
    assert direct["parity"] == {"commit": head, "dirty": True, "tree_hash": dirty.pins[0].tree_hash}


def test_an_untracked_file_makes_a_tree_dirty(workshop: Workshop) -> None:
    checkout = workshop.repository("alpha", ALPHA)
    write(checkout, {"alpha/new.py": ""})
    assert workshop.build(f"alpha=path:{checkout}").pins[0].dirty


@pytest.mark.parametrize("prefix", ["", "src/"])
def test_a_bare_tree_is_enough(workshop: Workshop, prefix: str) -> None:
    tree = workshop.tree("tree", {f"{prefix}alpha/__init__.py": "value = 4\n"})
    built = workshop.build(f"alpha=path:{tree}")
    (pin,) = built.pins
    assert (pin.kind, pin.version, pin.commit, pin.dirty) == ("path", "0+unknown", None, False)
    assert pin.tree_hash
    code = "import alpha, importlib.metadata as m, json; print(json.dumps([alpha.value, m.version('alpha')]))"
    assert run_in(built, code) == [4, "0+unknown"]


def test_equal_trees_share_an_overlay_and_an_edit_does_not(workshop: Workshop) -> None:
    one = workshop.build(f"alpha=path:{workshop.tree('one', ALPHA)}")
    two = workshop.build(f"alpha=path:{workshop.tree('two', {f'src/{name}': text for name, text in ALPHA.items()})}")
    write(workshop.folder / "one", {"alpha/part/__init__.py": "# edited\n"})
    three = workshop.build(f"alpha=path:{workshop.folder / 'one'}")
    assert one.key == two.key != three.key
    assert two.pins[0].requested.endswith("/two")


def test_a_bare_tree_inside_another_checkout_has_no_commit(workshop: Workshop) -> None:
    outer = workshop.repository("outer", {".gitignore": "vendor/\n"})
    write(outer / "vendor", ALPHA)
    assert workshop.build(f"alpha=path:{outer / 'vendor'}").pins[0].commit is None


def test_caches_are_left_out_and_links_followed(workshop: Workshop) -> None:
    tree = workshop.tree("tree", {**ALPHA, "alpha/__pycache__/x.pyc": "", "alpha/old.pyc": "", "data/table.txt": "x"})
    (tree / "alpha/table.txt").symlink_to(tree / "data/table.txt")
    (tree / "alpha/tables").symlink_to(tree / "data")
    (tree / "alpha/loop").symlink_to(tree / "alpha")
    (tree / "alpha/dangling").symlink_to(tree / "nowhere")
    os.mkfifo(tree / "alpha/pipe")
    overlay = workshop.build(f"alpha=path:{tree}").overlay / "alpha"
    found = sorted(str(path.relative_to(overlay)) for path in overlay.rglob("*") if path.is_file())
    assert found == ["__init__.py", "part/__init__.py", "table.txt", "tables/table.txt", "version/version"]
    assert not any(path.is_symlink() for path in overlay.rglob("*"))


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"pyproject.toml": '[project]\nversion = "3.0"\n', "alpha/__init__.py": "__version__ = '9'\n"}, "3.0"),
        ({"pyproject.toml": "[tool.setuptools.dynamic]\nversion = { file = 'VERSION' }\n", "VERSION": "3.1\n"}, "3.1"),
        (
            {
                "pyproject.toml": "[tool.setuptools.dynamic]\nversion = { attr = 'alpha.v.V' }\n",
                "alpha/v.py": "V='3.2'",
            },
            "3.2",
        ),
        ({"alpha/version/version": "0.8.0.dev\n"}, "0.8.0.dev0"),
        ({"alpha/package_info.py": "MAJOR = 0\nMINOR = 20\nPATCH = 0\nPRE_RELEASE = ''\n"}, "0.20.0"),
        ({"alpha/__init__.py": "__version__ = '1.0+cu13'\n"}, "1.0+cu13"),
        ({"alpha/__init__.py": "__version__ = compute()\n"}, "0+unknown"),
        ({"alpha/__init__.py": "not python", "pyproject.toml": "not toml"}, "0+unknown"),
    ],
)
def test_a_version_is_read_without_running_the_tree(workshop: Workshop, files: dict[str, str], version: str) -> None:
    tree = workshop.tree("tree", {"alpha/__init__.py": "raise SystemExit\n", **files})
    assert workshop.build(f"alpha=path:{tree}").pins[0].version == version


@pytest.mark.parametrize("files", [{"README": "x"}, {"alpha/README": "x"}, {"lib/alpha/__init__.py": ""}])
def test_a_path_without_the_package(workshop: Workshop, files: dict[str, str]) -> None:
    tree = workshop.tree("tree", files)
    with pytest.raises(StackError, match=r"stack 'one': alpha=path:.*no package alpha/ or src/alpha/") as caught:
        workshop.build(f"alpha=path:{tree}")
    assert caught.value.exit_code == 3
    assert_short(caught.value)
    assert not workshop.cache.exists()


def test_a_path_that_is_not_there(workshop: Workshop) -> None:
    with pytest.raises(StackError, match="there is no folder"):
        workshop.build(f"alpha=path:{workshop.folder / 'gone'}")


def test_a_tree_that_changes_while_it_is_copied_is_refused(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = workshop.tree("tree", ALPHA)
    copy = trees.FolderTree.copy

    def edit_then_copy(self: trees.FolderTree, prefix: str, folders: tuple[str, ...], destination: Path) -> None:
        write(tree, {"alpha/__init__.py": "value = 8\n"})
        copy(self, prefix, folders, destination)

    monkeypatch.setattr(trees.FolderTree, "copy", edit_then_copy)
    with pytest.raises(StackError, match="changed while it was copied"):
        workshop.build(f"alpha=path:{tree}")
    assert workshop.left_over() == []


def test_a_path_pin_needs_no_git(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = workshop.tree("tree", ALPHA)
    monkeypatch.setenv("PATH", str(workshop.folder))
    assert workshop.build(f"alpha=path:{tree}").pins[0].commit is None
    with pytest.raises(StackError, match="git is not installed"):
        workshop.build(f"alpha=git:{tree}@v0")
