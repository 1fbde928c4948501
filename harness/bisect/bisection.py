"""The walk itself: both ends are verified, then candidates are tried until one is left.

Nothing is kept here: an attempt that was made before is answered from the store of answers, so an interrupted
bisection goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from harness.bisect.candidates import Candidate
from harness.bisect.focus import Focus, choose
from harness.bisect.search import Answer, Found, Rates, Search, rounds_needed
from harness.compare import Judged, Ledger, Side, judge

Attempt = Callable[[Candidate, int], Side]
"""Observes the case on a candidate; the number tells repeated attempts on one candidate apart."""

_SURE = 2
"""Runs of each end where the first two agree (A/A)."""
_FLAKY = 20
"""Runs of each end where they do not: enough to tell 2 % from 50 %."""


class EndsError(ValueError):
    """An end of the bisection is not what it was said to be."""


@dataclass(frozen=True)
class Trial:
    """One attempt and what it said."""

    index: int
    answer: Answer
    why: str
    seconds: float


@dataclass(frozen=True)
class Bisected:
    """The end of a bisection.

    Attributes:
        found: where in `candidates` the culprit lies.
        focus: the difference that was looked for.
        trials: every attempt between the ends, in order.
        rounds: how often a batch of attempts was waited for.
        rates: how often the case shows the difference before and after, if it is flaky.
    """

    candidates: Sequence[Candidate]
    found: Found
    focus: Focus
    trials: Sequence[Trial]
    rounds: int
    rates: Rates
    seconds: float

    @property
    def culprits(self) -> Sequence[Candidate]:
        """The candidates that may have brought the difference; one, unless some could not run."""
        return self.candidates[self.found.first : self.found.last + 1]


@dataclass
class Bisection:
    """A search along candidates, the first of which is good and the last one bad.

    Attributes:
        case: its id.
        wanted: glob of the difference to look for; None for the first one.
        workers: attempts at a time.
        confidence: when to stop, where the case is flaky.
        told: called with a line of progress.
    """

    case: str
    candidates: Sequence[Candidate]
    attempt: Attempt
    wanted: str | None = None
    workers: int = 1
    confidence: float = 0.97
    told: Callable[[str], None] = field(default=lambda _line: None)

    def run(self) -> Bisected:
        """Verify both ends, then search.

        Raises:
            EndsError: the good end is not good, or the bad one not bad; or one can't run.
            NoDifferenceError: the ends do not differ.
        """
        started = time.monotonic()
        with ThreadPoolExecutor(max_workers=self.workers, thread_name_prefix="bisect") as threads:
            good, focus, rates = self._verified(threads)
            search = Search(len(self.candidates), rates, self.confidence)
            trials: list[Trial] = []
            rounds = 0
            while asked := search.ask(self.workers):
                rounds += 1
                self.told(self._progress(search, trials))
                for trial in threads.map(lambda job: self._tried(good, focus, *job), _numbered(asked, trials)):
                    trials.append(trial)
                    search.tell(trial.index, trial.answer)
                    self.told(f"  {self.candidates[trial.index].label}: {trial.answer} {trial.why}".rstrip())
        assert search.found is not None
        seconds = time.monotonic() - started
        return Bisected(self.candidates, search.found, focus, trials, rounds, rates, seconds)

    def _verified(self, threads: ThreadPoolExecutor) -> tuple[Side, Focus, Rates]:
        """The good end's observation, the difference to look for, and how often each end shows it."""
        self.told(f"verifying both ends, {_SURE} runs each")
        ends = {name: self._end(threads, name, range(_SURE)) for name in ("good", "bad")}
        good = ends["good"][0]
        focus = choose(_compared(self.case, good, ends["bad"][0]), self.wanted)
        self.told(f"looking for {focus.difference}" + (f" (one of {focus.others + 1})" if focus.others else ""))
        failures = {name: self._failures(good, focus, sides) for name, sides in ends.items()}
        if failures == {"good": 0, "bad": _SURE}:
            return good, focus, Rates.steady()
        self.told(f"the case is flaky: {_FLAKY} runs of each end")
        for name in ends:
            more = self._end(threads, name, range(_SURE, _FLAKY))
            failures[name] += self._failures(good, focus, more)
        if failures["bad"] <= failures["good"]:
            raise EndsError(
                f"the bad end shows {focus.difference.path} in {failures['bad']} of {_FLAKY} runs, the good end in "
                f"{failures['good']}: nothing to search for"
            )
        return good, focus, Rates.measured(_FLAKY, failures["good"], _FLAKY, failures["bad"])

    def _end(self, threads: ThreadPoolExecutor, name: str, samples: range) -> list[Side]:
        candidate = self.candidates[0 if name == "good" else -1]
        sides = list(threads.map(lambda sample: self.attempt(candidate, sample), samples))
        reason = next((why for side in sides if (why := side.fault or side.unavailable)), None)
        if reason:
            raise EndsError(f"the {name} end, {candidate.label}, cannot run: {reason}")
        return sides

    def _failures(self, good: Side, focus: Focus, sides: Sequence[Side]) -> int:
        return sum(focus.answer(_compared(self.case, good, side))[0] is Answer.BAD for side in sides)

    def _tried(self, good: Side, focus: Focus, index: int, sample: int) -> Trial:
        started = time.monotonic()
        side = self.attempt(self.candidates[index], sample)
        answer, why = focus.answer(_compared(self.case, good, side))
        return Trial(index, answer, why, time.monotonic() - started)

    def _progress(self, search: Search, trials: Sequence[Trial]) -> str:
        first, last = search.remaining
        left = last - first + 1
        rounds = rounds_needed(left + 1, self.workers)
        spent = sum(trial.seconds for trial in trials) / len(trials) if trials else None
        estimate = f", about {rounds * spent:.0f} s" if spent is not None and search.rates.certain else ""
        return f"{left} candidates left, about {rounds} rounds{estimate}"


def _compared(case: str, good: Side, side: Side) -> Judged:
    """A side against the good end, with nothing declared."""
    return judge(case, good, side, Ledger())


def _numbered(asked: Sequence[int], trials: Sequence[Trial]) -> list[tuple[int, int]]:
    """Candidates with the number of times each was tried before."""
    counts: dict[int, int] = {}
    for index in [*(trial.index for trial in trials), *asked]:
        counts[index] = counts.get(index, 0) + 1
    numbered = []
    for index in reversed(asked):
        counts[index] -= 1
        numbered.append((index, counts[index]))
    return numbered[::-1]
