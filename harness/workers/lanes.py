"""Lanes: where a case runs, and everything a lane must replace to run it there.

A lane is asked four times, in this order:

1. `prepare()` in the worker, before any upstream import,
2. `warm()` in the worker, after the imports and before the first fork,
3. `enter(run)` in the forked child, before the probe,
4. `start_distributed(run)` and `force(run, config)` by a probe that needs process groups or builds a model.

Whatever a lane puts in the place of a device call is listed in the run; whatever it forces in a config
is a mask. This module and `transformer_engine` are the only ones that replace anything on behalf of a lane, so an
exception whose innermost frame lies here is a fault of the harness, not an observation.

A CUDA lane is one more class in `LANES`.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from harness.observe.run import Run, Unavailable
from harness.workers import transformer_engine

_COLLECTIVE_TIMEOUT = timedelta(minutes=5)


_CHECKPOINT_WRITER = "megatron.core.dist_checkpointing.strategies.filesystem_async"

_MANAGERS: list[Any] = []
"""The worker's process for queues of checkpoint results, once it runs."""


class UnknownLaneError(ValueError):
    """A lane name that `LANES` does not hold."""


@dataclass(frozen=True)
class CpuLane:
    """No accelerator: gloo between ranks, device calls answered for the CPU, fused kernels off."""

    name: str = "cpu"

    def prepare(self) -> None:
        """Settle the environment and answer for Transformer Engine. Call it before any upstream import."""
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # One thread: the order of a sum must not depend on the host, and a pool of threads does not survive a fork.
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            os.environ[variable] = "1"
        # Compiling for the CPU costs seconds per function and gains nothing for one call.
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        # Megatron-Core insists on it where tensor parallel ranks overlap communication; harmless elsewhere.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        transformer_engine.install()

    def warm(self) -> None:
        """Do once what each child would otherwise do again. Works in a stack without torch or Megatron-Core."""
        if _CHECKPOINT_WRITER in sys.modules and not _MANAGERS:
            _MANAGERS.append(_warm_manager())

    def enter(self, run: Run) -> None:
        """Set up a forked child. Costs nothing where the worker has not imported torch."""
        transformer_engine.record(run)
        if "torch" in sys.modules:
            _answer_device_calls(run)
        for manager in _MANAGERS:
            # A queue for each rank, as upstream has it: ranks that shared one would get each other's results.
            sys.modules[_CHECKPOINT_WRITER]._results_queue = manager.Queue()  # type: ignore[attr-defined]
            run.stand_in(f"{_CHECKPOINT_WRITER}._results_queue", "a queue of the worker's manager", "a warm process")

    def start_distributed(self, run: Run) -> None:
        """Join the ranks of this case over gloo, through a file in the case's folder. A second call does nothing."""
        import torch

        _answer_device_calls(run)
        if torch.distributed.is_initialized():
            return
        os.environ.update(RANK=str(run.rank), WORLD_SIZE=str(run.world_size), LOCAL_RANK=str(run.rank))
        torch.distributed.init_process_group(
            "gloo",
            store=torch.distributed.FileStore(str(run.folder / "rendezvous"), run.world_size),
            rank=run.rank,
            world_size=run.world_size,
            timeout=_COLLECTIVE_TIMEOUT,
        )

    def force(self, run: Run, config: Any) -> None:
        """Make a Megatron config runnable on the CPU; each field that changes, or could have, becomes a mask.

        Fields the pin does not have are left alone.

        Raises:
            Unavailable: the config asks for something that has no CPU implementation at all.
        """
        if getattr(config, "multi_latent_attention", False):
            raise Unavailable("multi-latent attention needs Transformer Engine's attention; the cpu lane has none")
        owner = type(config).__name__
        for name, forced in _forced_fields(config).items():
            if hasattr(config, name):
                run.mask(f"{owner}.{name}", getattr(config, name), forced)
                setattr(config, name, forced)
        if getattr(config, "sequence_parallel", False):
            _let_torch_norms_be_sequence_parallel(run)


def _warm_manager() -> Any:
    """A manager process such as each save would start, which has imported what results are made of.

    It imports torch and its checkpoint package when the first result arrives: seconds that no case should pay.
    """
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.storage import WriteResult

    manager = multiprocessing.get_context("spawn").Manager()
    queue = manager.Queue()
    queue.put([WriteResult(MetadataIndex("warm"), 0, None)])
    queue.get()
    return manager


LANES = {lane.name: lane for lane in (CpuLane(),)}


def lane_named(name: str) -> CpuLane:
    """The lane called `name`.

    Raises:
        UnknownLaneError: with the names that exist.
    """
    try:
        return LANES[name]
    except KeyError:
        raise UnknownLaneError(f"unknown lane {name!r}; known: {', '.join(LANES)}") from None


def _forced_fields(config: Any) -> dict[str, Any]:
    """What has no CPU implementation: fused kernels, and layers that need Transformer Engine."""
    forced: dict[str, Any] = {
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
        "moe_permute_fusion": False,
    }
    if hasattr(config, "transformer_layer_spec"):
        forced["transformer_layer_spec"] = _local_layer_spec(config.transformer_layer_spec)
    return forced


def _local_layer_spec(own: Any) -> Any:
    """The provider's layer spec without Transformer Engine: its own function, where that one takes the choice."""
    if isinstance(own, functools.partial) and "use_transformer_engine" in own.keywords:
        return functools.partial(own.func, *own.args, **(own.keywords | {"use_transformer_engine": False}))
    from megatron.bridge.models.gpt_provider import local_layer_spec

    return local_layer_spec


