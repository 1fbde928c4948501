"""What `parity doctor` says of a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_schedule import LISTED
from toy_project import Project

TOPOLOGY = """	GPU0	GPU1	CPU Affinity
GPU0	 X 	NV18	0-31
GPU1	NV18	 X 	0-31

Legend:
  GPU9 = nothing
"""


@pytest.fixture
def host(project: Project) -> Project:
    """A host with two GPUs, as far as the driver's tool says."""
    shown = f"if [ $1 = topo ]; then cat <<'EOF'\n{TOPOLOGY}EOF\nelse cat <<'EOF'\n{LISTED}EOF\nfi\n"
    tool = project.write("bin/nvidia-smi", f"#!/bin/sh\n{shown}")
    tool.chmod(0o755)
    project.environment["PATH"] = f"{tool.parent}:{project.environment['PATH']}"
    project.environment.pop("CUDA_VISIBLE_DEVICES", None)
    return project


def test_a_host_without_gpus(project: Project, tmp_path: Path) -> None:
    project.environment["PATH"] = str(tmp_path / "empty")
    done = project.parity("doctor", "--base", "locked")
    assert done.returncode == 0, done.stderr
    assert "none: no driver answers" in done.stdout
    assert "--lane cuda: not run, there is no GPU" in done.stdout


def test_gpus_links_and_the_layouts_that_fit(host: Project) -> None:
    done = host.parity("doctor", "--base", "locked")
    assert "0: NVIDIA H200, 143771 MiB, sm_90" in done.stdout
    assert "GPU0 X NV18; GPU1 NV18 X" in done.stdout
    assert "spec local alone: single, dp2," in done.stdout
    assert "need more GPUs" in done.stdout
    assert "transformer-engine-torch absent" in " ".join(done.stdout.split())


def test_what_a_base_lacks_must_be_mended(host: Project) -> None:
    done = host.parity("doctor", "--base", "current")
    assert done.returncode == 1
    assert "`parity bundle` brings them" in done.stdout
    done = host.parity("doctor", "--base", "no/such/python")
    assert (done.returncode, "does not run" in done.stdout) == (1, True)


def test_a_bundle_that_is_none(host: Project) -> None:
    done = host.parity("doctor", "--bundle", "nowhere")
    assert (done.returncode, "is no bundle" in done.stdout) == (1, True)
