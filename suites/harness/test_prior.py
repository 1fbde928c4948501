"""Where a culprit is likely: what a difference hangs on, and which candidates touch that."""

from pathlib import Path

import pytest
from stacks_support import commit, git

from harness.bisect.candidates import bumps, commits, pair_candidate, pairs, releases_between
from harness.bisect.prior import Leads, leads_of, prior_of
from harness.compare.trees import Difference
from harness.stacks import StackUsageError


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("config.moe_router_pre_softmax", "moe_router_pre_softmax"),
        ("rank1: ddp_config.grad_reduce_in_fp32", "grad_reduce_in_fp32"),
        ("changed.mtp_num_layers.without", "mtp_num_layers"),
        ("config.normalization", "normalization"),
    ],
)
def test_a_path_names_its_field(path: str, field: str) -> None:
    assert leads_of(Difference(path, "changed", "1", "2")) == Leads((field,))


def test_a_word_of_the_probe_is_no_field() -> None:
    assert leads_of(Difference("rank0: grad_norm", "changed", "1", "2")) == Leads()


def test_an_exception_names_what_it_quotes_and_where_it_comes_from() -> None:
    text = "AttributeError: Provider has no attribute 'enable_replay'. (from toy.models.provider:Provider.apply)"
    assert leads_of(Difference("exception", "added", "(absent)", text)) == Leads(
        ("enable_replay",), ("toy/models/provider.py",)
    )


def repository(folder: Path, texts: list[dict[str, str]]) -> list[str]:
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    return [commit(folder, files) for files in texts]


@pytest.fixture
def clone(tmp_path: Path) -> tuple[Path, list[str]]:
    """Ten commits: the fourth adds a mention of the field, the eighth changes the file that holds it."""
    texts = [{"toy/other.py": f"# {number}\n"} for number in range(10)]
    texts[3] = {"toy/config.py": "wide_field = 1\n", "tests/test_it.py": "wide_field\n"}
    texts[7] = {"toy/config.py": "wide_field = 1\nmore = 2\n"}
    texts[8] = {"tests/test_it.py": "wide_field wide_field\n"}
    return tmp_path / "clone", repository(tmp_path / "clone", texts)


def test_commits_that_touch_the_field_come_before_those_that_touch_its_file(clone: tuple[Path, list[str]]) -> None:
    folder, hashes = clone
    prior = prior_of(commits("toy", folder, hashes[0], "main"), Leads(("wide_field",)))
    assert prior is not None
    weights = prior.weights
    assert weights[0] == 0
    assert weights.sum() == pytest.approx(1)
    assert weights.argsort()[-2:].tolist() == [7, 3]
    assert len({float(weight) for weight in weights[[1, 2, 4, 5, 6, 8, 9]]}) == 1, "a test is no source"
    assert (weights[1:] > 0).all()
    assert prior.told == "likely candidates first: 1 that touch wide_field, 2 that change a file that names wide_field"


def test_a_file_is_a_lead_of_its_own(clone: tuple[Path, list[str]]) -> None:
    folder, hashes = clone
    prior = prior_of(commits("toy", folder, hashes[0], "main"), Leads((), ("toy/config.py",)))
    assert prior is not None
    assert sorted(prior.weights.argsort()[-2:].tolist()) == [3, 7]


@pytest.mark.parametrize("leads", [Leads(), Leads(("nowhere",)), Leads((), ("toy/none.py",))])
def test_without_a_lead_that_leads_anywhere_all_are_alike(clone: tuple[Path, list[str]], leads: Leads) -> None:
    folder, hashes = clone
    assert prior_of(commits("toy", folder, hashes[0], "main"), leads) is None


def test_a_bump_is_likely_where_a_commit_that_it_brings_is(tmp_path: Path, clone: tuple[Path, list[str]]) -> None:
    core, hashes = clone
    bridge = tmp_path / "bridge"
    bridge.mkdir()
    git(bridge, "init", "--quiet", "--initial-branch=main")
    for number, digest in enumerate([hashes[0], hashes[2], hashes[5], hashes[6], hashes[9]]):
        git(bridge, "update-index", "--add", "--cacheinfo", f"160000,{digest},3rdparty/Megatron-LM")
        git(bridge, "commit", "--quiet", "--message", f"bump {number}")
    first = git(bridge, "rev-list", "--max-parents=0", "HEAD")
    heads = [pair_candidate(pair, bridge, core) for pair in bumps(pairs(bridge, first, "main"))]
    prior = prior_of(heads, Leads(("wide_field",)))
    assert prior is not None
    assert [len(heads), int(prior.weights.argmax())] == [5, 2]


@pytest.mark.parametrize(("good", "bad", "told"), [("2.0", "1.0", "swap --good"), ("main", "1.0", "give --clone toy=")])
def test_ends_that_are_no_two_releases_in_order_are_told(good: str, bad: str, told: str) -> None:
    with pytest.raises(StackUsageError, match=told):
        releases_between("toy", good, bad, lambda _version: None)
