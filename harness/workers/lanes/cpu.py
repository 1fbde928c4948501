"""The CPU lane: gloo between ranks, device calls answered for the CPU, fused kernels off."""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from harness.observe.host import host_class
from harness.observe.run import Run, Unavailable
from harness.workers import transformer_engine
from harness.workers.lanes import checkpoints, gloo, local_spec

_COLLECTIVE_TIMEOUT = timedelta(minutes=5)


_OVER_GLOO = {"batch_p2p_comm": False, "overlap_p2p_comm": True, "variable_seq_lengths": False}
"""For interleaved pipeline stages. Two stages are each other's successor and predecessor, and gloo tells messages of
one pair of ranks apart by their order alone; so the two directions need a group each, and shapes no messages."""


@dataclass(frozen=True)
class CpuLane:
    """No accelerator: gloo between ranks, device calls answered for the CPU, fused kernels off."""

    name: str = "cpu"
    device: str = "cpu"
    initialised_by: str | None = None
    """No import can spoil a fork here."""

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

    def importing(self) -> AbstractContextManager[None]:
        """Around the imports: nothing to watch."""
        return contextlib.nullcontext()

    def warm(self) -> None:
        """Do once what each child would otherwise do again. Works in a stack without torch or Megatron-Core."""
        checkpoints.start_manager()

    def enter(self, run: Run) -> None:
        """Set up a forked child. Costs nothing where the worker has not imported torch."""
        transformer_engine.record(run)
        if "torch" in sys.modules:
            _answer_device_calls(run)
        checkpoints.give_queue(run)

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

    def force(self, run: Run, config: Any, spec: str = local_spec.NAME) -> None:
        """Make a Megatron config build the local layers, the only ones that run on the CPU.

        Raises:
            Unavailable: the config asks for something that has no CPU implementation at all.
        """
        if spec != local_spec.NAME:
            raise Unavailable(f"the layers of spec {spec!r} run on a GPU: --lane cuda")
        interleaved = getattr(config, "virtual_pipeline_model_parallel_size", None) is not None
        local_spec.force_local_spec(run, config, **(_OVER_GLOO if interleaved else {}))

    def leave(self, run: Run, *, raised: bool) -> dict[str, Any]:
        """What the observation's environment says of this lane."""
        return {"host": host_class()}

    def fault_of(self, error: BaseException) -> str | None:
        """None: every exception of upstream is an observation here."""
        return None


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
    for reference, answer in gloo.answers(torch).items():
        setattr(torch.distributed, reference.rpartition(".")[2], answer)
        run.stand_in(reference, f"{gloo.__name__}:answers", "gloo has no collective of unequal parts")
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

    barrier = torch.distributed.barrier

    answers: dict[str, Any] = {
        "torch.distributed.barrier": lambda *arguments, device_ids=None, **keywords: barrier(*arguments, **keywords),
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
