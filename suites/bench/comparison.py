"""What comparing tensors costs: bitwise, with statistics beside `torch.testing.assert_close`, and in memory.

    nox -s bench [-- --gigabytes 4 --elements 67108864]

Everything is measured in one run on one host, each the median of several turns taken alternately, so that the ratios
hold where the absolute figures do not. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from harness.compare.elements import map_safetensors
from harness.compare.measure import bitwise_equal, measure
from harness.compare.tensors import compare_tensors
from harness.observe.observation import Observation, TensorEntry
from harness.stacks.base import ensure
from harness.stacks.settings import load_settings

TURNS = 5
ROW = 4096
_STREAMED = 1 << 24
TORCH = Path(__file__).with_name("assert_close.py")


def main() -> None:
    options = argparse.ArgumentParser(description="Measure the comparison of tensors.")
    options.add_argument("--elements", type=int, default=1 << 25, help="float32 elements of each tensor of a pair")
    options.add_argument("--gigabytes", type=float, default=0.5, help="size of each of the two observations")
    options.add_argument("--observations", type=Path, nargs=2, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.observations:
        sys.stdout.write(json.dumps(_peak_of_comparing(*chosen.observations)))
        return
    with tempfile.TemporaryDirectory(prefix="parity-bench-") as folder:
        _speed(Path(folder), chosen.elements)
        _memory(Path(folder), chosen.gigabytes)


def _speed(folder: Path, elements: int) -> None:
    """Time the bitwise pass and the statistics pass on pairs of float32 tensors, and assert_close on the same pairs."""
    paths = _write_pairs(folder, elements)
    python = ensure(load_settings(), "locked", _say).python
    table = Table(
        "pair", "bitwise", "statistics", "assert_close", "ratio", title=f"{elements} float32 elements a tensor"
    )
    torch = subprocess.Popen(
        [str(python), str(TORCH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    with torch:
        assert torch.stdin is not None
        assert torch.stdout is not None
        for name, path in paths.items():
            arrays = map_safetensors(path)
            old, new = arrays["old"], arrays["new"]
            bitwise, statistics, close = [], [], []
            for _ in range(TURNS):
                bitwise.append(_seconds(bitwise_equal, old, new))
                statistics.append(_seconds(measure, old, new))
                torch.stdin.write(f"{path}\n")
                close.append(float(torch.stdout.readline()))
            size = 2 * old.nbytes / 1e9
            table.add_row(
                name,
                f"{size / median(bitwise):.1f} GB/s" if name == "equal" else "(ends early)",
                f"{median(statistics):.3f} s, {size / median(statistics):.1f} GB/s",
                f"{median(close):.3f} s",
                f"{median(close) / median(statistics):.1f} x faster",
            )
        torch.stdin.close()
    Console(width=110).print(table)
    for path in paths.values():
        path.unlink()


def _write_pairs(folder: Path, elements: int) -> dict[str, Path]:
    old = np.random.default_rng(0).standard_normal(elements, dtype=np.float32).reshape(-1, ROW)
    pairs = {
        "equal": old.copy(),
        "an ulp apart": np.nextafter(old, np.float32(9)),
        "scaled by 0.1 %": old * np.float32(1.001),
    }
    paths = {}
    for number, (name, new) in enumerate(pairs.items()):
        paths[name] = folder / f"pair{number}.safetensors"
        _write(paths[name], {"old": old, "new": new})
    return paths


def _write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    with _header(path, {name: array.shape for name, array in tensors.items()}).open("ab") as file:
        for array in tensors.values():
            array.tofile(file)


def _header(path: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    """Begin a safetensors file of float32 tensors; their elements are to follow."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def _memory(folder: Path, gigabytes: float) -> None:
    """Measure the peak of anonymous memory while two observations that differ in every tensor are compared."""
    tensors = 8
    rows = max(1, int(gigabytes * 1e9 / (4 * ROW * tensors)))
    for side in ("old", "new"):
        _write_observation(folder / side, tensors, rows, seed=int(side == "new"))
    command = [sys.executable, __file__, "--observations", str(folder / "old"), str(folder / "new")]
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    size = rows * ROW * tensors * 4 / 1e9
    Console().print(
        f"two observations of {size:.2f} GB compared with statistics in {told['seconds']:.1f} s:"
        f" anonymous memory {told['before'] / 1e6:.0f} MB before, {told['peak'] / 1e6:.0f} MB at its peak",
        soft_wrap=True,
    )


def _write_observation(folder: Path, tensors: int, rows: int, seed: int) -> None:
    folder.mkdir()
    names = [f"gradients/layer{number}" for number in range(tensors)]
    path = _header(folder / "tensors.safetensors", dict.fromkeys(names, (rows, ROW)))
    values = np.random.default_rng(seed).standard_normal(_STREAMED, dtype=np.float32)
    with path.open("ab") as file:
        for _ in names:
            left = rows * ROW
            while left:
                part = values[: min(left, _STREAMED)]
                part.tofile(file)
                left -= part.size


def _peak_of_comparing(old: Path, new: Path) -> dict[str, float]:
    """Compare two folders in this process, and sample its anonymous memory meanwhile."""
    sides = []
    for folder in (old, new):
        arrays = map_safetensors(folder / "tensors.safetensors")
        entries = {name: TensorEntry("float32", array.shape, folder.name) for name, array in arrays.items()}
        sides.append(Observation(None, entries, None, (), (), (), {}, {}, 0.0, folder=folder))
    done, samples = threading.Event(), [_anonymous()]

    def watch() -> None:
        while not done.wait(0.005):
            samples.append(_anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    seconds = _seconds(compare_tensors, sides[0], sides[1])
    done.set()
    watcher.join()
    return {"before": samples[0], "peak": max(samples), "seconds": seconds}


def _anonymous() -> float:
    """Anonymous resident bytes of this process (RssAnon, proc_pid_status(5))."""
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


def _seconds(work: Callable[[Any, Any], object], old: Any, new: Any) -> float:
    started = time.perf_counter()
    work(old, new)
    return time.perf_counter() - started


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()
