"""The search of a bisection: steady and flaky cases, candidates that can't run, several workers."""

from collections.abc import Callable

import numpy as np
import pytest

from harness.bisect.search import Answer, Rates, Search, rounds_needed

LENGTH = 1000


def walk(search: Search, culprit: int, workers: int = 1, broken: frozenset[int] = frozenset()) -> tuple[int, int]:
    """Answer truthfully until the search ends; rounds and answers it took."""
    rounds = 0
    while asked := search.ask(workers):
        rounds += 1
        for index in asked:
            answer = Answer.BAD if index >= culprit else Answer.GOOD
            search.tell(index, Answer.SKIP if index in broken else answer)
    return rounds, len(search.answers)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("culprit", [1, 2, 313, 500, 998, 999])
def test_a_steady_change_is_found_in_the_fewest_rounds(workers: int, culprit: int) -> None:
    search = Search(LENGTH)
    rounds, _ = walk(search, culprit, workers)
    assert search.found is not None
    assert (search.found.first, search.found.last, search.found.confidence) == (culprit, culprit, 1.0)
    assert rounds <= rounds_needed(LENGTH, workers) + 1


def test_one_worker_needs_no_more_answers_than_plain_bisection() -> None:
    for culprit in range(1, 65):
        search = Search(65)
        assert walk(search, culprit) == (6, 6)


@pytest.mark.parametrize("workers", [1, 4])
def test_what_cannot_run_is_skipped_and_the_range_told(workers: int) -> None:
    random = np.random.default_rng(5)
    answers = []
    for _ in range(20):
        culprit = int(random.integers(1, LENGTH))
        broken = frozenset(np.flatnonzero(random.random(LENGTH) < 0.15).tolist()) - {0, LENGTH - 1}
        search = Search(LENGTH)
        answers.append(walk(search, culprit, workers, broken)[1])
        assert search.found is not None
        assert search.found.first <= culprit <= search.found.last
        between = set(range(search.found.first, search.found.last))
        assert between <= broken, "a candidate that could have run was left untried inside the range"
    assert np.mean(answers) < 2.0 * np.log2(LENGTH) * (1 if workers == 1 else 1.5)


def test_the_culprit_amid_a_run_of_broken_candidates_is_a_range() -> None:
    search = Search(100)
    walk(search, culprit=50, broken=frozenset(range(40, 60)))
    assert search.found is not None
    assert (search.found.first, search.found.last) == (40, 60)


def test_a_flaky_change_is_found_where_plain_bisection_fails() -> None:
    random = np.random.default_rng(2)
    before, after, ends = 0.02, 0.5, 20
    right = plain = 0
    for _ in range(20):
        culprit = int(random.integers(1, LENGTH))
        failures = (int(random.binomial(ends, rate)) for rate in (before, after))
        search = Search(LENGTH, Rates.measured(ends, next(failures), ends, next(failures)))
        while asked := search.ask():
            for index in asked:
                failed = random.random() < (after if index >= culprit else before)
                search.tell(index, Answer.BAD if failed else Answer.GOOD)
        assert search.found is not None
        right += search.found.first <= culprit <= search.found.last
        plain += _plain(
            culprit, lambda index, culprit=culprit: random.random() < (after if index >= culprit else before)
        )
    assert right >= 19
    assert plain < 5


def test_answers_that_contradict_each_other_are_refused() -> None:
    search = Search(10)
    search.tell(5, Answer.BAD)
    with pytest.raises(ValueError, match="the case is flaky"):
        search.tell(6, Answer.GOOD)


def test_told_answers_continue_a_search() -> None:
    first = Search(LENGTH)
    for _ in range(4):
        for index in first.ask():
            first.tell(index, Answer.BAD if index >= 700 else Answer.GOOD)
    resumed = Search(LENGTH, answers=list(first.answers))
    assert resumed.remaining == first.remaining
    assert resumed.ask() == first.ask()


@pytest.mark.parametrize("index", [0, 9, 10, -1])
def test_an_end_is_no_candidate(index: int) -> None:
    with pytest.raises(ValueError, match="end of the search"):
        Search(10).tell(index, Answer.BAD)


def _plain(culprit: int, fails: Callable[[int], bool]) -> bool:
    low, high = 0, LENGTH - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high == culprit
