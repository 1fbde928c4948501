"""Which stacks moved between a revision of a project and its working tree."""

from pathlib import Path

import pytest
from stacks_support import assert_short, commit, git, write

from harness.selection import Selection
from harness.stacks import StackUsageError, changed_stacks, load_settings
from harness.stacks.changed import changed_stack

TOML = """
[tool.parity]
old = "a"
new = "b"
[tool.parity.stacks.a.pins]
verl = "==1.0"
extra = "==1.0"
[tool.parity.stacks.b]
extends = "a"
[tool.parity.stacks.b.pins]
verl = "==2.0"
[tool.parity.stacks.c]
extends = "b"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project in a folder of its repository, with a revision `base`."""
    root = tmp_path / "repository" / "project"
    root.mkdir(parents=True)
    git(root.parent, "init", "--quiet", "--initial-branch=main")
    commit(root, {"pyproject.toml": TOML})
    git(root, "tag", "base")
    return root


def moved(root: Path, *replacements: tuple[str, str]) -> list[str]:
    """The stacks that moved since `base` once these texts are replaced."""
    text = TOML
    for before, after in replacements:
        assert before in text
        text = text.replace(before, after)
    write(root, {"pyproject.toml": text})
    return [f"{move}" for move in changed_stacks(load_settings(root), "base")]


def at(root: Path, name: str) -> str:
    return f"{name}@{git(root, 'rev-parse', '--short=9', 'base')} → {name}"


def test_nothing_moved(root: Path) -> None:
    assert moved(root) == []
    assert moved(root, ("[tool.parity]", "# a comment\n[tool.parity]"), ('old = "a"', 'old = "c"')) == []


def test_a_pin_of_the_new_side_moved_and_what_extends_it_is_not_listed(root: Path) -> None:
    assert moved(root, ('"==2.0"', '"==3.0"')) == [f"{at(root, 'b')}: verl 2.0 → 3.0"]


def test_a_pin_that_the_new_side_inherits_moved(root: Path) -> None:
    assert moved(root, ('extra = "==1.0"', 'extra = "==1.1"')) == [
        f"{at(root, 'b')}: extra 1.0 → 1.1",
        f"{at(root, 'a')}: extra 1.0 → 1.1",
    ]


def test_a_pin_that_the_new_side_overrides_moved(root: Path) -> None:
    assert moved(root, ('verl = "==1.0"', 'verl = "==1.1"')) == [f"{at(root, 'a')}: verl 1.0 → 1.1"]


def test_pins_come_and_go(root: Path) -> None:
    assert moved(root, ('verl = "==2.0"', 'verl = "==2.0"\nmore = "==5"')) == [f"{at(root, 'b')}: more (absent) → 5"]
    assert moved(root, ('extra = "==1.0"\n', ""))[0] == f"{at(root, 'b')}: extra 1.0 → (absent)"


def test_another_stack_is_the_new_side(root: Path) -> None:
    new_stack = '[tool.parity.stacks.d]\nextends = "b"\n[tool.parity.stacks.d.pins]\nverl = "==4.0"\n'
    found = moved(root, ('new = "b"', 'new = "d"'), ("[tool.parity.stacks.c]", f"{new_stack}[tool.parity.stacks.c]"))
    assert found == [f"{at(root, 'b').partition(' ')[0]} → d: verl 2.0 → 4.0"]


def test_a_selection_takes_the_old_side_from_the_revision(root: Path) -> None:
    moved(root, ('"==2.0"', '"==3.0"'), ('extra = "==1.0"', 'extra = "==1.1"'))
    selection = Selection(changed_pins="base", new="b", pins=["extra==7"], root=root)
    assert selection.roles() == ("old", "new")
    assert selection.options == "--new b --changed-pins base --pin extra==7"
    assert selection.alone("old", load_settings(root)) == "b --pin extra==1.0 --pin verl==2.0 --pin extra==7"
    assert selection.alone("new", load_settings(root)) == "b --pin extra==7"


@pytest.mark.parametrize(
    ("base", "more", "told"),
    [
        ("no-such-branch", {}, "has no revision 'no-such-branch'"),
        ("--all", {}, "has no revision '--all'"),
        ("HEAD^", {}, "pyproject.toml at HEAD^: [tool.parity] old is a text, not 3"),
        ("HEAD~2", {}, "pyproject.toml at HEAD~2 is not valid TOML"),
        ("HEAD~3", {}, "pyproject.toml at HEAD~3 has no [tool.parity] table"),
        ("HEAD~4", {}, "there is no pyproject.toml at HEAD~4"),
        ("HEAD", {}, "no pin in pyproject.toml moved since HEAD"),
        ("base", {}, "pins of b, a moved since base: name one with --new"),
        ("base", {"new": "c"}, "no pin of c moved since base; those of b, a did"),
        ("base", {"old": "a"}, "leave out --old a"),
    ],
)
def test_what_cannot_be_told_is_one_line(root: Path, base: str, more: dict[str, str], told: str) -> None:
    git(root.parent, "rm", "--quiet", "project/pyproject.toml")
    commit(root.parent, {"project/more": "1"})
    for text in (
        "[tool.other]\n",
        "[tool.parity\n",
        "[tool.parity]\nold = 3\n",
        TOML.replace('extra = "==1.0"', 'extra = "==1.1"'),
    ):
        commit(root, {"pyproject.toml": text})
    with pytest.raises(StackUsageError) as error:
        Selection(changed_pins=base, root=root, **more).roles()
    assert told in assert_short(error.value)


def test_a_shallow_clone_says_how_to_get_the_rest(root: Path, tmp_path: Path) -> None:
    commit(root, {"more": "1"})
    git(tmp_path, "clone", "--quiet", "--depth=1", root.parent.as_uri(), "shallow")
    settings = load_settings(tmp_path / "shallow" / "project")
    with pytest.raises(StackUsageError, match=r"this clone is shallow: `git fetch --unshallow`"):
        changed_stacks(settings, "HEAD^")


def test_without_git_or_a_repository_it_is_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"pyproject.toml": TOML})
    with pytest.raises(StackUsageError, match="is not in a git repository"):
        changed_stack(load_settings(tmp_path), "base")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(StackUsageError, match="git is not installed"):
        changed_stack(load_settings(root), "base")
