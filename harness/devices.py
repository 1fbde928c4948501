"""The GPUs of this host, asked of the driver's own tool: the controller imports no torch."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

_FIELDS = ("index", "uuid", "name", "compute_cap", "memory.total", "driver_version")
_SECONDS = 30


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        id: how `CUDA_VISIBLE_DEVICES` names it: its index in the order of the PCI bus.
        capability: e.g. `9.0`.
        memory: MiB in all.
        driver: version of the driver.
    """

    id: str
    uuid: str
    name: str
    capability: str
    memory: int
    driver: str


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that this process may use, `CUDA_VISIBLE_DEVICES` respected; none where there is no driver."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return visible(parse(answer.stdout), os.environ.get("CUDA_VISIBLE_DEVICES")) if answer.returncode == 0 else ()


def parse(listed: str) -> tuple[Gpu, ...]:
    """The GPUs in the tool's answer; lines that are none are left out."""
    rows = [[field.strip() for field in line.split(",")] for line in listed.splitlines()]
    return tuple(
        Gpu(index, uuid, name, capability, int(memory), driver)
        for index, uuid, name, capability, memory, driver in (row for row in rows if len(row) == len(_FIELDS))
    )


def visible(found: tuple[Gpu, ...], chosen: str | None) -> tuple[Gpu, ...]:
    """Those of `found` that a value of `CUDA_VISIBLE_DEVICES` names by index or UUID, in its order; all for None."""
    if chosen is None:
        return found
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    by_name = {name: gpu for gpu in found for name in (gpu.id, gpu.uuid)}
    return tuple(by_name[name] for name in names if name in by_name)
