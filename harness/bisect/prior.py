"""Where the culprit is likely: candidates whose commits touch what the difference hangs on.

It says which candidates are asked first, never which are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from harness.bisect.candidates import Candidate
from harness.compare.trees import Difference
from harness.stacks.git import run as git
from harness.stacks.pins import GitPin, Pin, is_url

_FIELD, _FILE = 0.5, 0.3
"""Share of the probability for candidates that add or take away a mention of the field (`git log -S`), and for those
that change a file concerned; the rest goes to all alike."""

_SOURCES = ("*.py", "*.yaml", ":(exclude)tests/*", ":(exclude)*/tests/*")
_QUOTED = re.compile(r"'([A-Za-z_]\w+)'")
_ORIGIN = re.compile(r"\(from ([\w.]+):[\w.<>]+\)$")
_BATCH = 500
"""Hashes on one command line."""


@dataclass(frozen=True)
class Leads:
    """What a difference hangs on.

    Attributes:
        fields: names of config fields, or of whatever else the sources call so.
        files: ends of paths, such as `megatron/core/optimizer/optimizer.py`.
    """

    fields: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prior:
    """How likely each candidate is to be the culprit, and why, in a few words."""

    weights: NDArray[np.float64]
    told: str


def leads_of(difference: Difference) -> Leads:
    """The field a difference is about, by its path; for an exception, the names it quotes and where it comes from."""
    if difference.path == "exception":
        texts = [text for text in (difference.old, difference.new) if text]
        quoted = [name for text in texts for name in _QUOTED.findall(text)]
        origins = [found[1] for text in texts if (found := _ORIGIN.search(text))]
        return Leads(
            tuple(dict.fromkeys(quoted)), tuple(dict.fromkeys(f"{name.replace('.', '/')}.py" for name in origins))
        )
    # What the tree begins with is the probe's own word.
    _, *within = re.split(r"[./]", difference.path.rpartition(": ")[2], maxsplit=1)
    words = re.findall(r"[A-Za-z_]\w{3,}", "".join(within))
    compound = [word for word in words if "_" in word.strip("_")]
    return Leads(tuple((compound or words)[-1:]))


def prior_of(candidates: Sequence[Candidate], leads: Leads) -> Prior | None:
    """How likely each candidate is; None where the leads favour none of them, or all are releases."""
    steps = _steps(candidates)
    fields, files = set[str](), set[str]()
    for clone in sorted({clone for step in steps for clone in step}):
        commits = [commit for step in steps for commit in step.get(clone, ())]
        fields |= _mentioning(clone, commits, leads.fields)
        files |= _touching(clone, commits, [*leads.files, *_naming(clone, commits, leads.fields)])
    of_step = [{commit for commits in step.values() for commit in commits} for step in steps]
    likely = [(_FIELD, np.array([bool(step & fields) for step in of_step]))]
    likely += [(_FILE, np.array([bool(step & files) for step in of_step]))]
    favoured = [(share, hits) for share, hits in likely if hits.any() and not hits.all()]
    if not favoured:
        return None
    rest = 1.0 - sum(share for share, _ in favoured)
    weights = np.full(len(steps), rest / len(steps))
    for share, hits in favoured:
        weights[hits] += share / hits.sum()
    return Prior(np.concatenate([[0.0], weights]), _told(leads, int(likely[0][1].sum()), int(likely[1][1].sum())))


def _told(leads: Leads, fields: int, files: int) -> str:
    concerned = f"a file that names {', '.join(leads.fields)}" if leads.fields else ", ".join(leads.files)
    counted = [f"{fields} that touch {', '.join(leads.fields)}"] if fields else []
    counted += [f"{files} that change {concerned}"] if files else []
    return f"likely candidates first: {', '.join(counted)}"


def _steps(candidates: Sequence[Candidate]) -> list[dict[Path, list[str]]]:
    """For each candidate after the first, by clone: the commits that lead to it along first parents, its own last."""
    steps: list[dict[Path, list[str]]] = [{} for _ in candidates[1:]]
    for clone in sorted({Path(pin.source) for candidate in candidates for pin in candidate.pins if _is_local(pin)}):
        revisions = [_revision(candidate, clone) for candidate in candidates]
        if None in revisions:
            continue
        known = [revision for revision in revisions if revision is not None]
        mainline = [known[0], *_between(clone, known[0], known[-1])]
        places = {commit: place for place, commit in enumerate(mainline)}
        for step, (earlier, later) in zip(steps, pairwise(known), strict=True):
            if earlier == later:
                continue
            if places.get(earlier, len(mainline)) < places.get(later, -1):
                step[clone] = mainline[places[earlier] + 1 : places[later] + 1]
            else:  # a record that moved to another branch, or back
                step[clone] = _between(clone, earlier, later) or [later]
    return steps


def _is_local(pin: Pin) -> TypeGuard[GitPin]:
    return isinstance(pin, GitPin) and not is_url(pin.source)


def _revision(candidate: Candidate, clone: Path) -> str | None:
    return next((pin.revision for pin in candidate.pins if _is_local(pin) and Path(pin.source) == clone), None)


def _between(clone: Path, earlier: str, later: str) -> list[str]:
    return git(clone, "rev-list", "--first-parent", "--reverse", f"{earlier}..{later}").stdout.split()


def _mentioning(clone: Path, commits: Sequence[str], fields: Sequence[str]) -> set[str]:
    """The commits that change how often one of these names is mentioned."""
    return {commit for name in fields for commit in _log(clone, commits, f"-S{name}", paths=_SOURCES)}


def _touching(clone: Path, commits: Sequence[str], files: Sequence[str]) -> set[str]:
    return set(_log(clone, commits, paths=[f":(glob)**/{file}" for file in files])) if files else set()


def _naming(clone: Path, commits: Sequence[str], fields: Sequence[str]) -> set[str]:
    """The source files that name one of these fields, at the last of the commits."""
    if not commits or not fields:
        return set()
    names = [word for field in fields for word in ("-e", field)]
    found = git(clone, "grep", "-l", "-z", "-w", "-F", *names, commits[-1], "--", *_SOURCES).stdout.split("\0")
    return {line.partition(":")[2] for line in found if line}


def _log(clone: Path, commits: Sequence[str], *options: str, paths: Sequence[str]) -> Iterator[str]:
    """Those of the commits that `git log` shows with these options, each compared with its first parent."""
    shown = ("log", "--no-walk=unsorted", "--first-parent", "-m", "--format=%H", *options)
    for start in range(0, len(commits), _BATCH):
        yield from git(clone, *shown, *commits[start : start + _BATCH], "--", *paths).stdout.split()
