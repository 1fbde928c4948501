"""What a bisection needs on a generated history of 1,000 commits: evaluations, rounds, and how often it is right.

    nox -s bench

The searches are the tool's own, `harness.bisect.bisection`, along commits of a real repository; only the observation of
a candidate is made up: it is read from the tree of the commit, or drawn at a failure probability.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from harness.bisect.bisection import Attempt, Bisected, Bisection, EndsError
from harness.bisect.candidates import Candidate, Commit, commits
from harness.bisect.focus import NoDifferenceError
from harness.bisect.prior import Leads, prior_of
from harness.compare import Side
from harness.observe.codec import encode
from harness.observe.observation import Observation
from harness.stacks.git import Repository
from harness.stacks.pins import ReleasePin

COMMITS = 1000
CHANGES = 20
BROKEN, MERGED = 0.15, 0.1
RATES = ((0.0, 0.5), (0.02, 0.5), (0.0, 0.2), (0.02, 0.2))
WORKERS = (1, 2, 4, 8)
_ROOT = "100644 inline"


@dataclass(frozen=True)
class History:
    """A generated repository.

    Attributes:
        candidates: its first parents, from the first commit to the last.
        culprits: change → index of the candidate that brings it.
        broken: indices of the candidates that cannot run.
    """

    clone: Path
    candidates: list[Candidate]
    culprits: dict[str, int]
    broken: frozenset[int]

    def attempt(self, change: str) -> Attempt:
        """Observes whether a commit's tree has a change; a broken one has nothing to observe."""
        repository = Repository(self.clone)
        trees = {}

        def observe(candidate: Candidate, _sample: int) -> Side:
            assert candidate.commit is not None
            digest = candidate.commit.hash
            if digest not in trees:
                trees[digest] = repository.read(digest, "toy/state.py") or ""
            if "import no_such_package" in trees[digest]:
                return Side("new", "toy", {}, unavailable="cannot be built")
            return _seen(change in trees[digest])

        return observe


def planted_history(folder: Path, commits_wanted: int = COMMITS, seed: int = 7) -> History:
    """A repository with planted changes, commits that cannot be imported, and merges of branches of one to three."""
    random = np.random.default_rng(seed)
    culprits = {f"change_{number:02}": int(at) for number, at in enumerate(_places(random, commits_wanted))}
    broken = frozenset(np.flatnonzero(random.random(commits_wanted) < BROKEN).tolist()) - {0, commits_wanted - 1}
    merged = frozenset(np.flatnonzero(random.random(commits_wanted) < MERGED).tolist()) - {0}
    branches = {at: int(random.integers(1, 4)) for at in merged}
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(folder)], check=True)
    stream = "".join(_stream(commits_wanted, culprits, broken, branches))
    subprocess.run(["git", "-C", str(folder), "fast-import", "--quiet"], input=stream.encode(), check=True)
    return History(folder, commits("toy", folder, _first(folder), "main"), culprits, broken)


def _places(random: np.random.Generator, length: int) -> Iterable[int]:
    return random.choice(np.arange(1, length), CHANGES, replace=False)


def _stream(length: int, culprits: dict[str, int], broken: frozenset[int], branches: dict[int, int]) -> Iterator[str]:
    """What `git fast-import` reads; marks are `2 * index + 1`, those of branches lie beyond."""
    mark = 2 * length
    for index in range(length):
        tip = None
        for _ in range(branches.get(index, 0)):
            mark += 1
            parent = tip or index  # the mainline's commit before this one
            yield _commit(mark, f"work towards {index}", f"from :{parent}\n", f"side/{mark}.txt", f"{mark}\n")
            tip = mark
        state = [name for name, at in culprits.items() if at <= index]
        text = "".join(f"{name} = True\n" for name in state) + ("import no_such_package\n" if index in broken else "")
        parents = (f"from :{index}\n" if index else "") + (f"merge :{tip}\n" if tip else "")
        yield _commit(index + 1, f"commit {index}", parents, "toy/state.py", f"# {index}\n{text}")


def _commit(mark: int, subject: str, parents: str, path: str, text: str) -> str:
    who = f"A Developer <developer@example.org> {1_700_000_000 + 60 * mark} +0000"
    said, held = subject.encode(), text.encode()
    return (
        f"commit refs/heads/{'main' if subject.startswith('commit') else 'side'}\nmark :{mark}\ncommitter {who}\n"
        f"data {len(said)}\n{subject}\n{parents}M {_ROOT} {path}\ndata {len(held)}\n{text}\n"
    )


def _first(folder: Path) -> str:
    listed = subprocess.run(
        ["git", "-C", str(folder), "rev-list", "--first-parent", "main"], check=True, capture_output=True, text=True
    )
    return listed.stdout.split()[-1]


