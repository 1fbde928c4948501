"""A warm manager for Megatron-Core's checkpoint results: each save would start one, which takes seconds."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

from harness.observe.run import Run

_WRITER = "megatron.core.dist_checkpointing.strategies.filesystem_async"

_MANAGERS: list[Any] = []
"""The worker's process for queues of checkpoint results, once it runs."""


def start_manager() -> None:
    """Start the worker's manager, once its stack has imported the checkpoint writer. A second call does nothing."""
    if _WRITER in sys.modules and not _MANAGERS:
        _MANAGERS.append(_warm_manager())


def give_queue(run: Run) -> None:
    """Give this rank a queue of the worker's manager, where there is one."""
    for manager in _MANAGERS:
        # A queue for each rank, as upstream has it: ranks that shared one would get each other's results.
        sys.modules[_WRITER]._results_queue = manager.Queue()  # type: ignore[attr-defined]
        run.stand_in(f"{_WRITER}._results_queue", "a queue of the worker's manager", "a warm process")


def _warm_manager() -> Any:
    """A manager process such as each save would start, which has imported what results are made of.

    It imports torch and its checkpoint package when the first result arrives: seconds that no case should pay.
    """
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.storage import WriteResult

    manager = multiprocessing.get_context("spawn").Manager()
    queue = manager.Queue()
    queue.put([WriteResult(MetadataIndex("warm"), 0, None)])
    queue.get()
    return manager
