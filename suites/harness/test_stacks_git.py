"""Git pins: from a revision to packages with metadata, without a build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stacks_support import Workshop, assert_short, commit, git, run_in

from harness.stacks import StackError

ALPHA = {
    "pyproject.toml": '[project]\nname = "alpha"\nversion = "1.2"\n',
    "src/alpha/__init__.py": "value = 1\n",
    "src/alpha/data/table.json": "{}\n",
    "tests/__init__.py": "",
}
CORE = {
    "megatron/core/__init__.py": "",
    "megatron/core/package_info.py": "MAJOR = 0\nMINOR = 18\nPATCH = 2\nPRE_RELEASE = 'rc1'\n",
    "megatron/training/__init__.py": "",
    "megatron/legacy/__init__.py": "",
    "megatron/__init__.py": "raise ImportError\n",
    "pyproject.toml": "[tool.setuptools.dynamic]\nversion = { attr = 'megatron.core.package_info.__version__' }\n",
}
BRIDGE = {"src/megatron/bridge/__init__.py": "", "src/megatron/bridge/package_info.py": "__version__ = '0.5.1'\n"}
PACKAGES = """
[tool.parity.distributions.megatron-core]
packages = ["megatron/core", "megatron/training", "megatron/gone"]
[tool.parity.distributions.megatron-bridge]
packages = ["megatron/bridge"]
"""


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path, monkeypatch)


def test_a_revision_becomes_an_importable_distribution(workshop: Workshop) -> None:
    repository = workshop.repository("alpha", ALPHA, {"src/alpha/__init__.py": "value = 2\n"})
    old = git(repository, "rev-parse", "v0")
    built = workshop.build(f"alpha=git:{repository}@v1^")
    (pin,) = built.pins
    assert (pin.kind, pin.version, pin.commit, pin.dirty) == ("git", f"1.2+g{old[:9]}", old, False)
    assert pin.requested == f"alpha=git:{repository}@v1^"
    code = (
        "import alpha, json; from importlib.metadata import distribution\n"
        "alpha_ = distribution('alpha'); direct = json.loads(alpha_.read_text('direct_url.json'))\n"
        "files = {str(file): file.hash is not None for file in alpha_.files}\n"
        "print(json.dumps([alpha.value, alpha_.version, direct, alpha_.read_text('INSTALLER').strip(), files]))"
    )
    value, version, direct, installer, files = run_in(built, code)
    assert (value, version, installer) == (1, pin.version, "parity")
    assert direct["url"] == repository.as_uri()
    assert direct["vcs_info"] == {"vcs": "git", "commit_id": old}
    assert direct["parity"] == {"commit": old, "dirty": False, "tree_hash": pin.tree_hash}
    assert files["alpha/data/table.json"] and files["alpha/__init__.py"]
    assert sorted(path.name for path in built.overlay.iterdir() if path.is_dir()) == [
        "alpha",
        f"alpha-{pin.version}.dist-info",
    ]


def test_megatron_stays_a_namespace_package(workshop: Workshop) -> None:
    workshop.project('[tool.parity]\nbase = "current"\n[tool.parity.stacks.one]\n' + PACKAGES)
    core = workshop.repository("core", CORE)
    bridge = workshop.repository("bridge", BRIDGE)
    built = workshop.build(f"megatron-core=git:{core}@main", f"megatron-bridge=git:{bridge}@main")
    assert sorted(path.name for path in (built.overlay / "megatron").iterdir()) == ["bridge", "core", "training"]
    assert [pin.version.split("+")[0] for pin in built.pins] == ["0.5.1", "0.18.2rc1"]
    code = "import megatron, megatron.core, megatron.bridge, json; print(json.dumps(megatron.__file__))"
    assert run_in(built, code) is None


def test_the_same_commit_is_built_once_whatever_its_name(workshop: Workshop) -> None:
    repository = workshop.repository("alpha", ALPHA)
    first = workshop.build(f"alpha=git:{repository}@v0")
    second = workshop.build(f"alpha=git:{repository}@main")
    assert (first.overlay, first.key) == (second.overlay, second.key)
    assert [line for line in workshop.progress if "building overlay" in line] == workshop.progress


def test_the_clone_is_left_alone(workshop: Workshop) -> None:
    repository = workshop.repository("alpha", ALPHA, {"src/alpha/__init__.py": "value = 2\n"})
    (repository / "src/alpha/__init__.py").write_text("value = 3\n")
    built = workshop.build(f"alpha=git:{repository}@v0")
    assert run_in(built, "import alpha; print(alpha.value)") == 1
    assert git(repository, "status", "--porcelain") == "M src/alpha/__init__.py"
    assert git(repository, "rev-parse", "--abbrev-ref", "HEAD") == "main"


@pytest.mark.parametrize("revision", ["v9", "0123456789", "HEAD~99", "v0:src"])
def test_a_revision_that_does_not_exist(workshop: Workshop, revision: str) -> None:
    repository = workshop.repository("alpha", ALPHA)
    with pytest.raises(StackError) as caught:
        workshop.build(f"alpha=git:{repository}@{revision}")
    message = assert_short(caught.value)
    if ":" not in revision:
        assert caught.value.exit_code == 3
        assert "stack 'one': alpha=git:" in message and f"no revision '{revision}'" in message
    assert not workshop.cache.exists()


def test_a_clone_that_is_no_repository(workshop: Workshop) -> None:
    tree = workshop.tree("plain", ALPHA)
    with pytest.raises(StackError, match="is not a git repository") as caught:
        workshop.build(f"alpha=git:{tree}@v0")
    assert f"alpha=path:{tree}" in assert_short(caught.value)
    with pytest.raises(StackError, match="there is no folder"):
        workshop.build(f"alpha=git:{tree}-gone@v0")


def test_a_folder_inside_a_repository_is_no_clone(workshop: Workshop) -> None:
    repository = workshop.repository("alpha", ALPHA)
    with pytest.raises(StackError, match="is not a git repository"):
        workshop.build(f"alpha=git:{repository}/src@v0")


def test_a_revision_without_the_package(workshop: Workshop) -> None:
    repository = workshop.repository("other", {"README": "nothing here\n"})
    with pytest.raises(StackError, match=r"no package alpha/ or src/alpha/ in revision") as caught:
        workshop.build(f"alpha=git:{repository}@v0")
    assert caught.value.exit_code == 3
    assert_short(caught.value)


def test_a_git_hook_does_not_redirect_to_its_repository(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = workshop.repository("alpha", ALPHA)
    outer = workshop.repository("outer", {"README": "x\n"})
    monkeypatch.setenv("GIT_DIR", str(outer / ".git"))
    assert workshop.build(f"alpha=git:{repository}@v0").pins[0].version.startswith("1.2+g")


def test_a_bare_clone_stands_in_for_a_url(workshop: Workshop) -> None:
    repository = workshop.repository("alpha", ALPHA)
    git(workshop.folder, "clone", "--quiet", "--bare", str(repository), "bare")
    workshop.project(
        '[tool.parity]\nbase = "current"\n[tool.parity.clones]\nalpha = "../bare"\n[tool.parity.stacks.one.pins]\n'
        'alpha = { git = "https://ann:secret@nowhere.invalid/alpha.git", rev = "v0" }\n'
    )
    built = workshop.build()
    direct = json.loads(next(built.overlay.glob("alpha-*.dist-info/direct_url.json")).read_text())
    assert direct["url"] == "https://nowhere.invalid/alpha.git"
    assert not (workshop.cache / "git").exists()


def test_a_url_is_cloned_once_and_a_branch_followed(workshop: Workshop) -> None:
    repository = workshop.repository("alpha", ALPHA)
    url = repository.as_uri()
    first = workshop.build(f"alpha=git:{url}@main")
    moved = commit(repository, {"src/alpha/__init__.py": "value = 5\n"})
    assert workshop.build(f"alpha=git:{url}@main").pins[0].commit == moved
    assert workshop.build(f"alpha=git:{url}@{moved[:10]}~1").pins == (
        type(first.pins[0])(**{**vars(first.pins[0]), "requested": f"alpha=git:{url}@{moved[:10]}~1"}),
    )
    assert sum("cloning" in line for line in workshop.progress) == 1
    repository.rename(workshop.folder / "away")
    assert workshop.build(f"alpha=git:{url}@main").pins[0].commit == moved
    assert "using the copy in the cache" in " ".join(workshop.progress)


def test_a_pull_request_is_fetched_by_its_reference(workshop: Workshop) -> None:
    repository = workshop.repository("alpha", ALPHA)
    git(repository, "checkout", "--quiet", "-b", "topic")
    head = commit(repository, {"src/alpha/__init__.py": "value = 7\n"})
    git(repository, "update-ref", "refs/pull/7/head", head)
    git(repository, "checkout", "--quiet", "main")
    git(repository, "branch", "-D", "topic")
    assert workshop.build(f"alpha=git:{repository.as_uri()}@refs/pull/7/head").pins[0].commit == head


def test_a_url_that_cannot_be_cloned_leaves_nothing(workshop: Workshop) -> None:
    with pytest.raises(StackError, match="cannot clone it") as caught:
        workshop.build(f"alpha=git:{(workshop.folder / 'gone').as_uri()}@v0")
    assert "--clone alpha=PATH" in assert_short(caught.value)
    assert workshop.left_over() == []


def test_two_pins_that_hold_one_folder(workshop: Workshop) -> None:
    repository = workshop.repository("alpha", ALPHA)
    workshop.project(
        '[tool.parity]\nbase = "current"\n[tool.parity.stacks.one]\n'
        '[tool.parity.distributions.beta]\npackages = ["alpha"]\n'
    )
    with pytest.raises(StackError, match="both hold the folder alpha"):
        workshop.build(f"alpha=git:{repository}@v0", f"beta=git:{repository}@v0")
    assert workshop.left_over() == []
