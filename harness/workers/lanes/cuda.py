"""The CUDA lane: NCCL between ranks on the GPUs of one host, with settings that make a run repeatable.

Ranks are forked from a worker that has imported everything, which the CUDA driver allows only while nobody has
initialised it. So the worker asks about GPUs through NVML, keeps out packages that touch the driver when imported, and
watches every import; if one initialises the driver all the same, ranks are fresh processes that import again.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness.observe.run import HarnessFault, Run, Unavailable
from harness.workers import transformer_engine
from harness.workers.lanes import checkpoints, driver, gpu, local_spec

_COLLECTIVE_TIMEOUT = timedelta(minutes=5)
_LAST_RANK_SECONDS = 10.0

_ALWAYS = {
    # Ask NVML how many GPUs there are: asking the driver would initialise it in the worker.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # Megatron-Core insists on it where tensor parallel ranks overlap communication.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # NVLink multicast is not repeatable, and on a shared host a crash while it is in use can take the switch along.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    # The ranks of a case are on one host.
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    # NCCL says in its log which settings it took.
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV",
    # A pool of threads does not survive a fork, and compiling in processes of its own leaves those behind.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

DETERMINISTIC = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_TUNER_PLUGIN": "",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}
"""Environment variables that make sums come out in one order; they are set before anything is imported."""

_CONFIRMED_BY_NCCL = ("NCCL_ALGO", "NCCL_PROTO")

_APEX_GRADIENTS = "fused_weight_gradient_mlp_cuda"
"""Apex's extension that accumulates gradients in Megatron-Core's own layers, with or without Transformer Engine."""

HIDDEN = ("torch_geometric",)
"""Optional packages that initialise the driver when imported, and that no case needs."""


class CudaLane:
    """NCCL on the GPUs of one host.

    Attributes:
        deterministic: False for the settings that production has; then a noise floor judges what differs.
        fresh: whether this process imported everything for one rank, rather than being forked from a worker.
    """

    name = "cuda"
    device = "cuda"

    def __init__(self, *, deterministic: bool = True, fresh: bool = False) -> None:
        self.deterministic = deterministic
        self.fresh = fresh
        self._initialisers: list[str] = []
        self._store: Any = None
        self._undetermined: list[str] = []

    @property
    def initialised_by(self) -> str | None:
        """The module whose import initialised the driver in this process, None if none did."""
        return self._initialisers[0] if self._initialisers else None

    def prepare(self) -> None:
        """Settle the environment, and hide what must not be imported. Call it before any upstream import."""
        _prefer_libraries_of_torch()
        os.environ.update(_ALWAYS)
        if self.deterministic:
            os.environ.update(DETERMINISTIC)
        for name in HIDDEN:
            sys.modules[name] = None  # type: ignore[assignment]  # what `import` and `find_spec` take for absent
        transformer_engine.install()

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Answer what is asked about GPUs without the driver, and notice which import initialises it all the same."""
        with driver.first_initialiser(self._initialisers), gpu.capability_through_nvml():
            yield

    def warm(self) -> None:
        """Do once what each rank would otherwise do again. Works in a stack without torch or Megatron-Core."""
        checkpoints.start_manager()

    def enter(self, run: Run) -> None:
        """Give this rank its GPU, and the settings that torch itself keeps.

        Raises:
            Unavailable: torch sees fewer GPUs than the case has ranks.
            HarnessFault: a setting did not take.
        """
        transformer_engine.record(run)
        checkpoints.give_queue(run)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(run.devices)
        os.environ["NCCL_DEBUG_FILE"] = str(_nccl_log(run))
        import torch

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found < run.world_size:
            raise Unavailable(f"{run.world_size} rank(s) need as many GPUs; torch {torch.__version__} sees {found}")
        torch.cuda.init()
        torch.cuda.set_device(run.rank)
        if self.deterministic:
            # Where there is no deterministic kernel torch warns instead of raising, and the observation lists it.
            torch.use_deterministic_algorithms(True, warn_only=True)
            self._listen_to_warnings()
            self._check_settings()

    def start_distributed(self, run: Run) -> None:
        """Join the ranks of this case over NCCL, through a file in the case's folder. A second call does nothing."""
        import torch

        if torch.distributed.is_initialized():
            return
        os.environ.update(RANK=str(run.rank), WORLD_SIZE=str(run.world_size), LOCAL_RANK=str(run.rank))
        self._store = torch.distributed.FileStore(str(run.folder / "rendezvous"), run.world_size)
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl",
            store=self._store,
            rank=run.rank,
            world_size=run.world_size,
            timeout=_COLLECTIVE_TIMEOUT,
        )

    def force(self, run: Run, config: Any, spec: str = local_spec.NAME) -> None:
        """Make a Megatron config build the layers of `spec`: `local`, or `transformer_engine`.

        The latter forces nothing but what needs Apex, where there is none.

        Raises:
            Unavailable: Transformer Engine is not installed, or the local layers can't do what the config asks.
        """
        if spec == local_spec.NAME:
            local_spec.force_local_spec(run, config)
        elif transformer_engine.is_installed():
            raise Unavailable("Transformer Engine is not installed in this base environment")
        elif importlib.util.find_spec(_APEX_GRADIENTS) is None:
            local_spec.force_fields(run, config, {"gradient_accumulation_fusion": False})

    def leave(self, run: Run, *, raised: bool) -> dict[str, Any]:
        """What the observation's environment says of this lane: GPU, libraries, settings as read back, peak memory.

        A rank waits for the others, so that none ends while its memory is still read.

        Raises:
            HarnessFault: a setting was changed while the probe ran, or NCCL took another.
        """
        import torch

        if not raised:
            torch.cuda.synchronize()
            self._wait_for_others(run)
        facts = gpu.facts(torch)
        settings: dict[str, Any] = {name: os.environ.get(name) for name in (*DETERMINISTIC, "NCCL_NVLS_ENABLE")}
        settings["use_deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
        if self.deterministic:
            self._check_settings()
            settings["confirmed_by_nccl"] = _confirmed(_nccl_log(run))
        return {
            "host": facts,
            "settings": settings,
            "deterministic": self.deterministic,
            "undetermined": sorted(set(self._undetermined)),
            "gpu_memory": {
                "peak_allocated": torch.cuda.max_memory_allocated(),
                "peak_reserved": torch.cuda.max_memory_reserved(),
            },
            "process": "fresh" if self.fresh else "forked",
        }

    def fault_of(self, error: BaseException) -> str | None:
        """What went wrong with the device, in one line: that is no observation. None for any other exception."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        first = str(error).strip().split("\n", 1)[0]
        if isinstance(error, torch.OutOfMemoryError):
            peak = torch.cuda.max_memory_allocated()
            return f"out of GPU memory, peak {peak / (1 << 30):.2f} GiB allocated: {first}"
        if isinstance(error, torch.AcceleratorError) or "CUDA error: " in first:
            return f"GPU fault: {first}"
        return None

    def _check_settings(self) -> None:
        import torch

        found: dict[str, Any] = {name: os.environ.get(name) for name in DETERMINISTIC}
        found["torch.use_deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
        found["torch.backends.cudnn.benchmark"] = torch.backends.cudnn.benchmark
        wanted: dict[str, Any] = {
            **DETERMINISTIC,
            "torch.use_deterministic_algorithms": True,
            "torch.backends.cudnn.benchmark": False,
        }
        for name, value in wanted.items():
            if found[name] != value:
                raise HarnessFault(f"{name} is {found[name]!r}, and a deterministic run needs {value!r}")

    def _listen_to_warnings(self) -> None:
        """Note each operation that torch says it has no deterministic kernel for; the warnings go on as they were."""
        shown = warnings.showwarning

        def listen(message: Warning | str, *where: Any, **more: Any) -> None:
            told = re.match(r"(\S+) does not have a deterministic implementation", str(message))
            if told:
                self._undetermined.append(told[1])
            shown(message, *where, **more)

        warnings.showwarning = listen
        warnings.filterwarnings("always", message=".*does not have a deterministic implementation")

    def _wait_for_others(self, run: Run) -> None:
        """Wait until every rank is here, but not for one that never comes: that one's end is told elsewhere."""
        if self._store is None:
            return
        deadline = time.monotonic() + _LAST_RANK_SECONDS
        here = self._store.add("ranks that left", 1)
        while here < run.world_size and time.monotonic() < deadline:
            time.sleep(0.005)
            here = self._store.add("ranks that left", 0)


def _nccl_log(run: Run) -> Path:
    return run.folder / f"nccl-of-rank-{run.rank}.log"


def _confirmed(log: Path) -> list[str]:
    """The settings that NCCL says, in its log, to have taken from the environment; none where it never started.

    Raises:
        HarnessFault: it took another value than asked.
    """
    text = log.read_text(errors="replace") if log.exists() else ""
    found = dict(re.findall(r"\b(NCCL_\w+) set by environment to (.+?)\.?$", text, re.MULTILINE))
    for name in _CONFIRMED_BY_NCCL:
        if found.get(name, DETERMINISTIC[name]) != DETERMINISTIC[name]:
            raise HarnessFault(f"NCCL took {name}={found[name]}, and a deterministic run needs {DETERMINISTIC[name]}")
    return [name for name in _CONFIRMED_BY_NCCL if name in found]


def _prefer_libraries_of_torch() -> None:
    """Start this process again with the CUDA libraries that torch was built with before the system's.

    torch refuses a cuDNN older than its own, and the loader reads its path at the start of a process only. Where torch
    brings no libraries, or they come first already, nothing happens.
    """
    nvidia = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (nvidia.submodule_search_locations or ())] if nvidia else []
    own = [str(folder) for root in roots for folder in sorted(root.glob("*/lib"))]
    # Transformer Engine looks here before it asks the loader, and for a file name that torch's cuDNN does not have.
    for cudnn in (root / "cudnn" for root in roots if (root / "cudnn").is_dir()):
        os.environ["CUDNN_HOME"] = str(cudnn)
    path = os.environ.get("LD_LIBRARY_PATH", "")
    wanted = os.pathsep.join([*own, *([path] if path else [])])
    if own and not path.startswith(os.pathsep.join(own)):
        os.environ["LD_LIBRARY_PATH"] = wanted
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
