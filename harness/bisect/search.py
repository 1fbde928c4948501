"""Where in a sequence of candidates did it change? One search for steady and for flaky cases, for one worker and many.

The first candidate is good, the last one bad; the culprit is the first bad one. The search keeps the probability of
every candidate to be the culprit, joint with the two failure rates (before and after the change), and asks for the
candidates whose answers are expected to say most. With rates 0 and 1 that is plain bisection, and k-ary search where
several are asked for at once; otherwise it is Horstein's search over a noisy channel (1963), as in "Flake Aware Culprit
Finding" (Henderson et al., ICST 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

_SKIP_REACH = 4.0
"""How far from a candidate that can't run others are expected not to run either: what breaks a build is mended some
commits later. The expectation falls by 1/e over this many candidates."""


class ContradictionError(ValueError):
    """Answers that a case which always fails alike cannot give."""


class Answer(StrEnum):
    """What a candidate said. `other` is a failure of another kind, which says nothing about this one."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"
    OTHER = "other"


@dataclass(frozen=True)
class Rates:
    """How often a case shows the difference before and after the change, as pairs with a weight each.

    Attributes:
        before: probability of `bad` before the change, shape (pairs,).
        after: probability of `bad` from the change on, shape (pairs,).
        weight: prior probability of each pair, shape (pairs,), sum one.
    """

    before: NDArray[np.float64]
    after: NDArray[np.float64]
    weight: NDArray[np.float64]

    @classmethod
    def steady(cls) -> Rates:
        """Never before, always after."""
        return cls(np.zeros(1), np.ones(1), np.ones(1))

    @classmethod
    def measured(cls, good_runs: int, good_failures: int, bad_runs: int, bad_failures: int) -> Rates:
        """What repeated runs of both ends leave possible: a grid, weighted by the likelihood of those runs."""
        before, after = (axis.ravel() for axis in np.meshgrid(_GRID_BEFORE, _GRID_AFTER, indexing="ij"))
        weight = _binomial(before, good_runs, good_failures) * _binomial(after, bad_runs, bad_failures)
        weight = np.where(after > before + _LEAST_GAP, weight, 0.0)
        likely = weight > weight.max() * _LEAST_WEIGHT
        return cls(before[likely], after[likely], weight[likely] / weight[likely].sum())

    @property
    def certain(self) -> bool:
        """Whether one answer settles a candidate."""
        return bool(np.all(self.before == 0) and np.all(self.after == 1))


_GRID_BEFORE = np.array([0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4])
_GRID_AFTER = np.array([0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1.0])
_LEAST_GAP = 0.02
_LEAST_WEIGHT = 1e-3
_LEAST_WORTH = 1e-9


@dataclass(frozen=True)
class Found:
    """The end of a search: the culprit lies in `first`…`last`, which is one candidate unless some could not run."""

    first: int
    last: int
    confidence: float


