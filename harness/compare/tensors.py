"""Compare the tensors of two sides: bitwise, then within the measured noise floor, else a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.compare.elements import Array, ArrayTensors, ObservedTensors, Tensors, elements
from harness.compare.measure import Statistics, bitwise_equal, measure
from harness.compare.noise import Check, Floor, Rounding, Source, coarsest, judge_noise, measure_floor
from harness.compare.trees import ABSENT, Difference, Kind
from harness.observe.observation import Observation

__all__ = ["TensorVerdict", "compare_arrays", "compare_tensors", "elements", "tensor_differences"]

TensorKind = Literal["identical", "within_noise", "different"]
Shape = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class TensorVerdict:
    """What the comparison of one tensor came to.

    Attributes:
        name: path of the tensor in the observation's tree.
        kind: `identical` (bitwise), `within_noise` or `different`.
        old: dtype and shape on the old side, None where it has no such tensor.
        new: the same on the new side.
        statistics: how the two differ; None where they are identical, or cannot be measured against each other.
        floor: the floor that the tensor was judged by; None where only bitwise is identical.
        checks: the bounds that follow from the floor.
        why: why there is no floor, where there could have been one.
    """

    name: str
    kind: TensorKind
    old: Shape | None
    new: Shape | None
    statistics: Statistics | None = None
    floor: Floor | None = None
    checks: tuple[Check, ...] = ()
    why: str = ""

    @property
    def decisive(self) -> Check | None:
        """The first bound that does not hold; the one on the relative error where all hold."""
        failed = next((check for check in self.checks if not check.passed), None)
        return failed or next((check for check in self.checks if check.quantity == "relative error"), None)

    @property
    def allowed(self) -> float:
        """The tolerance that was allowed, in what `decisive` bounds; 0 is bitwise."""
        return self.decisive.allowed if self.decisive else 0.0

    @property
    def needed(self) -> float:
        """The tolerance that would have passed, in what `decisive` bounds, else in the relative error."""
        if self.decisive:
            return self.decisive.needed
        return self.statistics.relative_error if self.statistics else 0.0

    @property
    def difference(self) -> Difference | None:
        """The same as one line of a verdict; None if identical."""
        if self.kind == "identical":
            return None
        found = self.statistics
        if found is None or found.worst is None:
            kind: Kind = "removed" if self.new is None else "added" if self.old is None else "changed"
            return Difference(self.name, kind, _kind(self.old), _kind(self.new))
        share = f"{found.differing} of {found.size} elements differ, worst at {list(found.worst.index)}"
        bound = f"; {self.decisive}" if self.decisive else ""
        return Difference(self.name, "changed", found.worst.old, f"{found.worst.new} ({share}{bound})")

    @property
    def message(self) -> str:
        """Everything a reader needs, in the manner of `torch.testing.assert_close`."""
        lines = [f"{self.name}: {self.kind.replace('_', ' ')}"]
        found = self.statistics
        if found is None or found.worst is None:
            return "\n".join([*lines, *([] if self.old == self.new else [f"  {_kind(self.old)} → {_kind(self.new)}"])])
        lines += [
            f"  elements that differ: {found.differing} of {found.size} ({found.share:.3%})",
            f"  worst at {list(found.worst.index)}: old {found.worst.old}, new {found.worst.new}"
            f" (distance {found.worst.distance:.6g}); largest distance of any: {found.max_ulp} ulp",
            f"  relative error {found.relative_error:.3g}, of the worst row {found.row_error:.3g}",
            f"  shift {found.shift:.3g} ({found.shift_bias:+.1f} standard errors),"
            f" scale {found.scale:.3g} ({found.scale_bias:+.1f} standard errors)",
        ]
        if found.nan != (0, 0) or found.inf != (0, 0):
            places = ", ".join(str(list(index)) for index in found.moved) or "all in the same places"
            lines.append(f"  NaN {found.nan[0]} → {found.nan[1]}, infinite {found.inf[0]} → {found.inf[1]}: {places}")
        lines += [f"  too far: {check}" for check in self.checks if not check.passed]
        given = f"{self.floor}" if self.floor else f"bitwise equality{f' ({self.why})' if self.why else ''}"
        return "\n".join([*lines, f"  allowed: {given}; would have passed: relative error {found.relative_error:.3g}"])


def compare_tensors(
    old: Observation,
    new: Observation,
    repeats: Sequence[Observation] = (),
    perturbed: Sequence[Observation] = (),
) -> list[TensorVerdict]:
    """Compare every tensor of two observations of one rank.

    Args:
        repeats: further runs of `old`, same rank.
        perturbed: runs of `old` with the case's inputs moved by one ulp, same rank.

    Returns:
        One verdict per tensor of either side, by name.

    Raises:
        ObservationError: the elements of a tensor cannot be read.
    """
    return _compare(
        ObservedTensors(old),
        ObservedTensors(new),
        [ObservedTensors(run) for run in repeats],
        [ObservedTensors(run) for run in perturbed],
    )


def compare_arrays(
    old: Mapping[str, Array],
    new: Mapping[str, Array],
    repeats: Sequence[Mapping[str, Array]] = (),
    perturbed: Sequence[Mapping[str, Array]] = (),
    *,
    few_ulp: bool = True,
) -> list[TensorVerdict]:
    """The same for arrays in memory, such as shards put together (see `harness.compare.shards`).

    Args:
        few_ulp: see `harness.compare.noise.judge_noise`.
    """
    return _compare(
        ArrayTensors(old),
        ArrayTensors(new),
        [ArrayTensors(run) for run in repeats],
        [ArrayTensors(run) for run in perturbed],
        few_ulp=few_ulp,
    )


def tensor_differences(old: Observation, new: Observation) -> list[Difference]:
    """Every tensor that is missing on one side, or differs in dtype, shape or any element.

    Raises:
        ObservationError: the elements of a tensor cannot be read.
    """
    return [found for verdict in compare_tensors(old, new) if (found := verdict.difference)]


def _compare(
    old: Tensors,
    new: Tensors,
    repeats: Sequence[Tensors],
    perturbed: Sequence[Tensors],
    *,
    few_ulp: bool = True,
) -> list[TensorVerdict]:
    names = sorted(old.names() | new.names())
    equal = {name for name in names if _equal(old, new, name)}
    noisy = len(equal) < len(names) and any(not _equal(old, run, name) for run in repeats for name in old.names())
    floors: dict[Source, Sequence[Tensors]] = {}
    if noisy:
        floors["repeats"] = repeats
    if perturbed:
        floors["perturbed"] = perturbed
    why = "old repeats itself bit for bit" if repeats and not noisy else "" if repeats else "old ran once"
    rounding = coarsest(old.kind(name) for name in old.names())
    return [
        TensorVerdict(name, "identical", old.kind(name), new.kind(name))
        if name in equal
        else _judged(name, old, new, floors, rounding, why, few_ulp)
        for name in names
    ]


def _judged(
    name: str,
    old: Tensors,
    new: Tensors,
    floors: Mapping[Source, Sequence[Tensors]],
    rounding: Rounding,
    why: str,
    few_ulp: bool,
) -> TensorVerdict:
    """A tensor that is not bitwise equal, judged by the first floor that allows it, else by the first floor."""
    kinds = [side.kind(name) if name in side.names() else None for side in (old, new)]
    if kinds[0] is None or kinds[0] != kinds[1]:
        return TensorVerdict(name, "different", kinds[0], kinds[1])
    ours = old.array(name)
    statistics = measure(ours, new.array(name))
    different = TensorVerdict(name, "different", kinds[0], kinds[1], statistics, why=why)
    judged = []
    for source, runs in floors.items():
        if any(name not in run.names() or run.kind(name) != kinds[0] for run in runs):
            different = TensorVerdict(
                name, "different", kinds[0], kinds[1], statistics, why=f"a further run of old ({source}) lacks it"
            )
            continue
        floor = measure_floor(source, ours, [run.array(name) for run in runs], rounding)
        checks = judge_noise(statistics, floor, kinds[0][0], rounding, few_ulp=few_ulp)
        kind: TensorKind = "within_noise" if all(check.passed for check in checks) else "different"
        judged.append(TensorVerdict(name, kind, kinds[0], kinds[1], statistics, floor, checks))
    return next((verdict for verdict in judged if verdict.kind == "within_noise"), (judged or [different])[0])


def _equal(old: Tensors, new: Tensors, name: str) -> bool:
    if name not in old.names() or name not in new.names() or old.kind(name) != new.kind(name):
        return False
    digest = old.digest(name)
    if digest is not None and digest == new.digest(name):
        return True
    return bitwise_equal(old.array(name), new.array(name))


def _kind(kind: Shape | None) -> str:
    return ABSENT if kind is None else f"{kind[0]}{list(kind[1])}"
