"""The walk itself: both ends are verified, then candidates are tried until one is left.

Nothing is kept here: an attempt that was made before is answered from the store of answers, so an interrupted
bisection goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from harness.bisect.candidates import Candidate
from harness.bisect.focus import Focus, NoDifferenceError, choose
from harness.bisect.prior import Prior
from harness.bisect.search import Answer, ContradictionError, Found, Rates, Search, rounds_needed
from harness.compare import Judged, Ledger, Side, judge

Attempt = Callable[[Candidate, int], Side]
"""Observes the case on a candidate; the number tells repeated attempts on one candidate apart."""

Guess = Callable[[Sequence[Candidate], Focus], Prior | None]
"""Where the culprit is likely; None if nothing says so."""

_SURE = 2
"""Runs of each end where the first two agree (A/A)."""
_CONFIRMING = 2
"""Further runs of the culprit and of what came before it: two runs of an end need not show that a case is flaky."""
_RARE = 100
"""Runs of each end where those do not tell them apart."""
_FEW = 4
"""Candidates of which none needs to be tried first."""
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
        guess: asked once both ends are verified; likely candidates are tried first.
        told: called with a line of progress.
    """

    case: str
    candidates: Sequence[Candidate]
    attempt: Attempt
    wanted: str | None = None
    workers: int = 1
    confidence: float = 0.97
    guess: Guess = field(default=lambda _candidates, _focus: None)
    told: Callable[[str], None] = field(default=lambda _line: None)

    def run(self) -> Bisected:
        """Verify both ends, search, and confirm what was found.

        Raises:
            EndsError: the good end is not good, or the bad one not bad; or one can't run.
            NoDifferenceError: the ends do not differ.
        """
        started = time.monotonic()
        self._trials: list[Trial] = []
        self._rounds = 0
        threads = ThreadPoolExecutor(max_workers=self.workers, thread_name_prefix="bisect")
        try:
            good, focus, rates = self._verified(threads)
            prior = self.guess(self.candidates, focus) if len(self.candidates) > _FEW else None
            if prior:
                self.told(prior.told)
            try:
                found = self._search(threads, good, focus, rates, prior)
                flaky = rates.certain and not self._confirmed(threads, good, focus, found)
            except ContradictionError as error:
                self.told(str(error))
                flaky = True
            if flaky:
                rates = self._rates(threads, good, focus)
                found = self._search(threads, good, focus, rates, prior)
        finally:
            # Not waited for: interrupted, an attempt goes on until its worker is ended, which is up to the caller.
            threads.shutdown(wait=False, cancel_futures=True)
        seconds = time.monotonic() - started
        return Bisected(self.candidates, found, focus, self._trials, self._rounds, rates, seconds)

    def _search(
        self, threads: ThreadPoolExecutor, good: Side, focus: Focus, rates: Rates, prior: Prior | None
    ) -> Found:
        told = [(trial.index, trial.answer) for trial in self._trials if 0 < trial.index < len(self.candidates) - 1]
        weights = prior.weights if prior else None
        search = Search(len(self.candidates), rates, self.confidence, told, weights)
        while asked := search.ask(self.workers):
            self._rounds += 1
            self.told(self._progress(search))
            for trial in self._round(threads, good, focus, asked):
                search.tell(trial.index, trial.answer)
        assert search.found is not None
        return search.found

    def _confirmed(self, threads: ThreadPoolExecutor, good: Side, focus: Focus, found: Found) -> bool:
        """Whether the culprit and the candidate before it say again what they said."""
        expected = {found.first - 1: Answer.GOOD, found.last: Answer.BAD}
        asked = [index for index in expected for _ in range(_CONFIRMING)]
        self.told(f"confirming, {_CONFIRMING} more runs of each side of the change")
        return all(trial.answer is expected[trial.index] for trial in self._round(threads, good, focus, asked))

    def _round(self, threads: ThreadPoolExecutor, good: Side, focus: Focus, asked: Sequence[int]) -> list[Trial]:
        """Attempts made at the same time, told as they end."""
        made = []
        for trial in threads.map(lambda job: self._tried(good, focus, *job), _numbered(asked, self._trials)):
            made.append(trial)
            self.told(f"  {self.candidates[trial.index].label}: {trial.answer} {trial.why}".rstrip())
        self._trials += made
        return made

    def _verified(self, threads: ThreadPoolExecutor) -> tuple[Side, Focus, Rates]:
        """The good end's observation, the difference to look for, and how often each end shows it."""
        self.told(f"verifying both ends, {_SURE} runs each")
        ends = {name: self._end(threads, name, range(_SURE)) for name in ("good", "bad")}
        if len(self._alike(ends["good"])) > 1:
            self.told(f"the good end is not the same twice: {_FLAKY} runs of it")
            ends["good"] += self._end(threads, "good", range(_SURE, _FLAKY))
        good = max(self._alike(ends["good"]), key=len)[0]
        try:
            focus = self._focus(good, ends["bad"])
        except NoDifferenceError:
            self.told(f"no difference yet: {_FLAKY} runs of the bad end, in case it is flaky")
            ends["bad"] += self._end(threads, "bad", range(_SURE, _FLAKY))
            focus = self._focus(good, ends["bad"])
        self.told(f"looking for {focus.difference}" + (f" (one of {focus.others + 1})" if focus.others else ""))
        failures = {name: self._failures(good, focus, sides) for name, sides in ends.items()}
        if failures == {"good": 0, "bad": len(ends["bad"])}:
            return good, focus, Rates.steady()
        return good, focus, self._rates(threads, good, focus)

    def _rates(self, threads: ThreadPoolExecutor, good: Side, focus: Focus) -> Rates:
        """How often each end shows the difference."""
        failures = {"good": 0, "bad": 0}
        for runs in (_FLAKY, _RARE):
            self.told(f"the case is flaky: {runs} runs of each end")
            ends = {name: self._end(threads, name, range(runs)) for name in failures}
            failures = {name: self._failures(good, focus, sides) for name, sides in ends.items()}
            if failures["bad"] > failures["good"]:
                return Rates.measured(runs, failures["good"], runs, failures["bad"])
        raise EndsError(
            f"the bad end shows {focus.difference.path} in {failures['bad']} of {_RARE} runs, the good end in "
            f"{failures['good']}: nothing to search for"
        )

    def _alike(self, sides: Sequence[Side]) -> list[list[Side]]:
        """Runs of one end in groups that do not differ: what it mostly gives is what others are compared with."""
        groups: list[list[Side]] = []
        for side in sides:
            for group in groups:
                if not _differ(_compared(self.case, group[0], side)):
                    group.append(side)
                    break
            else:
                groups.append([side])
        return groups

    def _focus(self, good: Side, bad: Sequence[Side]) -> Focus:
        """The difference to look for, in the first run of the bad end that has one."""
        *others, last = bad
        for side in others:
            with suppress(NoDifferenceError):
                return choose(_compared(self.case, good, side), self.wanted)
        return choose(_compared(self.case, good, last), self.wanted)

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

    def _progress(self, search: Search) -> str:
        trials = self._trials
        first, last = search.remaining
        left = last - first + 1
        rounds = rounds_needed(left + 1, self.workers)
        spent = sum(trial.seconds for trial in trials) / len(trials) if trials else None
        estimate = f", about {rounds * spent:.0f} s" if spent is not None and search.rates.certain else ""
        between = f"{self.candidates[first].label} … {self.candidates[last].label}"
        return f"{left} candidates left ({between}), about {rounds} rounds{estimate}"


def _compared(case: str, good: Side, side: Side) -> Judged:
    """A side against the good end, with nothing declared."""
    return judge(case, good, side, Ledger())


def _differ(judged: Judged) -> bool:
    return any(item.old != item.new for item in judged.differences)


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
