"""How pins are written, on the command line and in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from stacks_support import Workshop, assert_short

from harness.stacks import GitPin, PathPin, ReleasePin, StackUsageError, parse_override


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("verl==0.8.0", ReleasePin("verl", "0.8.0")),
        ("Megatron_Bridge == 0.6.2", ReleasePin("megatron-bridge", "0.6.2")),
        ("verl==0.8.0.DEV0", ReleasePin("verl", "0.8.0.dev0")),
        ("verl=path:/src/verl", PathPin("verl", Path("/src/verl"))),
        ("verl=git:/src/verl@bc3f3bf0e^", GitPin("verl", "/src/verl", "bc3f3bf0e^")),
        ("verl=git:https://example.org/verl.git@v1", GitPin("verl", "https://example.org/verl.git", "v1")),
        ("verl=git:git@example.org:a/verl.git@v1", GitPin("verl", "git@example.org:a/verl.git", "v1")),
        ("verl=git:ssh://git@example.org/verl@a/b", GitPin("verl", "ssh://git@example.org/verl", "a/b")),
    ],
)
def test_an_override_is_parsed_and_written_back(text: str, pin: ReleasePin | GitPin | PathPin) -> None:
    assert parse_override(text) == pin
    assert parse_override(pin.requested) == pin


def test_relative_folders_start_at_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_override("verl=path:../verl") == PathPin("verl", tmp_path.parent / "verl")
    assert parse_override("verl=git:clone@v1") == GitPin("verl", str(tmp_path / "clone"), "v1")
    assert parse_override("verl=path:tree", relative_to=Path("/src")) == PathPin("verl", Path("/src/tree"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "verl",
        "verl=",
        "verl==",
        "==0.8.0",
        "verl=0.8.0",
        "verl===0.8.0",
        "verl==0.8.*",
        "verl>=0.8.0",
        "verl==not-a-version",
        "ve rl==0.8.0",
        "verl=path:",
        "verl=svn:/src@1",
        "verl=git:/src/verl",
        "verl=git:/src/verl@",
        "verl=git:@v1",
        "verl=git:git@example.org:a/verl.git",
        "verl=git:/src/verl@--output=x",
        "verl=git:--upload-pack=x@v1",
    ],
)
def test_a_malformed_override_is_a_usage_error(text: str) -> None:
    with pytest.raises(StackUsageError) as caught:
        parse_override(text)
    assert caught.value.exit_code == 2
    assert "Write " in assert_short(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        '"0.8.0"',
        '">=0.8"',
        '"==x"',
        "1",
        '{ git = "/src" }',
        '{ git = "/src", rev = "" }',
        '{ path = "/src", rev = "x" }',
        '{ path = "/src/ends with a tab\\t" }',
    ],
)
def test_a_malformed_pin_in_the_settings_names_its_table(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = Workshop(tmp_path, monkeypatch)
    workshop.project(f"[tool.parity.stacks.one.pins]\nverl = {value}\n")
    with pytest.raises(StackUsageError) as caught:
        workshop.settings()
    assert "[tool.parity.stacks.one]" in assert_short(caught.value)


def test_paths_in_the_settings_start_at_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = Workshop(tmp_path, monkeypatch)
    workshop.project('[tool.parity.stacks.one.pins]\na = { path = "../a" }\nb = { git = "../b", rev = "v1" }\n')
    pins = workshop.settings().stack("one").pins
    assert pins == {"a": PathPin("a", tmp_path / "a"), "b": GitPin("b", str(tmp_path / "b"), "v1")}
