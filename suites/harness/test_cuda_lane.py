"""The CUDA lane without a GPU: a torch that only says what it was told, and a driver's tool that lists two GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_schedule import LISTED
from toy_project import Project

from harness.observe.run import HarnessFault
from harness.workers.lanes import cuda, driver

TORCH = """
import os
from types import SimpleNamespace as _Names

__version__ = "2.99"
version = _Names(cuda="13.0")
_state = {"deterministic": False, "device": None}


class OutOfMemoryError(RuntimeError):
    pass


class AcceleratorError(RuntimeError):
    pass


def use_deterministic_algorithms(on, warn_only=False):
    _state["deterministic"] = on


def are_deterministic_algorithms_enabled():
    return _state["deterministic"]


def _visible():
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


backends = _Names(cudnn=_Names(benchmark=False, version=lambda: 91900))
cuda = _Names(
    device_count=lambda: len(_visible()),
    is_available=lambda: bool(_visible()),
    is_initialized=lambda: False,
    set_device=lambda index: _state.update(device=index),
    current_device=lambda: _state["device"],
    get_device_name=lambda index: "GPU " + _visible()[index],
    get_device_capability=lambda index=None: (9, 0),
    synchronize=lambda: None,
    init=lambda: None,
    max_memory_allocated=lambda: 3 << 30,
    max_memory_reserved=lambda: 4 << 30,
    nccl=_Names(version=lambda: (2, 28, 9)),
)
distributed = _Names(is_available=lambda: False)
"""
NVML = """
nvmlInit = nvmlShutdown = lambda: None
nvmlSystemGetDriverVersion = lambda: "580.1"
"""
PROBES = '''
import os, sys
from harness.probes import probe

PRELOAD = ("torch", "toy")


@probe(enters=("toy:build",), returns=("config.size",))
def seen(run, *, do: str = "nothing"):
    """Where a rank runs, and what may go wrong there."""
    import torch, warnings
    config = run.upstream("toy:build")()
    if do == "switch_off":
        torch.use_deterministic_algorithms(False)
    if do == "environment":
        os.environ["NCCL_ALGO"] = "Tree"
    if do == "exhaust":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 99 GiB")
    if do == "illegal":
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    if do == "nccl_took_another":
        open(run.folder / f"nccl-of-rank-{run.rank}.log", "w").write("x NCCL INFO NCCL_PROTO set by environment to LL.")
    if do == "undetermined":
        warnings.warn("cumsum_cuda_kernel does not have a deterministic implementation, but you set …")
    return {"config": config, "rank": run.rank, "device": torch.cuda.current_device()}
'''


@pytest.fixture
def host(project: Project) -> Project:
    """A host with two GPUs, and toy stacks that bring a torch."""
    tool = project.write("bin/nvidia-smi", f"#!/bin/sh\ncat <<'EOF'\n{LISTED}EOF\n")
    tool.chmod(0o755)
    project.environment["PATH"] = f"{tool.parent}:{project.environment['PATH']}"
    project.environment.pop("CUDA_VISIBLE_DEVICES", None)
    for side in (1, 2):
        project.write(f"trees/{side}/torch/__init__.py", TORCH)
        project.write(f"trees/{side}/pynvml/__init__.py", NVML)
    settings = project.folder / "pyproject.toml"
    more = '\n[tool.parity.distributions.toy]\npackages = ["toy", "torch", "pynvml"]\n'
    settings.write_text(settings.read_text() + more)
    project.write("gpu_probes.py", PROBES)
    return project


def case(project: Project, name: str, words: str, *options: str) -> dict[str, object]:
    """Run one case on the lane, and return its record."""
    project.write("test_one.py", f"def test_one(parity):\n    parity('gpu_probes.py::seen', {words})\n")
    project.pytest("test_one.py", "--lane", "cuda", *options)
    [record] = project.records("case")
    assert record["case"] == name
    return record


def test_a_case_of_one_gpu_says_where_it_ran_and_how(host: Project) -> None:
    record = case(host, "seen", "layout='single'")
    assert (record["verdict"], record["lane"]) == ("identical", "cuda")
    old, new = record["sides"]  # type: ignore[misc]
    assert {old["host"]["gpu"], new["host"]["gpu"]} <= {"GPU 0", "GPU 1"}
    assert (old["host"]["driver"], old["host"]["nccl"], old["host"]["cudnn"]) == ("580.1", "2.28.9", "91900")
    assert old["settings"]["NCCL_ALGO"] == "Ring"
    assert old["settings"]["use_deterministic_algorithms"] is True
    assert old["gpu_memory"] == [{"peak_allocated": 3 << 30, "peak_reserved": 4 << 30}]
    assert str(record["command"]).endswith("--lane cuda --gpus 0,1")


def test_a_layout_with_more_ranks_than_gpus_is_not_run(host: Project) -> None:
    record = case(host, "seen[tp2_pp2]", "layout='tp2_pp2'")
    assert (record["verdict"], record["why"]) == ("not_run", "needs 4 GPU(s); this run has 0, 1")
    record = case(host, "seen[tp2]", "layout='tp2'", "--gpus", "1")
    assert (record["verdict"], record["why"]) == ("not_run", "needs 2 GPU(s); this run has 1")
    record = case(host, "seen[single→tp2]", "old_layout='single', new_layout='tp2'", "--gpus", "1")
    assert (record["verdict"], record["why"]) == ("not_run", "needs 2 GPU(s); this run has 1")


@pytest.mark.parametrize(
    ("do", "told"),
    [
        ("switch_off", "torch.use_deterministic_algorithms is False, and a deterministic run needs True"),
        ("environment", "NCCL_ALGO is 'Tree', and a deterministic run needs 'Ring'"),
        ("nccl_took_another", "NCCL took NCCL_PROTO=LL, and a deterministic run needs Simple"),
        ("exhaust", "out of GPU memory, peak 3.00 GiB allocated: CUDA out of memory. Tried to allocate 99 GiB"),
        ("illegal", "GPU fault: CUDA error: an illegal memory access was encountered (from "),
    ],
)
def test_what_is_no_observation_is_broken(host: Project, do: str, told: str) -> None:
    record = case(host, f"seen[{do}]", f"do='{do}'")
    assert record["verdict"] == "broken"
    assert told in str(record["why"])


def test_production_settings_may_change(host: Project) -> None:
    record = case(host, "seen[switch_off]", "do='switch_off'", "--nondeterministic")
    assert record["verdict"] == "identical"
    assert record["sides"][0]["settings"]["NCCL_ALGO"] is None  # type: ignore[index]


def test_an_operation_without_a_deterministic_kernel_is_listed(host: Project) -> None:
    record = case(host, "seen[undetermined]", "do='undetermined'")
    [old] = host.folder.glob(".parity/runs/*/cases/*/old/rank0/observation.json")
    assert record["verdict"] == "identical"
    assert '"undetermined": ["cumsum_cuda_kernel"]' in old.read_text()


def test_where_an_import_initialises_the_driver_ranks_are_fresh_processes(host: Project) -> None:
    for side in (1, 2):
        host.write(
            f"trees/{side}/toy/__init__.py",
            (host.folder / f"trees/{side}/toy/__init__.py").read_text()
            + "\nimport harness.workers.lanes.driver as driver\ndriver.initialised = lambda: True\n",
        )
    record = case(host, "seen", "layout='single'")
    assert record["verdict"] == "identical"
    assert host.records("imported")[-1]["initialised_by"] == "toy"
    [old] = host.folder.glob(".parity/runs/*/cases/*/old/rank0/observation.json")
    assert '"process": "fresh"' in old.read_text()


def test_the_cpu_lane_says_what_needs_a_gpu(host: Project) -> None:
    host.write("test_one.py", "def test_one(parity):\n    parity('gpu_probes.py::seen', lanes=['cuda'])\n")
    done = host.pytest("test_one.py")
    [record] = host.records("case")
    assert (record["verdict"], record["why"]) == ("not_run", "needs the cuda lane (--lane cuda)")
    assert (record["evidence"], done.returncode) == (False, 1)


def test_the_first_import_to_end_with_an_initialised_driver_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Callable[[object], int] = lambda _: 0 if "inner_module" in sys.modules else 3  # noqa: E731
    monkeypatch.setattr(driver, "_driver", lambda: SimpleNamespace(cuDeviceGetCount=asked))
    (tmp_path / "outer_module.py").write_text("import json\nimport inner_module\n")
    (tmp_path / "inner_module.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    found: list[str] = []
    with driver.first_initialiser(found):
        __import__("outer_module")
    assert found == ["inner_module"]
    for name in ("outer_module", "inner_module"):
        monkeypatch.delitem(sys.modules, name)


def test_a_host_without_a_driver_has_initialised_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_driver", lambda: None)
    assert driver.initialised() is False


def test_what_nccl_confirms(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    assert cuda._confirmed(log) == []
    log.write_text(
        "h:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Ring\nh NCCL_PROTO set by environment to Simple.\n"
    )
    assert cuda._confirmed(log) == ["NCCL_ALGO", "NCCL_PROTO"]
    log.write_text("NCCL_ALGO set by environment to Tree")
    with pytest.raises(HarnessFault, match="NCCL_ALGO=Tree"):
        cuda._confirmed(log)


@pytest.mark.parametrize(
    "words", [("compare",), ("explain",), ("check",), ("bisect", "--good=1", "--bad=2", "--axis=toy")]
)
def test_a_command_on_a_host_without_gpus_says_so(project: Project, tmp_path: Path, words: tuple[str, ...]) -> None:
    project.environment["PATH"] = str(tmp_path / "empty")
    command, *more = words
    done = project.parity(command, "probes.py::config", *more, "--lane", "cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "parity: --lane cuda: this host has no GPU; `parity doctor` says what it can run\n"
