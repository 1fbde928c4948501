"""Hooks that trace a model: what goes into and comes out of every module, forward and backward.

The backward phase is watched by hooks on tensors, not by full backward hooks: those put views of their own into the
graph, which upstream's pipeline schedule refuses.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.observe.evidence import FileMonitor
from harness.observe.run import Run
from harness.observe.trace import SKETCH, Step, TracedTensor
from harness.probes._weights import named_modules

_LARGEST_SKETCHED = 1 << 22


@contextmanager
def traced(run: Run, chunks: Sequence[Any]) -> Iterator[None]:
    """Trace the model chunks within the context; the steps, forward then backward, go to `run.trace`."""
    recorder = _Recorder()
    for name, module in named_modules(chunks):
        recorder.watch_module(name, module)
        if name == run.watched:
            recorder.note_sources(module, run.sources)
    try:
        yield
    finally:
        recorder.remove_hooks()
        run.trace += recorder.steps()


def traced_tensor(tensor: Any, *, sketched: bool = False) -> TracedTensor:
    """Hash and norm of a torch tensor, and its sketch where somebody will ask how far off it is."""
    import torch

    dense = tensor.detach().cpu().contiguous().clone()  # numpy's hold makes a storage unresizable for its owner
    norm = float(torch.linalg.vector_norm(dense.float())) if dense.is_floating_point() else math.nan
    return TracedTensor(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        sha256=hashlib.sha256(dense.reshape(-1).view(torch.uint8).numpy()).hexdigest()[:16],
        norm=norm if math.isfinite(norm) else None,
        sketch=_sketch(dense) if sketched and math.isfinite(norm) and dense.numel() <= _LARGEST_SKETCHED else "",
    )


def _sketch(dense: Any) -> str:
    import torch

    rows = -(-dense.numel() // SKETCH)
    signed = torch.zeros(rows * SKETCH, dtype=torch.float64)
    signed[: dense.numel()] = dense.reshape(-1) * _signs(dense.numel())
    return base64.b64encode(signed.view(rows, SKETCH).sum(0).numpy().tobytes()).decode()


@functools.lru_cache(maxsize=64)
def _signs(size: int) -> Any:
    """1 and -1 at random, the same for all tensors of a size."""
    import torch

    random = torch.Generator().manual_seed(size)
    return torch.randint(0, 2, (size,), generator=random).mul_(2).sub_(1).to(torch.float64)


@dataclass
class _Call:
    """One call of a module; gradients by the place of their tensor among outputs, or among inputs and parameters.

    `arrived` is when the last gradient of its own came, 0 if none did; `within` are the calls made inside it.
    """

    module: str
    depth: int
    inputs: tuple[TracedTensor, ...] = ()
    outputs: tuple[TracedTensor, ...] = ()
    parameters: tuple[TracedTensor, ...] = ()
    gradients_in: dict[int, TracedTensor] = field(default_factory=dict)
    gradients_out: dict[int, TracedTensor] = field(default_factory=dict)
    arrived: int = 0
    within: list[_Call] = field(default_factory=list)

    @property
    def ended_backward(self) -> tuple[int, int]:
        """A sort key: no call ends before those within it, whose parameters may get their gradients last."""
        return max(self.arrived, *(call.ended_backward[0] for call in self.within), 0), -self.depth

    def forward_step(self) -> Step:
        return Step(self.module, "forward", self.inputs, self.outputs, self.parameters)

    def backward_step(self) -> Step:
        return Step(self.module, "backward", _in_place(self.gradients_in), _in_place(self.gradients_out))


@dataclass
class _Watched:
    """A tensor whose gradient is awaited; it is held so that its identity stays its own."""

    tensor: Any
    wanted: list[tuple[_Call, dict[int, TracedTensor], int]] = field(default_factory=list)


class _Recorder:
    def __init__(self) -> None:
        self._ended: list[_Call] = []
        self._open: list[_Call] = []
        self._watched: dict[tuple[int, int], _Watched] = {}
        self._handles: list[Any] = []
        self._clock = itertools.count(1)

    def watch_module(self, name: str, module: Any) -> None:
        def before(module: Any, arguments: Any, keywords: Any) -> None:
            given, own = list(_tensors([arguments, keywords])), list(module.parameters(recurse=False))
            call = _Call(name, len(self._open), tuple(map(traced_tensor, given)))
            call.parameters = tuple(map(traced_tensor, own))
            if self._open:
                self._open[-1].within.append(call)
            self._open.append(call)
            for place, tensor in enumerate([*given, *own]):
                self._await_gradient(tensor, call, call.gradients_out, place)

        def after(_module: Any, _arguments: Any, _keywords: Any, results: Any) -> None:
            call, given = self._open.pop(), list(_tensors(results))
            call.outputs = tuple(traced_tensor(tensor, sketched=True) for tensor in given)
            for place, tensor in enumerate(given):
                self._await_gradient(tensor, call, call.gradients_in, place)
            self._ended.append(call)

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after, with_kwargs=True))

    def note_sources(self, module: Any, sources: FileMonitor) -> None:
        """Notice the source files entered within calls of a module, its backward's too where they lie in the same."""
        self._handles.append(module.register_forward_pre_hook(lambda *_: sources.start()))
        self._handles.append(module.register_forward_hook(lambda *_: sources.stop(), always_call=True))

    def remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._watched.clear()

    def steps(self) -> list[Step]:
        """Calls in the order in which they ended; a call without any gradient has no backward step."""
        backward = sorted((call for call in self._ended if call.arrived), key=lambda call: call.ended_backward)
        return [*(call.forward_step() for call in self._ended), *(call.backward_step() for call in backward)]

    def _await_gradient(self, tensor: Any, call: _Call, kept: dict[int, TracedTensor], place: int) -> None:
        if not tensor.requires_grad:
            return
        key = (id(tensor), tensor._version)  # what changes in place is another tensor to autograd
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(tensor)
            self._handles.append(tensor.register_hook(lambda gradient: self._arrived(watched, gradient)))
        watched.wanted.append((call, kept, place))

    def _arrived(self, watched: _Watched, gradient: Any) -> None:
        if gradient is None:
            return
        found = traced_tensor(gradient, sketched=True)
        for call, kept, place in reversed(watched.wanted):  # the innermost module saw the tensor last
            kept[place] = found
            call.arrived = next(self._clock)


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in nested sequences and mappings, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _in_place(found: dict[int, TracedTensor]) -> tuple[TracedTensor, ...]:
    return tuple(found[place] for place in sorted(found))
