"""`[tool.parity]`: stacks, `extends`, overrides, clones, the cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stacks_support import Workshop, assert_short

from harness.stacks import GitPin, ReleasePin, StackError, StackUsageError, load_settings, parse_clone

CHECKOUT = Path(__file__).parents[2]

CHAIN = """
[tool.parity]
old = "first"
new = "third"
[tool.parity.stacks.first.pins]
verl = "==1.0"
mbridge = "==2.0"
[tool.parity.stacks.second]
extends = "first"
[tool.parity.stacks.second.pins]
verl = "==1.1"
[tool.parity.stacks.third]
extends = "second"
[tool.parity.stacks.third.pins]
extra = "==3.0"
"""


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path, monkeypatch)


def test_a_stack_inherits_and_overrides(workshop: Workshop) -> None:
    workshop.project(CHAIN)
    settings = workshop.settings()
    third = settings.stack("third", ["mbridge==9.9", "Verl=git:/src@v1", ReleasePin("extra", "3.1")])
    assert (settings.old, settings.new, settings.base) == ("first", "third", "locked")
    assert third.extends == ("second", "first")
    assert third.pins == {
        "extra": ReleasePin("extra", "3.1"),
        "mbridge": ReleasePin("mbridge", "9.9"),
        "verl": GitPin("verl", "/src", "v1"),
    }
    assert settings.stack("third").pins["verl"] == ReleasePin("verl", "1.1")
    assert settings.stack("first", ["verl==2", "verl==3"]).pins["verl"] == ReleasePin("verl", "3")


def test_an_unknown_stack_suggests_close_names(workshop: Workshop) -> None:
    workshop.project(CHAIN)
    with pytest.raises(StackUsageError, match=r"unknown stack 'frist'\. Did you mean first\?"):
        workshop.settings().stack("frist")
    with pytest.raises(StackUsageError, match="parity stacks list") as caught:
        workshop.settings().stack("qqq")
    assert "Did you mean" not in assert_short(caught.value)


def test_extending_an_unknown_stack_names_both(workshop: Workshop) -> None:
    workshop.project('[tool.parity.stacks.one]\nextends = "two"\n')
    with pytest.raises(StackUsageError, match="stack 'one' extends 'two', which is unknown"):
        workshop.settings().stack("one")


def test_a_circular_extends_shows_the_circle(workshop: Workshop) -> None:
    workshop.project('[tool.parity.stacks.a]\nextends = "b"\n[tool.parity.stacks.b]\nextends = "a"\n')
    with pytest.raises(StackUsageError, match="stack 'a': circular extends: a -> b -> a") as caught:
        workshop.settings().stack("a")
    assert caught.value.exit_code == 2
    assert_short(caught.value)


@pytest.mark.parametrize(
    "toml",
    [
        "not toml",
        "[tool.other]\n",
        '[tool.parity]\nstacks = "x"\n',
        '[tool.parity]\nold = ["x"]\n',
        '[tool.parity.stacks.one]\npin = { verl = "==1" }\n',
        "[tool.parity.stacks.one]\nextends = 1\n",
        "[tool.parity.stacks.one]\npins = 1\n",
        "[tool.parity.stacks]\none = 1\n",
        '[tool.parity.distributions.verl]\npackages = "verl"\n',
        '[tool.parity.distributions.verl]\npackages = ["../verl"]\n',
        "[tool.parity.distributions.verl]\n",
        "[tool.parity.clones]\nverl = 1\n",
        '[tool.parity.clones]\n"a b" = "/src"\n',
    ],
)
def test_settings_that_are_not_well_formed_are_usage_errors(workshop: Workshop, toml: str) -> None:
    workshop.project(toml)
    with pytest.raises(StackUsageError) as caught:
        workshop.settings()
    assert_short(caught.value)


def test_the_nearest_project_above_is_found(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = workshop.root / "a" / "b"
    inner.mkdir(parents=True)
    (workshop.root / "a" / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(inner)
    assert load_settings().root == workshop.root


def test_without_a_project_the_checkout_itself_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings().root == CHECKOUT


def test_a_folder_without_pyproject_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(StackUsageError, match="cannot read"):
        load_settings(tmp_path)


def test_the_shipped_stacks_resolve() -> None:
    settings = load_settings(CHECKOUT)
    assert (settings.old, settings.new) == ("verl-0.7.1", "verl-0.8.0")
    for name in settings.stacks:
        assert {"verl", "megatron-bridge", "megatron-core", "mbridge", "transformers"} <= set(settings.stack(name).pins)
    for pull_request in ("6335", "5575"):
        before = settings.stack(f"verl-before-{pull_request}").pins
        after = settings.stack(f"verl-after-{pull_request}").pins
        assert {name for name in before if before[name] != after[name]} == {"verl"}


def test_clones_come_from_the_table_the_environment_and_the_command_line(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.project('[tool.parity.clones]\na = "../a"\nb = "../b"\nc = "../c"\n')
    monkeypatch.setenv("PARITY_CLONES", os.pathsep.join(["B=/env/b", "c=/env/c"]))
    settings = workshop.settings().with_clones(dict([parse_clone("c=/cli/c")]))
    assert settings.clones == {"a": workshop.root / "../a", "b": Path("/env/b"), "c": Path("/cli/c")}


@pytest.mark.parametrize("text", ["", "verl", "verl=", "=/src", "a b=/src"])
def test_a_malformed_clone_is_a_usage_error(text: str) -> None:
    with pytest.raises(StackUsageError):
        parse_clone(text)


def test_the_cache_is_the_users_unless_moved(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert workshop.settings().cache == workshop.cache
    monkeypatch.delenv("PARITY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(workshop.folder / "xdg"))
    assert workshop.settings().cache == workshop.folder / "xdg" / "parity"


def test_usage_errors_are_stack_errors() -> None:
    assert issubclass(StackUsageError, StackError)
    assert (StackError.exit_code, StackUsageError.exit_code) == (3, 2)


def test_importing_stacks_is_light() -> None:
    code = "import sys, harness.stacks; print(*{'torch', 'numpy', 'pytest', 'rich'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT, check=True)
    assert answer.stdout.split() == []
