"""Probes that go wrong in every way a worker must survive."""

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.observe import Run
from harness.observe.run import Unavailable
from harness.probes import probe


@probe(returns=("x",))
def fine(run: Run) -> Mapping[str, Any]:
    return {"x": 1}


@probe(returns=("x",))
def raises(run: Run) -> Mapping[str, Any]:
    raise ValueError("boom")


@probe(returns=("x",))
def exits(run: Run) -> Mapping[str, Any]:
    sys.stdout.write("about to leave\n")
    sys.stdout.flush()
    os._exit(3)


@probe(returns=("x",))
def quits(run: Run) -> Mapping[str, Any]:
    sys.exit(4)


class NoException(BaseException):
    """As torch.distributed.checkpoint has one."""


@probe(returns=("x",))
def raises_what_is_no_exception(run: Run) -> Mapping[str, Any]:
    raise NoException("boom")


@probe(returns=("x",))
def segfaults(run: Run) -> Mapping[str, Any]:
    ctypes.string_at(0)
    return {"x": 1}


@probe(returns=("x",))
def is_killed(run: Run) -> Mapping[str, Any]:
    os.kill(os.getpid(), 9)
    return {"x": 1}


@probe(returns=("x",))
def takes_memory(run: Run) -> Mapping[str, Any]:
    taken = []
    while True:
        taken.append(b"x" * (16 << 20))


@probe(returns=("x",))
def runs_out_of_memory(run: Run) -> Mapping[str, Any]:
    raise MemoryError("cannot allocate")


@probe(returns=("x",))
def hangs(run: Run) -> Mapping[str, Any]:
    time.sleep(1000)
    return {"x": 1}


@probe(returns=("x",))
def one_rank_dies(run: Run) -> Mapping[str, Any]:
    if run.rank == 1:
        os._exit(5)
    time.sleep(1000)
    return {"x": 1}


@probe(returns=("x",))
def prints_a_gigabyte(run: Run) -> Mapping[str, Any]:
    for _ in range(1024):
        sys.stdout.write("y" * (1 << 20))
    return {"x": 1}


@probe(returns=("x",))
def leaves_a_zombie(run: Run) -> Mapping[str, Any]:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return {"x": 1}


@probe(returns=("x",))
def leaves_a_process(run: Run) -> Mapping[str, Any]:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    return {"x": 1}


@probe(returns=("x",))
def leaves_a_temporary_file(run: Run, *, marker: str) -> Mapping[str, Any]:
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    Path(marker).write_text(path)
    return {"x": 1}


@probe(returns=("x",))
def returns_a_lock(run: Run) -> Mapping[str, Any]:
    return {"x": threading.Lock()}


@probe(returns=("x",))
def returns_nothing(run: Run) -> Mapping[str, Any]:
    return {}


@probe(enters=("toy:build",))
def forgets_upstream(run: Run) -> Mapping[str, Any]:
    return {"size": 1}


@probe(returns=("x",))
def kills_the_worker_once(run: Run, *, marker: str) -> Mapping[str, Any]:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return {"x": 1}
    os.kill(os.getppid(), 9)
    time.sleep(5)
    return {"x": 0}


@probe(returns=("x",))
def imports_late(run: Run, *, scans: bool = False) -> Mapping[str, Any]:
    run.scans = scans
    import antigravity_free_module as late  # type: ignore[import-not-found]

    return {"x": late.VALUE}


@probe(returns=("x",))
def a_stand_in_breaks(run: Run) -> Mapping[str, Any]:
    run.lane.force(run, _Refusing())
    return {"x": 1}


class _Refusing:
    persist_layer_norm = property(lambda self: True)


@probe(returns=("x",))
def forces(run: Run) -> Mapping[str, Any]:
    config = run.upstream("toy:build")()
    run.mask("Config.fusion", config.fusion, False)
    return {"x": 1}


@probe(returns=("x",))
def lacks_something(run: Run) -> Mapping[str, Any]:
    raise Unavailable("needs two accelerators")


@probe(returns=("x",))
def new_side_lacks_something(run: Run) -> Mapping[str, Any]:
    if run.folder.parent.name == "new":
        raise Unavailable("needs two accelerators")
    return {"x": 1}


@probe(returns=("x",))
def returns_twice(run: Run) -> Mapping[str, Any]:
    os.fork()
    time.sleep(0.1)
    return {"x": 1}
