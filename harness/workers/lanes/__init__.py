"""Lanes: where a case runs, and everything a lane must replace to run it there.

A lane is asked, in this order:

1. `prepare()` in the worker, before any upstream import, and `importing()` around the imports,
2. `warm()` in the worker, after the imports and before a fork,
3. `enter(run)` in the rank's process, before the probe,
4. `start_distributed(run)` and `force(run, config, spec)` by a probe that needs process groups or builds a model,
5. `leave(run)` in the rank's process, after the probe.

Whatever a lane puts in the place of a device call is listed in the run; whatever it forces in a config is a mask. This
package and `transformer_engine` are the only ones that replace anything on behalf of a lane, so an exception whose
innermost frame lies here is a fault of the harness, not an observation.
"""

from __future__ import annotations

from harness.workers.lanes.cpu import CpuLane
from harness.workers.lanes.cuda import CudaLane

LANES = ("cpu", "cuda")


class UnknownLaneError(ValueError):
    """A lane name that `LANES` does not hold."""


def lane_named(name: str, *, deterministic: bool = True, fresh: bool = False) -> CpuLane | CudaLane:
    """The lane called `name`.

    Args:
        deterministic: False for the settings of production, where the lane has others; the cpu lane has none.
        fresh: whether this process is one rank, rather than a worker that forks them.

    Raises:
        UnknownLaneError: with the names that exist.
    """
    if name == "cuda":
        return CudaLane(deterministic=deterministic, fresh=fresh)
    if name == "cpu":
        return CpuLane()
    raise UnknownLaneError(f"unknown lane {name!r}; known: {', '.join(LANES)}")