def _let_torch_norms_be_sequence_parallel(run: Run) -> None:
    """Give the weights of torch's norms the flag that the fused norms, absent here, would set.

    Megatron-Core refuses torch's norms under sequence parallelism because nothing else would sum their gradients over
    tensor parallel ranks; the flag is what makes it do so. A second call does nothing.
    """
    from megatron.core.transformer import torch_norm

    original = torch_norm.WrappedTorchNorm.__new__
    if original.__module__ == __name__:
        return

    def flagged(cls: type, config: Any, *arguments: Any, **keywords: Any) -> Any:
        own, config.sequence_parallel = config.sequence_parallel, False
        try:
            norm = original(cls, config, *arguments, **keywords)
        finally:
            config.sequence_parallel = own
        for parameter in norm.parameters():
            parameter.sequence_parallel = own
        return norm

    torch_norm.WrappedTorchNorm.__new__ = flagged
    run.stand_in(
        "megatron.core.transformer.torch_norm:WrappedTorchNorm",
        f"{__name__}:{_let_torch_norms_be_sequence_parallel.__name__}",
        "it refuses sequence parallelism; the fused norms that allow it are absent on this host",
    )


class _InOrder:
    """A stream or an event of a device that does everything in order, so that waiting is nothing to do."""

    device = "cpu"

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass

    def synchronize(self, *_arguments: Any, **_keywords: Any) -> None:
        """Nothing to wait for."""

    wait = wait_event = wait_stream = record = synchronize

    def record_event(self, event: _InOrder | None = None) -> _InOrder:
        """The event given, or a new one."""
        return event or _InOrder()

    def query(self) -> bool:
        """Whether everything was done: always."""
        return True


def _answer_device_calls(run: Run) -> None:
    """Put answers for the CPU in the place of device calls, and list each in `run`. A second call does nothing."""
    import torch

    if torch.cuda.Stream is _InOrder:
        return
    for reference, answer in _device_answers(torch).items():
        *path, name = reference.split(".")
        owner: Any = sys.modules.get(".".join(path)) or getattr(sys.modules[".".join(path[:-1])], path[-1])
        setattr(owner, name, answer)
        run.stand_in(reference, f"{__name__}:{_device_answers.__name__}", "a device call, answered for the CPU")
    _translate_calls(run)


def _translate_calls(run: Run) -> None:
    """Translate, in calls of torch, what upstream writes for tensors on a GPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    class CudaMeansCpu(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
        ) -> Any:
            __tracebackhide__ = True
            arguments = tuple("cpu" if _is_cuda_name(value) else value for value in arguments)
            keywords = {name: "cpu" if _is_cuda_name(value) else value for name, value in (keywords or {}).items()}
            if getattr(function, "__name__", "") == "all_to_all_single":
                keywords = {
                    name: value.tolist() if name.endswith("split_sizes") and isinstance(value, torch.Tensor) else value
                    for name, value in keywords.items()
                }
            answer = function(*arguments, **keywords)
            if function is torch.Tensor.type and isinstance(answer, str):
                return answer.replace("torch.", "torch.cuda.", 1)
            return answer

    CudaMeansCpu().__enter__()
    by = f"{__name__}:{_translate_calls.__name__}"
    run.stand_in('device="cuda" in calls of torch', by, "there is no such device")
    run.stand_in("torch.Tensor.type()", by, "Megatron-Core's optimizers accept no type but torch.cuda.…Tensor")
    run.stand_in(
        "split sizes of all_to_all_single", by, "Megatron-Core makes numbers of them only where they are on a GPU"
    )


def _is_cuda_name(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("cuda")


def _device_answers(torch: Any) -> dict[str, Any]:
    generator = torch.default_generator
    stream = _InOrder()

    def nothing(*_arguments: Any, **_keywords: Any) -> None:
        return None

    def itself(value: Any, *_arguments: Any, **_keywords: Any) -> Any:
        return value

    def seed(value: int) -> None:
        generator.manual_seed(value)

    answers: dict[str, Any] = {
        "torch.cuda.Stream": _InOrder,
        "torch.cuda.Event": _InOrder,
        "torch.cuda.stream": lambda _stream: contextlib.nullcontext(),
        "torch.cuda.current_stream": lambda device=None: stream,
        "torch.cuda.default_stream": lambda device=None: stream,
        "torch.cuda.current_device": lambda: "cpu",
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.mem_get_info": lambda device=None: (0, 0),
        "torch.cuda.set_device": nothing,
        "torch.cuda.synchronize": nothing,
        "torch.cuda.manual_seed": seed,
        "torch.cuda.get_rng_state": lambda device="cuda": generator.get_state(),
        "torch.cuda.random.get_rng_state": lambda device="cuda": generator.get_state(),
        "torch.cuda.default_generators": {"cpu": generator},
        "torch.Tensor.cuda": itself,
        "torch.Tensor.record_stream": nothing,
        "torch.nn.Module.cuda": itself,
    }
    if "megatron.core.tensor_parallel.random" in sys.modules:
        # Its setter of the generator state waits for CUDA to be initialised before it runs.
        answers["megatron.core.tensor_parallel.random._lazy_call"] = lambda call: call()
    return answers
