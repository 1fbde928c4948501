"""The host class of a rank: what bitwise equality depends on besides the stack."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

_DISPATCH = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that choose among the instruction sets of one processor."""


def host_class() -> dict[str, str]:
    """Machine, processor, instruction set and torch, as texts; torch's only where it is imported."""
    found = {"machine": platform.machine(), "processor": _processor()}
    found |= {name: os.environ[name] for name in _DISPATCH if name in os.environ}
    torch = sys.modules.get("torch")
    if torch is not None:
        found |= {"torch": str(torch.__version__), "instructions": str(torch.backends.cpu.get_cpu_capability())}
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or "unknown"