def found_in(history: History, change: str, workers: int = 1, *, likely: bool = False) -> Bisected:
    """Bisect one planted change; `likely`: with `git log -S` to say where to look first."""
    leads = Leads((change,))
    return Bisection(
        change,
        history.candidates,
        history.attempt(change),
        workers=workers,
        guess=lambda candidates, _focus: prior_of(candidates, leads) if likely else None,
    ).run()


def is_right(found: Bisected, culprit: int) -> bool:
    """Whether the culprit, and nothing that could have told it apart, is in what was found."""
    return found.found.first <= culprit <= found.found.last


@dataclass(frozen=True)
class Flaky:
    """How often a search for a flaky change was right, in so many runs, and what it took."""

    runs: int
    right: int
    plainly_right: int
    evaluations: float


def flaky_searches(before: float, after: float, runs: int = 100, seed: int = 11) -> Flaky:
    """Search for a change of the failure probability, both ends' runs included; beside it plain bisection."""
    random = np.random.default_rng(seed)
    along = [Candidate(f"toy {index}", (ReleasePin("toy", f"{index}"),), _made(index)) for index in range(COMMITS)]
    cases = [_FlakyCase(int(random.integers(1, COMMITS)), before, after, random) for _ in range(runs)]
    right = sum(_is_found(along, case) for case in cases)
    evaluations = float(np.mean([len(case.seen) for case in cases]))
    return Flaky(runs, right, sum(_plain(case.fails) == case.culprit for case in cases), evaluations)


@dataclass
class _FlakyCase:
    """A case that fails at one rate before the culprit, at another from it on; what it showed once it shows again."""

    culprit: int
    before: float
    after: float
    random: np.random.Generator
    seen: dict[tuple[Candidate, int], Side] = field(default_factory=dict)

    def fails(self, index: int) -> bool:
        return bool(self.random.random() < (self.after if index >= self.culprit else self.before))

    def observe(self, candidate: Candidate, sample: int) -> Side:
        assert candidate.commit is not None
        if (candidate, sample) not in self.seen:
            self.seen[candidate, sample] = _seen(self.fails(int(candidate.commit.hash)))
        return self.seen[candidate, sample]


def _is_found(along: list[Candidate], case: _FlakyCase) -> bool:
    try:
        return is_right(Bisection("flaky", along, case.observe).run(), case.culprit)
    except (EndsError, NoDifferenceError):
        return False  # its ends did not differ in as many runs as it takes of them


def _made(index: int) -> Commit:
    return Commit(str(index), "", "", "")


def _seen(shown: bool) -> Side:
    return Side("new", "toy", {}, (Observation(encode({"shown": shown}).tree, {}, None, (), (), (), {}, {}, 0.0),))


def _plain(fails: Callable[[int], bool]) -> int:
    """Plain bisection: one run a candidate, believed."""
    low, high = 0, COMMITS - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="parity-bench-") as folder:
        _print_steady(console, planted_history(Path(folder)))
    _print_flaky(console)


def _print_steady(console: Console, history: History) -> None:
    ideal = math.log2(len(history.candidates) - 1)
    title = f"{len(history.candidates)} commits, {len(history.broken)} cannot run; ideal {ideal:.1f} evaluations"
    table = Table("workers", "likely first", "right", "evaluations", "rounds", title=title)
    for likely in (False, True):
        for workers in WORKERS:
            found = {change: found_in(history, change, workers, likely=likely) for change in history.culprits}
            right = sum(is_right(item, history.culprits[change]) for change, item in found.items())
            counts = [_before_confirming(item) for item in found.values()]
            rounds = [item.rounds for item in found.values()]
            table.add_row(
                str(workers),
                "yes" if likely else "no",
                f"{right} of {len(found)}",
                f"{np.mean(counts):.1f} ({max(counts)} at most)",
                f"{np.mean(rounds):.1f} ({max(rounds)} at most)",
            )
    console.print(table)


def _before_confirming(found: Bisected) -> int:
    return len(found.trials) - 4


def _print_flaky(console: Console) -> None:
    table = Table(
        "fails before", "after", "right", "plain bisection right", "evaluations", title=f"flaky, {COMMITS} candidates"
    )
    for before, after in RATES:
        figures = flaky_searches(before, after)
        table.add_row(
            f"{before:.0%}",
            f"{after:.0%}",
            f"{figures.right} of {figures.runs}",
            f"{figures.plainly_right} of {figures.runs}",
            f"{figures.evaluations:.0f}, both ends' included",
        )
    console.print(table)


if __name__ == "__main__":
    main()
