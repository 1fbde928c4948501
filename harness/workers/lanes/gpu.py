"""What a rank says of its GPU and of the libraries that compute on it, and how a worker asks without the driver."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_CUBLAS_VERSION_PARTS = 3


def facts(torch: Any) -> dict[str, str]:
    """The host class of a rank with a GPU: what bitwise equality depends on besides the stack, as texts."""
    index = torch.cuda.current_device()
    found = {
        "machine": platform.machine(),
        "gpu": torch.cuda.get_device_name(index),
        "capability": "{}.{}".format(*torch.cuda.get_device_capability(index)),
        "driver": _nvml_driver(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "cudnn": str(torch.backends.cudnn.version()),
        "cublas": _cublas_version(str(torch.version.cuda)),
    }
    for name in ("transformer-engine", "transformer-engine-torch", "flash-attn"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@contextmanager
def capability_through_nvml() -> Iterator[None]:
    """Within the context, let `torch.cuda.get_device_capability` ask NVML: packages ask it while they are imported.

    Whoever binds the function in that time gets one that asks torch afterwards.
    """
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    original, active = torch.cuda.get_device_capability, True

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        return _nvml_capability() if active and not torch.cuda.is_initialized() else original(device)

    torch.cuda.get_device_capability = get_device_capability
    try:
        yield
    finally:
        torch.cuda.get_device_capability = original
        active = False


def _nvml_capability() -> tuple[int, int]:
    """Of the first GPU: those of a host that this lane runs on are alike."""
    import pynvml

    pynvml.nvmlInit()
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
    finally:
        pynvml.nvmlShutdown()
    return int(major), int(minor)


def _nvml_driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _cublas_version(cuda: str) -> str:
    """The version of the cuBLAS that torch has loaded; `unknown` where it has none under the usual name."""
    try:
        library = ctypes.CDLL(f"libcublas.so.{cuda.partition('.')[0]}")
    except OSError:
        return "unknown"
    parts = []
    for part in range(_CUBLAS_VERSION_PARTS):
        value = ctypes.c_int()
        library.cublasGetProperty(part, ctypes.byref(value))
        parts.append(str(value.value))
    return ".".join(parts)
