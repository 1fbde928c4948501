"""A trace: what went into and came out of every module, in the order of execution. It says where sides part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SKETCH = 16
"""Numbers that a sketch of a tensor consists of."""

Phase = Literal["forward", "backward"]


@dataclass(frozen=True)
class TracedTensor:
    """A tensor that passed a module. Two are equal if dtype, shape and hash are; the rest is for readers.

    Attributes:
        dtype: torch's name.
        shape: sizes, outermost first.
        sha256: the first 16 hexadecimal digits of the hash of the elements.
        norm: Euclidean norm in float32, None where it is not finite or the dtype has no fractions.
        sketch: base64 of `SKETCH` float64: sums of the elements with fixed random signs, so that the sketch of a
            difference is the difference of sketches, and its norm about that of the difference (Johnson and
            Lindenstrauss 1984; within a fifth, mostly). Empty where there is no norm, for very large tensors, and for
            inputs and parameters of the forward phase, which nobody asks.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    norm: float | None = field(default=None, compare=False)
    sketch: str = field(default="", compare=False)

    def __str__(self) -> str:
        norm = "" if self.norm is None else f" norm {self.norm:.9g}"
        return f"{self.dtype}{list(self.shape)}{norm} {self.sha256[:8]}"


@dataclass(frozen=True)
class Step:
    """One call of a module, when it ended: a module inside another comes before it.

    Attributes:
        module: global name of the module, layers and experts counted over all ranks; `(model)` for the outermost.
        inputs: tensors among its arguments; in the backward phase, gradients of its outputs.
        outputs: tensors among its results; in the backward phase, gradients of its inputs and of its own parameters
            (not reduced over ranks). An input that other modules use too has the sum of all its gradients.
        parameters: the parameters it holds itself, as they were; forward phase only.
    """

    module: str
    phase: Phase
    inputs: tuple[TracedTensor, ...]
    outputs: tuple[TracedTensor, ...]
    parameters: tuple[TracedTensor, ...] = ()
