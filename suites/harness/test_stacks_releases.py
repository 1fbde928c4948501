"""Release pins, from a folder of small wheels; and what is said when uv fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from stacks_support import Workshop, assert_short, run_in

from harness.stacks import StackError, uv

ALPHA = {
    "alpha/__init__.py": "value = 1\n",
    "tests/__init__.py": "",
    "tests/test_alpha.py": "",
    "scripts/__init__.py": "",
    "alpha/tests/__init__.py": "",
}


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path, monkeypatch)
    for version in ("1.0", "1.4", "2.0"):
        workshop.wheel("alpha", version, ALPHA)
    return workshop


def fake_uv(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let uv be a shell script."""
    fake = workshop.folder / "uv"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(uv, "executable", lambda: str(fake))


def test_a_release_is_installed_without_what_would_shadow(workshop: Workshop) -> None:
    built = workshop.build("alpha==1.4")
    assert sorted(path.name for path in built.overlay.iterdir()) == [
        "alpha",
        "alpha-1.4.dist-info",
        "parity-overlay.json",
    ]
    code = (
        "import alpha, json, importlib.metadata as m; d = m.distribution('alpha')\n"
        "print(json.dumps([alpha.value, d.version, sorted(f.parts[0] for f in d.files)]))"
    )
    value, version, tops = run_in(built, code)
    assert (value, version, set(tops)) == (1, "1.4", {"alpha", "alpha-1.4.dist-info"})
    assert (built.overlay / "alpha/tests/__init__.py").is_file()


def test_releases_and_trees_share_an_overlay(workshop: Workshop) -> None:
    tree = workshop.tree("beta", {"beta/__init__.py": "import alpha\n"})
    built = workshop.build("alpha==2.0", f"beta=path:{tree}")
    assert [(pin.distribution, pin.kind) for pin in built.pins] == [("alpha", "release"), ("beta", "path")]
    assert run_in(built, "import beta; print(beta.alpha.value)") == 1


def test_a_release_that_does_not_exist_names_its_neighbours(workshop: Workshop) -> None:
    with pytest.raises(StackError) as caught:
        workshop.build("alpha==1.2")
    message = assert_short(caught.value)
    assert caught.value.exit_code == 3
    assert "stack 'one': alpha==1.2 does not exist" in message
    assert "Nearest: 1.0, 1.4; try --pin alpha==1.0" in message
    assert workshop.left_over() == []


def test_a_distribution_that_does_not_exist(workshop: Workshop) -> None:
    with pytest.raises(StackError, match="the package index has no distribution 'alhpa'") as caught:
        workshop.build("alhpa==1.0")
    assert_short(caught.value)


def test_an_index_that_cannot_be_reached(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (workshop.root / "uv.toml").unlink()
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(StackError, match=r"stack 'one'.*alpha.*the package index cannot be reached") as caught:
        workshop.build("alpha==1.0")
    assert "127.0.0.1" not in assert_short(caught.value)
    assert "127.0.0.1" not in " ".join(workshop.progress)
    assert workshop.left_over() == []


def test_offline_without_the_package(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (workshop.root / "uv.toml").unlink()
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(StackError, match=r"cannot install alpha==1.0: .*the network is off"):
        workshop.build("alpha==1.0")


def test_uv_finds_the_disk_full(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "error: Failed to install: alpha\\n  cause: failed to copy: No space left on device (os error 28)"
    fake_uv(workshop, monkeypatch, f"printf '{said}' >&2; exit 2")
    with pytest.raises(StackError, match="no space left on device") as caught:
        workshop.build("alpha==1.0")
    assert "PARITY_CACHE" in assert_short(caught.value)
    assert workshop.left_over() == []


def test_a_copy_finds_the_disk_full(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = workshop.tree("beta", {"beta/__init__.py": ""})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "beta")

    monkeypatch.setattr("shutil.copy", full)
    with pytest.raises(StackError, match="no space left on device") as caught:
        workshop.build(f"beta=path:{tree}")
    assert caught.value.exit_code == 3
    assert_short(caught.value)
    assert workshop.left_over() == []


def test_a_cache_that_cannot_be_written(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    (workshop.folder / "file").write_text("")
    monkeypatch.setenv("PARITY_CACHE", str(workshop.folder / "file"))
    with pytest.raises(StackError, match="cannot build") as caught:
        workshop.build("alpha==1.0")
    assert "PARITY_CACHE" in assert_short(caught.value)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("error: Failed to fetch: `https://index.invalid/simple/`\n  cause: dns error", "cannot be reached"),
        (
            "error: Failed to fetch: `https://index.invalid/x`\n  cause: HTTP status client error (403 Forbidden)",
            "answered 403 Forbidden",
        ),
        ("error: Broken wheel at https://ann:pw@index.invalid/a.whl\n", "Broken wheel at <address>"),
        ("", "uv gave no reason"),
    ],
)
def test_reasons_hold_no_address(said: str, reason: str) -> None:
    failed = uv.UvError(said)
    assert reason in failed.reason
    assert "index.invalid" not in failed.reason and "ann:pw" not in failed.reason


def test_without_uv_the_command_to_get_it(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> str:
        raise FileNotFoundError

    monkeypatch.setattr("uv.find_uv_bin", absent)
    monkeypatch.setenv("PATH", str(workshop.folder))
    with pytest.raises(StackError, match="pip install uv"):
        workshop.build("alpha==1.0")
