"""How far off the outputs of every module are, forward and backward, estimated from the sketches of two traces."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.observe.trace import Step, TracedTensor

Trace = Sequence[Step]
Call = tuple[str, str, int]
"""Module, phase, and which call of it."""

MOST = 400
"""Modules of a case that are told."""


@dataclass(frozen=True)
class ModuleError:
    """One module in one phase.

    Attributes:
        error: ‖new - old‖ / ‖old‖ of its outputs, about; of its calls and ranks the largest.
        noise: the same of old against further runs of it; None where it ran once.
    """

    module: str
    phase: str
    error: float
    noise: float | None = None


def module_errors(
    old: Sequence[Trace], new: Sequence[Trace], again: Sequence[Sequence[Trace]] = ()
) -> tuple[ModuleError, ...]:
    """The modules that both sides ran, in the order of old's lowest rank.

    Args:
        old: one trace per rank; likewise `new`.
        again: further runs of old, as it was or with perturbed inputs.
    """
    errors = _largest(old, new)
    noise = [_largest(old, run) for run in again if len(run) == len(old)]
    return tuple(
        ModuleError(*key, error, max((run.get(key, 0.0) for run in noise), default=None))
        for key, error in list(errors.items())[:MOST]
    )


def keyed(trace: Trace) -> dict[Call, Step]:
    """The steps of a trace by what was called."""
    calls: Counter[tuple[str, str]] = Counter()
    found: dict[Call, Step] = {}
    for step in trace:
        found[step.module, step.phase, calls[step.module, step.phase]] = step
        calls[step.module, step.phase] += 1
    return found


def _largest(old: Sequence[Trace], new: Sequence[Trace]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for ours, theirs in zip(old, new, strict=True):
        for (module, phase), error in _of_rank(keyed(ours), keyed(theirs)):
            found[module, phase] = max(error, found.get((module, phase), 0.0))
    return found


def _of_rank(old: Mapping[Call, Step], new: Mapping[Call, Step]) -> Iterator[tuple[tuple[str, str], float]]:
    for call, step in old.items():
        error = _error(step.outputs, new[call].outputs) if call in new else None
        if error is not None:
            yield call[:2], error


def _error(old: Sequence[TracedTensor], new: Sequence[TracedTensor]) -> float | None:
    """None where the outputs cannot be told apart by number: other shapes, no fractions, no finite norm."""
    pairs = [(ours, theirs) for ours, theirs in zip(old, new, strict=False) if ours.shape == theirs.shape]
    known = [(ours, theirs) for ours, theirs in pairs if ours.sketch and theirs.sketch]
    if not known or len(pairs) != len(old) or len(old) != len(new):
        return None
    if all(ours == theirs for ours, theirs in known):
        return 0.0
    distances = [np.linalg.norm(_numbers(theirs) - _numbers(ours)) for ours, theirs in known]
    whole = float(np.linalg.norm([ours.norm or 0.0 for ours, _ in known]))
    distance = float(np.linalg.norm(distances))
    return distance / whole if whole else None


def _numbers(tensor: TracedTensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.frombuffer(base64.b64decode(tensor.sketch), dtype=np.float64)
