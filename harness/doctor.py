"""What this host has and lacks, and what each suite can therefore run here. Nothing is built or imported for it."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from harness.devices import Gpu, gpus
from harness.layouts import LAYOUTS
from harness.stacks import Settings, unpack
from harness.stacks import base as bases
from harness.stacks import bundle as bundles

_WATCHED = ("torch", "triton", "nvidia-nccl-cu13", "nvidia-cudnn-cu13", "nvidia-cublas")
_OPTIONAL = {
    "transformer-engine-torch": "layers of spec transformer_engine, context parallelism, multi-latent attention",
    "flash-attn": "attention=flash",
    "vllm": "the vLLM suites on this base",
}
_LIST = (
    "import json, importlib.metadata as m; "
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}))"
)
_SECONDS = 60


@dataclass(frozen=True)
class Finding:
    """One line of the answer; `ok` is None where it is neither good nor bad."""

    about: str
    told: str
    ok: bool | None = None


def examine(settings: Settings, base: str | None, bundle: Path | None) -> list[Finding]:
    """Everything worth knowing before a run, most important last.

    Args:
        base: as `--base`; None for what the settings say.
        bundle: a bundle that is to be used, None for none.
    """
    found = gpus()
    chosen = base or ("current" if bundle else settings.base)
    installed, where = _installed(settings, chosen)
    extra, told = _of_bundle(bundle)
    return [
        Finding("python", f"{sys.version.split()[0]} at {sys.executable}"),
        *_gpu_findings(found),
        Finding("base", where, ok=bool(installed)),
        *([told] if told else []),
        *_package_findings({**installed, **extra}),
        *_closure_findings({**installed, **extra}),
        *_stack_findings(settings, bundle),
        *_suite_findings(found, {**installed, **extra}),
    ]


def _gpu_findings(found: Sequence[Gpu]) -> list[Finding]:
    if not found:
        return [Finding("GPUs", "none: no driver answers", ok=None)]
    lines = [
        Finding("GPU", f"{gpu.id}: {gpu.name}, {gpu.memory} MiB, sm_{gpu.capability.replace('.', '')}") for gpu in found
    ]
    return [*lines, Finding("driver", found[0].driver), Finding("links", _links())]


def _links() -> str:
    """How the GPUs are connected, as the driver's tool draws it, without its legend."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    rows = [line.split() for line in answer.stdout.partition("Legend")[0].splitlines() if line.startswith("GPU")]
    return "; ".join(" ".join(row[: len(rows) + 1]) for row in rows) or "unknown"


def _installed(settings: Settings, chosen: str) -> tuple[dict[str, str], str]:
    """Distributions of the base and their versions, and what the base is, in words."""
    if chosen == "locked":
        pinned = dict(line.split("==") for line in bases.LOCKED.read_text().split() if "==" in line)
        return pinned, f"locked: {len(pinned)} pinned distributions, installed at the first run"
    interpreter = Path(sys.executable) if chosen == "current" else (settings.root / Path(chosen).expanduser())
    interpreter = interpreter / "bin" / "python" if interpreter.is_dir() else interpreter
    try:
        answer = subprocess.run(
            [str(interpreter), "-c", _LIST], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {}, f"{chosen}: {interpreter} does not run: {error}"
    listed = {str(canonicalize_name(name)): version for name, version in json.loads(answer.stdout).items()}
    return listed, f"{chosen}: {interpreter}, {len(listed)} distributions"


def _of_bundle(bundle: Path | None) -> tuple[dict[str, str], Finding | None]:
    if bundle is None:
        return {}, None
    try:
        manifest = unpack.read_manifest(bundle)
    except unpack.BundleError as error:
        return {}, Finding("bundle", str(error), ok=False)
    site = dict(_name_and_version(entry) for entry in manifest["site"])
    return site, Finding("bundle", f"{bundle}: {', '.join(manifest['stacks'])}, {len(site)} distributions", ok=True)


def _name_and_version(entry: str) -> tuple[str, str]:
    """Of `NAME==VERSION`, or of a wheel's file name."""
    name, _, version = entry.partition("==") if "==" in entry else entry.replace("-", "==", 1).partition("==")
    return str(canonicalize_name(name)), version.split("-")[0]


def _package_findings(installed: Mapping[str, str]) -> list[Finding]:
    lines = [Finding(name, installed[name], ok=True) for name in _WATCHED if name in installed]
    for name, use in _OPTIONAL.items():
        version = installed.get(name)
        lines.append(Finding(name, version or f"absent; without it: no {use}", ok=True if version else None))
    return lines


def _closure_findings(installed: Mapping[str, str]) -> list[Finding]:
    missing = sorted(str(name) for name in bundles.pinned_base() if name not in installed)
    if not missing or not installed:
        return []
    shown = ", ".join(missing[:12]) + (f" and {len(missing) - 12} more" if len(missing) > 12 else "")
    return [Finding("missing", f"{shown}; `parity bundle` brings them, or use the locked base", ok=False)]


def _stack_findings(settings: Settings, bundle: Path | None) -> list[Finding]:
    if bundle is not None:
        return []
    try:
        importlib.metadata.version("uv")
    except importlib.metadata.PackageNotFoundError:
        return [Finding("uv", "absent: stacks cannot be built here; use --bundle", ok=False)]
    return [Finding("stacks", f"{', '.join(settings.stacks)}: built where missing, in {settings.cache}")]


def _suite_findings(found: Sequence[Gpu], installed: Mapping[str, str]) -> list[Finding]:
    cpu = Finding("suites/parity", "--lane cpu: every layout, over gloo; no spec transformer_engine", ok=True)
    if not found:
        return [cpu, Finding("suites/parity", "--lane cuda: not run, there is no GPU", ok=None)]
    fitting = [name for name, layout in LAYOUTS.items() if layout.world_size <= len(found)]
    others = [name for name in LAYOUTS if name not in fitting]
    specs = "both specs" if "transformer-engine-torch" in installed else "spec local alone"
    cuda = f"--lane cuda, {specs}: {', '.join(fitting)}"
    lines = [cpu, Finding("suites/parity", cuda, ok="torch" in installed)]
    if others:
        lines.append(Finding("not run here", f"--lane cuda: {', '.join(others)} need more GPUs", ok=None))
    return lines
