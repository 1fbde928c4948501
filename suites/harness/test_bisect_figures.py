"""The whole bisection on a generated history of 1,000 commits; `nox -s bench` prints the same figures."""

from collections.abc import Callable

import numpy as np
import pytest
from search import COMMITS, WORKERS, History, flaky_searches, found_in, is_right, planted_history

from harness.bisect.bisection import Bisection, EndsError
from harness.bisect.candidates import Candidate
from harness.bisect.search import rounds_needed
from harness.compare import Side
from harness.observe.codec import encode
from harness.observe.observation import Observation
from harness.stacks.pins import ReleasePin


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return planted_history(tmp_path_factory.mktemp("history"))


def test_the_history_is_what_it_is_said_to_be(history: History) -> None:
    subjects = [candidate.commit.subject for candidate in history.candidates if candidate.commit]
    assert subjects == [f"commit {number}" for number in range(COMMITS)]
    assert 0.1 * COMMITS < len(history.broken) < 0.2 * COMMITS


@pytest.mark.parametrize("workers", WORKERS)
def test_every_planted_change_is_found(history: History, workers: int) -> None:
    found = {change: found_in(history, change, workers) for change in history.culprits}
    for change, culprit in history.culprits.items():
        first, last = found[change].found.first, found[change].found.last
        assert first <= culprit <= last
        assert set(range(first, last)) <= history.broken, "a candidate that could have run was left untried"
    assert np.mean([item.rounds for item in found.values()]) <= rounds_needed(COMMITS, workers) + 3


def test_git_log_says_where_to_look_first(history: History) -> None:
    found = {change: found_in(history, change, likely=True) for change in history.culprits}
    assert all(is_right(found[change], culprit) for change, culprit in history.culprits.items())
    assert np.mean([item.rounds for item in found.values()]) < 5


def test_a_flaky_change_is_found_where_plain_bisection_fails() -> None:
    figures = flaky_searches(0.02, 0.5)
    assert figures.right >= 95
    assert figures.plainly_right < 20


def _along(length: int) -> list[Candidate]:
    return [Candidate(f"toy {index}", (ReleasePin("toy", f"{index}"),)) for index in range(length)]


def _side(value: int) -> Side:
    return Side("new", "toy", {}, (Observation(encode({"value": value}).tree, {}, None, (), (), (), {}, {}, 0.0),))


def _observed(value: Callable[[int, int], int], along: list[Candidate]) -> Callable[[Candidate, int], Side]:
    return lambda candidate, sample: _side(value(along.index(candidate), sample))


def test_what_a_good_end_seldom_gives_is_not_what_others_are_compared_with() -> None:
    along = _along(20)
    value = _observed(lambda index, sample: int(index >= 7 or (index == 0 and sample == 0)), along)
    found = Bisection("case", along, value).run()
    assert (found.found.first, found.found.last) == (7, 7)
    assert str(found.focus.difference) == "value: 0 → 1"


def test_what_cannot_be_built_says_nothing() -> None:
    along = _along(20)

    def observe(candidate: Candidate, _sample: int) -> Side:
        index = along.index(candidate)
        return Side("new", "toy", {}, unavailable="cannot be built") if index in (8, 9, 10) else _side(int(index >= 9))

    found = Bisection("case", along, observe).run()
    assert (found.found.first, found.found.last) == (8, 11)


def test_several_workers_may_get_answers_that_contradict_each_other() -> None:
    """At first the case seems steady: both ends give the same twice."""
    along, random = _along(200), np.random.default_rng(1)
    fails = lambda index, sample: int(  # noqa: E731
        (index == len(along) - 1 and sample < 2) or (index >= 60 and random.random() < 0.7)
    )
    told: list[str] = []
    found = Bisection("case", along, _observed(fails, along), workers=8, told=told.append).run()
    assert found.found.first <= 60 <= found.found.last
    assert "the case is flaky: 20 runs of each end" in told


def test_ends_that_fail_alike_are_refused() -> None:
    along = _along(10)
    value = _observed(lambda _index, sample: int(sample % 2), along)
    with pytest.raises(EndsError, match="of 100 runs, the good end in 50: nothing to search for"):
        Bisection("case", along, value).run()
