"""Values of torch, and collectives over gloo, in the locked base environment."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from toy_project import ToyRunner, make_project, running

from harness.compare import Verdict
from harness.compare.tensors import elements
from harness.workers.protocol import Limits


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyRunner]:
    with running(make_project(tmp_path_factory.mktemp("torch")), base="locked") as runner:
        yield ToyRunner(runner.runner, Path(__file__).with_name("torch_probes.py"))


def test_values_of_torch_are_encoded_without_loss(with_torch: ToyRunner) -> None:
    outcome = with_torch("torch_values")
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message
    [rank] = outcome.old.ranks
    assert rank.tree == {
        "answer": {"$dtype": "torch.bfloat16"},
        "device": {"$device": "cpu"},
        "size": {"$size": [1, 2]},
        "weights": {"$tensor": "weights"},
        "parameter": {"$tensor": "parameter"},
        "empty": {"$tensor": "empty"},
        "function": {"$function": "torch.nn.functional:silu"},
    }
    data = rank.tensor_data()
    assert {name: (found.dtype, found.shape) for name, found in data.items()} == {
        "weights": ("bfloat16", (3, 2)),
        "parameter": ("float32", ()),
        "empty": ("float32", (0, 3)),
    }
    assert elements(data["weights"]).astype(np.float32).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_module_is_refused_with_what_to_return_instead(with_torch: ToyRunner) -> None:
    outcome = with_torch("returns_a_module")
    assert outcome.judged.verdict is Verdict.BROKEN
    assert "answer is a module" in outcome.judged.why
    assert "return its parameters instead" in outcome.judged.why


def test_ranks_meet_over_gloo(with_torch: ToyRunner) -> None:
    outcome = with_torch("waits_in_a_collective", layout="dp2")
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message
    assert [float(elements(rank.tensor_data()["total"])[0]) for rank in outcome.new.ranks] == [2.0, 2.0]


def test_a_collective_that_one_rank_leaves_is_broken_and_names_that_rank(with_torch: ToyRunner) -> None:
    outcome = with_torch("waits_in_a_collective", layout="dp2", leave=True, limits=Limits(seconds=20, grace=1))
    assert outcome.judged.verdict is Verdict.BROKEN
    assert "rank 1 exited with status 5" in outcome.judged.why
    assert with_torch("waits_in_a_collective", layout="dp2").judged.verdict is Verdict.IDENTICAL


def test_device_calls_are_answered_and_listed(with_torch: ToyRunner) -> None:
    stand_ins = with_torch("torch_values").old.ranks[0].environment["stand_ins"]
    assert "torch.cuda.current_device" in [entry["replaced"] for entry in stand_ins]


def test_a_trace_has_every_call_in_order_and_changes_no_result(with_torch: ToyRunner) -> None:
    outcome = with_torch("traced_layers")
    assert outcome.judged.verdict is Verdict.IDENTICAL, outcome.message
    [rank] = outcome.old.ranks
    assert rank.tree["equal"] is True
    assert [(step.module, step.phase) for step in rank.trace] == [
        *((name, "forward") for name in ("first", "relu", "second", "second", "(model)")),
        *((name, "backward") for name in ("second", "second", "relu", "first", "(model)")),
    ]
    shapes = [[out.shape for out in step.outputs] for step in rank.trace if step.phase == "backward"]
    linear = [(2, 4), (4, 4), (4,)]
    assert shapes == [linear, linear, [(2, 4)], linear, [(2, 4)]]
