"""First divergence: which module parts two sides, from traces of which nobody knows the model."""

import dataclasses
from pathlib import Path

import numpy as np
from toy_project import Project, ToyRunner, running

from harness.compare import Ledger, Side, Verdict, judge
from harness.compare.divergence import first_divergence
from harness.observe import encode
from harness.observe.observation import Observation, entries_of, load, save
from harness.observe.trace import Phase, Step, TracedTensor


def tensor(value: str) -> TracedTensor:
    return TracedTensor("float32", (2,), value, 1.0)


def step(module: str, went_in: str, came_out: str, phase: Phase = "forward", own: str = "") -> Step:
    return Step(module, phase, (tensor(went_in),), (tensor(came_out),), (tensor(own),) if own else ())


TRACE = (
    step("layer.fc1", "a", "b", own="w1"),
    step("layer.fc2", "b", "c", own="w2"),
    step("layer", "a", "c"),
    step("layer.fc2", "C", "B", "backward"),
    step("layer.fc1", "B", "A", "backward"),
    step("layer", "C", "A", "backward"),
)


def changed(*places: tuple[int, str, str]) -> list[Step]:
    """The trace with the inputs and outputs of some steps replaced."""
    trace = list(TRACE)
    for place, went_in, came_out in places:
        trace[place] = dataclasses.replace(trace[place], inputs=(tensor(went_in),), outputs=(tensor(came_out),))
    return trace


def why(new: list[Step]) -> str:
    return first_divergence([TRACE], [new]).why


def test_the_innermost_module_in_which_sides_part_is_named() -> None:
    found = first_divergence([TRACE], [changed((1, "b", "x"), (2, "a", "x"), (3, "X", "Y"), (5, "X", "Z"))])
    assert (found.module, found.phase, found.ranks) == ("layer.fc2", "forward", (0,))
    assert found.why == "first diverges in layer.fc2 (forward)"
    assert found.detail == ("output 0: float32[2] norm 1 c → float32[2] norm 1 x",)


def test_what_goes_wrong_between_modules_is_the_one_that_holds_them() -> None:
    assert why(changed((1, "x", "y"), (2, "a", "y"))) == "first diverges in layer (forward)"


def test_backward_comes_after_forward() -> None:
    assert why(changed((4, "B", "x"), (5, "C", "x"))) == "first diverges in layer.fc1 (backward)"


def test_parameters_that_differ_are_told() -> None:
    new = changed((0, "a", "x"))
    new[0] = dataclasses.replace(new[0], parameters=(tensor("w9"),))
    assert why(new) == "first diverges in layer.fc1 (forward), whose own parameters differ"


def test_no_module_diverges() -> None:
    assert "every module agrees" in why(list(TRACE))
    entered = "no module diverges: the difference enters layer.fc2 (backward) from outside"
    assert why(changed((3, "x", "y"), (4, "y", "z"), (5, "x", "z"))) == entered


def test_other_modules_or_another_order_are_told() -> None:
    renamed = [dataclasses.replace(item, module=item.module.replace("fc1", "up")) for item in TRACE]
    told = why(renamed)
    assert "2 steps on old only, first layer.fc1 (forward), 2 steps on new only, first layer.up (forward)" in told
    assert "modules run in another order" in why([TRACE[1], TRACE[0], *TRACE[2:]])
    assert why([]) == "no trace of modules"
    assert first_divergence([TRACE], [TRACE, TRACE]).why == "1 ranks have a trace on old and 2 on new"


def test_a_module_that_runs_twice_is_two_steps() -> None:
    twice, other = [*TRACE[:3], *TRACE[:3]], [*TRACE[:3], step("layer.fc1", "a", "x", own="w1"), *TRACE[1:3]]
    assert first_divergence([twice], [other]).why == "first diverges in layer.fc1 (forward)"


def test_the_rank_that_parts_first_is_named() -> None:
    late, early = changed((4, "B", "x")), changed((1, "b", "x"))
    found = first_divergence([TRACE, TRACE], [late, early])
    assert found.why == "first diverges in layer.fc2 (forward) on rank 1"
    assert first_divergence([TRACE, TRACE], [early, early]).why == "first diverges in layer.fc2 (forward)"


def test_an_old_side_that_parts_from_itself_is_told() -> None:
    noisy = changed((0, "a", "n"))
    found = first_divergence([TRACE], [changed((1, "b", "x"))], [[TRACE], [noisy]])
    assert found.why == "first diverges in layer.fc2 (forward); old parts from itself in layer.fc1 (forward)"


def observed(folder: Path, values: list[float], trace: list[Step]) -> Observation:
    encoding = encode({"gradient": np.asarray(values, np.float32)})
    entries = entries_of(encoding)
    found = Observation(encoding.tree, entries, None, (), (), (), {}, {}, 0.0, trace=tuple(trace))
    save(found, encoding.tensors, folder)
    return load(folder)


def test_a_verdict_on_tensors_names_it_and_a_trace_alone_makes_no_difference(tmp_path: Path) -> None:
    parted = changed((1, "b", "x"))
    old = Side("old", "a", {}, [observed(tmp_path / "old", [1, 2], list(TRACE))])
    same = Side("new", "b", {}, [observed(tmp_path / "same", [1, 2], parted)])
    other = Side("new", "b", {}, [observed(tmp_path / "other", [1, 3], parted)])
    assert old.ranks[0].trace == TRACE
    assert judge("case", old, same, Ledger()).verdict is Verdict.IDENTICAL
    judged = judge("case", old, other, Ledger())
    assert judged.verdict is Verdict.REGRESSION
    assert judged.why.startswith("gradient: 2.0 → 3.0 ")
    assert judged.why.endswith("; first diverges in layer.fc2 (forward)")
    assert judged.divergence is not None


PROBE = '''
import numpy
from harness.observe.trace import Step, TracedTensor
from harness.probes import probe


@probe(enters=("toy:build",), returns=("x",), tensors=("y",))
def traced(run):
    """Two modules, the second scaled by what toy says."""
    y = numpy.ones(3, numpy.float32) * run.upstream("toy:build")().size
    for name, came_out in (("first", "same"), ("second", str(y[0]))):
        given, got = (TracedTensor("float32", (3,), value) for value in ("same", came_out))
        run.trace.append(Step(name, "forward", (given,), (got,)))
    return {"x": 1, "y": y}
'''


def test_a_probe_fills_the_trace_and_the_record_keeps_where_sides_part(project: Project) -> None:
    file = project.write("traced.py", PROBE)
    project.edit(2, "size=1):\n    return Config(size)", "size=1):\n    return Config(3)")
    with running(project) as toys:
        outcome = ToyRunner(toys.runner, file)("traced")
        [record] = toys.events("case")
    assert outcome.judged.why.endswith("; first diverges in second (forward)")
    assert record["divergence"]["module"] == "second"
    assert "output 0: float32[3] 1.0 → float32[3] 3.0" in outcome.message
