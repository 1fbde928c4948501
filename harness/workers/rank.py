"""One rank of one case, in its own forked process: run the probe and write the observation."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.layouts import layout_named
from harness.observe.codec import EncodingError, encode
from harness.observe.evidence import EntryMonitor, alternatives, missing_fields, missing_functions, missing_tensors
from harness.observe.exceptions import Roots, observe_exception
from harness.observe.observation import Observation, entries_of, masks_of, save
from harness.observe.run import Lane, Run, Unavailable
from harness.probes.registry import Probe, ProbeError, find_probe
from harness.workers.protocol import EXPECTED, SCRATCH, Request

FAULT_FILE = "fault.txt"
"""What a rank writes, in one line, when it can give no observation."""

UNAVAILABLE_FILE = "unavailable.txt"
"""What a rank writes, in one line, when the host or lane lacks what the case needs."""

STACKS_SIGNAL = signal.SIGUSR2
"""A rank that gets this prints the Python stacks of all its threads."""

_EXEC_SECONDS = 1.0
"""How long a process may be without a command line because it is starting another program."""


class DeviceFault(Exception):
    """The device failed (out of memory, an illegal access): there is no observation."""


def run_rank(request: Request, rank: int, lane: Lane, overlay: Path, surroundings: Mapping[str, Any]) -> None:
    """Run the probe as `rank` and leave `observation.json` or `fault.txt` in the rank's folder.

    Args:
        surroundings: what the worker's imports have made of the stack, for the environment of the observation.
    """
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)
    folder = Path(request.folder) / f"rank{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _observe(request, rank, lane, overlay, surroundings, folder)
    except Unavailable as error:
        (folder / UNAVAILABLE_FILE).write_text(str(error))
    except EncodingError as error:
        _fault(folder, f"the observation cannot be encoded: {error}")
    except (SystemExit, KeyboardInterrupt) as error:
        _fault(folder, f"left by {type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - the harness's own faults end here, as the case's reason
        traceback.print_exc()
        _fault(folder, f"{type(error).__name__}: {error}")
    left = _left_behind()
    if left:
        _fault(folder, left)


def _observe(
    request: Request, rank: int, lane: Lane, overlay: Path, surroundings: Mapping[str, Any], folder: Path
) -> None:
    own = os.getpid()
    probe = find_probe(request.probe)
    layout = layout_named(request.layout)
    scratch = Path(request.folder) / SCRATCH
    scratch.mkdir(exist_ok=True)
    run = Run(
        lane,
        layout,
        rank,
        layout.world_size,
        scratch,
        perturbed=request.perturbed,
        devices=request.devices,
        restored=request.restored,
        watched=request.watched,
    )
    before = set(sys.modules)
    names = [name for requirement in probe.evidence.enters for name in alternatives(requirement)]
    tree: Mapping[str, Any] | None = None
    exception = None
    lane.enter(run)
    started = time.perf_counter()
    with EntryMonitor(names) as monitor:
        try:
            tree = probe.function(run, **request.parameters)
        except (Unavailable, ProbeError, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # torch's CheckpointException, for one, is no Exception
            exception = observe_exception(error, _roots(probe, overlay, scratch))
            if fault := lane.fault_of(error):
                raise DeviceFault(f"{fault} (from {exception.origin})") from error
            traceback.print_exc()
        finally:
            if os.getpid() != own:
                os._exit(0)  # a process that the probe forked and let come back here
    seconds = time.perf_counter() - started
    encoding = encode(tree)
    missing = () if exception else tuple(_missing(probe, monitor, encoding.tree, encoding.tensors))
    if probe.one_stack and tree is not None and not missing:
        encoding = encode(tree["actual"])
        _save_expected(folder, tree["expected"])
    lane_environment = lane.leave(run, raised=exception is not None)
    observation = Observation(
        tree=encoding.tree,
        tensors=entries_of(encoding),
        exception=exception,
        entered=tuple(monitor.entered),
        missing=missing,
        masks=masks_of(run),
        environment={
            "lane": lane.name,
            "layout": layout.name,
            "stand_ins": [asdict(entry) for entry in run.stand_ins],
            "set_by_hand": encode(run.set_by_hand).tree,
            "python": sys.version.split()[0],
            **surroundings,
            **({"configs": run.configs} if request.restored is not None else {}),
            **({"sources": run.sources.hashes(overlay)} if request.watched else {}),
            **lane_environment,
        },
        provenance=dict(run.provenance),
        seconds=seconds,
        imported=() if run.scans else tuple(sorted(set(sys.modules) - before)),
        trace=tuple(run.trace),
        placement=dict(run.placement),
    )
    save(observation, encoding.tensors, folder)


def _save_expected(folder: Path, tree: Mapping[str, Any]) -> None:
    """What a check of one stack expects, as an observation of its own that the actual one is compared with."""
    encoding = encode(tree)
    observation = Observation(encoding.tree, entries_of(encoding), None, (), (), (), {}, {}, 0.0)
    save(observation, encoding.tensors, folder / EXPECTED)


def _missing(probe: Probe, monitor: EntryMonitor, tree: Any, tensors: Mapping[str, Any]) -> list[str]:
    evidence = probe.evidence
    return [
        *(f"never entered {name}" for name in missing_functions(evidence.enters, monitor.entered)),
        *(f"returned no {path}" for path in missing_fields(evidence.returns, tree)),
        *(f"returned no tensor {pattern}" for pattern in missing_tensors(evidence.tensors, tensors)),
    ]


def _roots(probe: Probe, overlay: Path, scratch: Path) -> Roots:
    package = Path(__file__).resolve().parents[1]
    entered_as = Path(sys.modules["harness"].__file__ or package).parent
    return Roots(
        harness=(package, entered_as, probe.source),
        upstream=(overlay,),
        hidden={overlay: "<overlay>", scratch: "<scratch>", Path(sys.prefix): "<base>"},
    )


def _fault(folder: Path, reason: str) -> None:
    (folder / FAULT_FILE).write_text(reason)


def _left_behind() -> str | None:
    """What the probe started and did not wait for; multiprocessing's own helpers end with the rank."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    strangers = [command for pid in listed if (command := _command(pid)) and "multiprocessing" not in command]
    zombies = sum(_is_zombie(pid) for pid in listed)
    if zombies:
        return f"left {zombies} zombie process(es) behind"
    return f"left a process running: {strangers[0]}" if strangers else None


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return False


def _command(pid: str) -> str:
    """The command line of a process; empty once it has ended. While it starts another program, it has none yet."""
    until = time.monotonic() + _EXEC_SECONDS
    while not _is_zombie(pid):
        try:
            found = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            return ""
        if found or time.monotonic() > until:
            return found or f"process {pid}"
        time.sleep(0.01)
    return ""
