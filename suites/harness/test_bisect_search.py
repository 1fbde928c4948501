"""The search of a bisection: steady and flaky cases, candidates that can't run, several workers."""

import numpy as np
import pytest
from numpy.typing import NDArray

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


def prior(*likely: int) -> NDArray[np.float64]:
    weights = np.full(LENGTH, 0.2 / (LENGTH - 1))
    weights[list(likely)] += 0.8 / len(likely)
    weights[0] = 0.0
    return weights


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_likely_places_are_asked_first(workers: int) -> None:
    search = Search(LENGTH, prior=prior(120, 313, 777))
    rounds, _ = walk(search, 313, workers)
    assert search.found is not None
    assert (search.found.first, search.found.last) == (313, 313)
    assert rounds <= 5 < rounds_needed(LENGTH, 1)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_a_wrong_prior_costs_a_few_rounds_and_no_answer(workers: int) -> None:
    random = np.random.default_rng(3)
    for culprit in random.integers(1, LENGTH, 20):
        search = Search(LENGTH, prior=prior(*random.integers(1, LENGTH, 3).tolist()))
        rounds, _ = walk(search, int(culprit), workers)
        assert search.found is not None
        assert (search.found.first, search.found.last) == (culprit, culprit)
        assert rounds <= rounds_needed(LENGTH, workers) + 4


def test_a_wrong_prior_does_not_end_a_flaky_search_early() -> None:
    random = np.random.default_rng(4)
    right = 0
    for _ in range(20):
        culprit = int(random.integers(1, LENGTH))
        search = Search(LENGTH, Rates.measured(20, 0, 20, 10), prior=prior(*random.integers(1, LENGTH, 3).tolist()))
        while asked := search.ask():
            for index in asked:
                search.tell(index, Answer.BAD if index >= culprit and random.random() < 0.5 else Answer.GOOD)
        assert search.found is not None
        right += search.found.first <= culprit <= search.found.last
    assert right >= 18


@pytest.mark.parametrize("wrong", [np.ones(3), np.array([0.0, 0.5, 0.0, 0.5])])
def test_a_prior_leaves_no_candidate_out(wrong: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match="above zero for each candidate"):
        Search(4, prior=wrong)


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
