"""What a bisection walks along: releases, commits of a clone, or pairs of Megatron-Bridge and Megatron-Core commits.

A candidate is a set of pins that replace those of the stack which holds everything else. Along first parents a merge
is one step: what a pull request did is one candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.stacks.errors import StackUsageError
from harness.stacks.git import Repository
from harness.stacks.git import run as git
from harness.stacks.pins import GitPin, Pin, ReleasePin

GITLINK = "3rdparty/Megatron-LM"
"""Where Megatron-Bridge records the Megatron-Core commit that it was built with."""


@dataclass(frozen=True)
class Commit:
    """One commit of a clone, as `git log` tells it."""

    hash: str
    author: str
    date: str
    subject: str

    def __str__(self) -> str:
        return f"{self.hash[:12]} {self.date} {self.subject}"


@dataclass(frozen=True)
class Candidate:
    """Pins to try in place of a stack's own.

    Attributes:
        commit: what the candidate's last step is, where it is a commit.
    """

    label: str
    pins: tuple[Pin, ...]
    commit: Commit | None = None


def releases(distribution: str, versions: Sequence[str]) -> list[Candidate]:
    """Candidates for the releases of a distribution, oldest first."""
    return [Candidate(f"{distribution} {version}", (ReleasePin(distribution, version),)) for version in versions]


def releases_between(
    distribution: str, good: str, bad: str, newest_below: Callable[[str], str | None]
) -> list[Candidate]:
    """Candidates for the releases from `good` to `bad`, found by asking for the newest below each.

    Raises:
        StackUsageError: `good` is not older than `bad`, or one is no release.
    """
    try:
        swapped = Version(good) >= Version(bad)
    except InvalidVersion as error:
        raise StackUsageError(f"{error}: releases are walked; for commits, give --clone {distribution}=PATH.") from None
    if swapped:
        raise StackUsageError(f"{distribution}: {good} is not older than {bad}; swap --good and --bad.")
    between: list[str] = []
    version = newest_below(bad)
    while version is not None and Version(version) > Version(good):
        between.append(version)
        version = newest_below(version)
    return releases(distribution, [good, *reversed(between), bad])


def commits(distribution: str, clone: Path, good: str, bad: str, *, first_parent: bool = True) -> list[Candidate]:
    """The commits after `good` up to `bad`, preceded by where the two parted, oldest first.

    Either end is a revision, or the number of a release: `0.5.1` stands for the tag `v0.5.1` or `core_v0.5.1`.

    Where `good` is an ancestor of `bad` the first candidate is `good` itself. Otherwise (two release branches) it is
    their merge base, which may turn out bad: then the change lies on the branch of `good`.

    Raises:
        StackUsageError: a revision that the clone does not have, or two without common history.
    """
    ends = [_commit(distribution, clone, text) for text in (good, bad)]
    base = git(clone, "merge-base", *ends).stdout.strip()
    if not base:
        raise StackUsageError(f"{distribution}: {good} and {bad} have no common history in {clone}.")
    order = ("--first-parent",) if first_parent else ("--topo-order",)
    listed = git(clone, "rev-list", "--reverse", *order, f"{base}..{ends[1]}").stdout.split()
    return [_candidate(distribution, clone, commit) for commit in _described(clone, [base, *listed])]


@dataclass(frozen=True)
class Pair:
    """A commit of Megatron-Bridge and the Megatron-Core commit it records."""

    bridge: Commit
    core: str


def pairs(bridge: Path, good: str, bad: str) -> list[Pair]:
    """Every first-parent commit from `good` to `bad` with the Megatron-Core commit that it records, oldest first.

    Raises:
        StackUsageError: as `commits`; or a commit without the record.
    """
    found = []
    repository = Repository(bridge)
    for candidate in commits("megatron-bridge", bridge, good, bad):
        assert candidate.commit is not None
        linked = [digest for kind, digest, _ in repository.entries(candidate.commit.hash, GITLINK) if kind == "commit"]
        if not linked:
            raise StackUsageError(f"megatron-bridge {candidate.commit.hash[:12]} records no {GITLINK}.")
        found.append(Pair(candidate.commit, linked[0]))
    return found


def bumps(found: Sequence[Pair]) -> list[Pair]:
    """The first and the last pair, and between them the first of each run of pairs with one Megatron-Core commit."""
    starts = [next(run) for _, run in groupby(found, key=lambda pair: pair.core)]
    return starts if starts[-1] == found[-1] else [*starts, found[-1]]


def pair_candidate(pair: Pair, bridge: Path, core: Path) -> Candidate:
    """The candidate that runs a pair together."""
    return held(pair.bridge, pair.core, bridge, core)


def held(commit: Commit, core_commit: str, bridge: Path, core: Path) -> Candidate:
    """A commit of Bridge with any commit of Megatron-Core."""
    pins = (
        GitPin("megatron-bridge", str(bridge), commit.hash),
        GitPin("megatron-core", str(core), core_commit),
    )
    return Candidate(f"megatron-bridge {commit.hash[:12]} + megatron-core {core_commit[:12]}", pins, commit)


def changed_files(clone: Path, commit: str) -> list[str]:
    """The files that a commit changes against its first parent."""
    listed = git(clone, "diff", "--name-only", "-z", f"{commit}^", commit).stdout
    return [name for name in listed.split("\0") if name]


def _candidate(distribution: str, clone: Path, commit: Commit) -> Candidate:
    pin = GitPin(distribution, str(clone), commit.hash)
    return Candidate(f"{distribution} {commit.hash[:12]}", (pin,), commit)


def _commit(distribution: str, clone: Path, text: str) -> str:
    """The hash of a revision, or of a release's tag."""
    repository = Repository(clone)
    if not clone.is_dir():
        raise StackUsageError(f"{distribution}: there is no clone {clone}; --clone {distribution}=PATH names one.")
    found = next(filter(None, map(repository.commit, (text, f"v{text}", f"core_v{text}"))), None)
    if found is None:
        raise StackUsageError(
            f"{distribution}: no revision or release tag {text!r} in {clone}; `git fetch --tags` there, or --releases."
        )
    return found


def _described(clone: Path, hashes: Sequence[str]) -> Iterator[Commit]:
    """The commits of these hashes, in their order."""
    arguments = ["log", "--no-walk=unsorted", "--format=%H%x1f%an%x1f%as%x1f%s"]
    for start in range(0, len(hashes), _BATCH):
        for line in git(clone, *arguments, *hashes[start : start + _BATCH]).stdout.splitlines():
            yield Commit(*line.split("\x1f", 3))


_BATCH = 500
"""Hashes on one command line."""