@dataclass
class Search:
    """A search over `length` candidates, of which 0 is known good and `length - 1` known bad.

    Attributes:
        rates: how the case fails.
        confidence: the probability at which the search ends.
        answers: what was told so far, in order.
        prior: of each candidate to be the culprit, all above zero but the first one's, shape (length,); None: all
            alike. It says where to ask first, never when to stop, so that a wrong one costs answers alone.
    """

    length: int
    rates: Rates = field(default_factory=Rates.steady)
    confidence: float = 0.97
    answers: list[tuple[int, Answer]] = field(default_factory=list)
    prior: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError("a search needs a good and a bad end")
        if self.prior is not None and (self.prior.shape != (self.length,) or np.any(self.prior[1:] <= 0.0)):
            raise ValueError("a prior is a probability above zero for each candidate after the first")
        self._skipped = np.zeros(self.length, dtype=bool)
        culprits = np.full(self.length - 1, 1.0 / (self.length - 1))
        self._joint = culprits[:, None] * self.rates.weight[None, :]
        """Probability that candidate row + 1 is the culprit and the rates are those of the column; without prior."""
        told, self.answers = self.answers, []
        for index, answer in told:
            self.tell(index, answer)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Of each candidate to be the culprit, shape (length,); the first one never is."""
        return np.concatenate([[0.0], self._joint.sum(axis=1)])

    @property
    def found(self) -> Found | None:
        """The end, once what is left can't be told apart any further or is certain enough."""
        told = np.flatnonzero(~self._skipped)
        between = np.diff(np.cumsum(self.probabilities)[told])
        at = int(np.argmax(between))
        if between[at] < (1.0 if self.rates.certain else self.confidence) - 1e-9:
            return None
        return Found(int(told[at]) + 1, int(told[at + 1]), 1.0 if self.rates.certain else float(between[at]))

    @property
    def remaining(self) -> tuple[int, int]:
        """First and last candidate that may still be the culprit (with a probability over one in a million)."""
        possible = np.flatnonzero(self.probabilities > 1e-6)
        return int(possible[0]), int(possible[-1])

    def ask(self, count: int = 1) -> list[int]:
        """The candidates to try next, at most `count`; none once the end is found.

        A flaky candidate may be asked for more than once, also in one round.
        """
        if self.found:
            return []
        if count == 1:
            return [int(np.argmax(self._worth()))]
        return self._spread(count)

    def tell(self, index: int, answer: Answer) -> None:
        """Take an answer into account.

        Raises:
            ContradictionError: the answers contradict each other, which a case that is not flaky can't do.
            ValueError: the candidate is an end.
        """
        if not 0 < index < self.length - 1:
            raise ValueError(f"candidate {index} is an end of the search, or beyond it")
        self.answers.append((index, answer))
        if answer in (Answer.SKIP, Answer.OTHER):
            self._skipped[index] = True
            return
        likelihood = np.where(self._is_bad(index)[:, None], self.rates.after, self.rates.before)
        joint = self._joint * (likelihood if answer is Answer.BAD else 1.0 - likelihood)
        total = joint.sum()
        if total <= 0.0:
            raise ContradictionError(f"candidate {index} is {answer}, against earlier answers: the case is flaky")
        self._joint = joint / total

    def _is_bad(self, index: int) -> NDArray[np.bool_]:
        """For each possible culprit, whether candidate `index` would be at or after it."""
        return np.arange(1, self.length) <= index

    def _expected(self) -> NDArray[np.float64]:
        """The joint probability with the prior, which decides what is asked next."""
        if self.prior is None:
            return self._joint
        weighted: NDArray[np.float64] = self._joint * self.prior[1:, None]
        return weighted / weighted.sum()

    def _worth(self) -> NDArray[np.float64]:
        """Expected information of asking each candidate, in bits, less the expectation that it can't run."""
        joint = self._expected()
        after = np.cumsum(joint, axis=0)[:-1]
        rest = joint.sum(axis=0)[None, :] - after
        bad = (after * self.rates.after + rest * self.rates.before).sum(axis=1)
        told = _entropy(bad)
        known_after = _weighted_entropy(joint, self.rates.after)
        known_before = _weighted_entropy(joint, self.rates.before)
        noise = np.cumsum(known_after)[:-1] + (known_before.sum() - np.cumsum(known_before)[:-1])
        worth = np.concatenate([[0.0], np.maximum(told - noise, 0.0), [0.0]])
        return worth * (1.0 - self._expected_skip())

    def _expected_skip(self) -> NDArray[np.float64]:
        skipped = np.flatnonzero(self._skipped)
        if not len(skipped):
            return np.zeros(self.length)
        indices = np.arange(self.length)
        after = np.searchsorted(skipped, indices)
        below = np.abs(indices - skipped[np.maximum(after - 1, 0)])
        above = np.abs(skipped[np.minimum(after, len(skipped) - 1)] - indices)
        return np.exp(-np.minimum(below, above) / _SKIP_REACH)

    def _spread(self, count: int) -> list[int]:
        """Up to `count` candidates at even steps of probability, each moved to where asking is worth most."""
        worth = self._worth()
        usable = np.flatnonzero(worth > _LEAST_WORTH)
        cumulated = np.concatenate([[0.0], np.cumsum(self._expected().sum(axis=1))])
        chosen: list[int] = []
        for target in np.arange(1, count + 1) / (count + 1):
            free = usable if not self.rates.certain else np.setdiff1d(usable, chosen)
            if not len(free):
                break
            distance = np.abs(cumulated[free] - target) + self._expected_skip()[free]
            chosen.append(int(free[np.argmin(distance)]))
        return chosen


def rounds_needed(length: int, workers: int) -> int:
    """Rounds of a steady search: each divides what is left by `workers` + 1."""
    return math.ceil(math.log(max(length - 1, 1), workers + 1) - 1e-9)


def _binomial(rate: NDArray[np.float64], runs: int, failures: int) -> NDArray[np.float64]:
    return rate**failures * (1.0 - rate) ** (runs - failures)


def _entropy(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    p = np.clip(probability, 1e-300, 1.0)
    q = np.clip(1.0 - probability, 1e-300, 1.0)
    return -(p * np.log2(p) + q * np.log2(q))


def _weighted_entropy(joint: NDArray[np.float64], rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Per culprit: its probability times the entropy of an answer that has its expected rate."""
    total = joint.sum(axis=1)
    mean = np.divide((joint * rate).sum(axis=1), total, out=np.zeros_like(total), where=total > 0)
    return total * _entropy(mean)
