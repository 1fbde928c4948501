"""Probes of the fuzzers: what a reproduction prints in a stack, and whether a resume reads the dump of the config."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Mapping
from typing import Any

from harness.observe.exceptions import portable
from harness.observe.run import Run
from harness.probes import _checkpoint
from harness.probes.config_values import PRELOAD as PRELOAD
from harness.probes.config_values import converse
from harness.probes.registry import probe

_LOAD_CHECKPOINT = _checkpoint.SAVE_CHECKPOINT.replace("save", "load")


@probe(returns=("ended",))
def reproductions(run: Run, *, listen: str) -> Mapping[str, Any]:
    """What Python texts print, each run as a program of its own: `printed`, and the exception `raised`, or None."""
    run.lane.start_distributed(run)
    converse(listen, lambda text: _run(run, text))
    return {"ended": True}


def _run(run: Run, text: str) -> dict[str, str | None]:
    printed, raised = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(text, {"__name__": "__main__"})
        except RecursionError:
            raised = "RecursionError"
        except Exception as error:  # noqa: BLE001 - what a reproduction raises is what it shows
            raised = portable(f"{type(error).__name__}: {error}", {})
        finally:
            run.upstream("megatron.core.parallel_state").destroy_model_parallel()
    return {"printed": printed.getvalue(), "raised": raised}


@probe(enters=(_checkpoint.SAVE_CHECKPOINT, _LOAD_CHECKPOINT), returns=("loaded", "reads_dump"))
def resume(run: Run, *, reads: bool = False) -> Mapping[str, Any]:
    """A checkpoint that an engine saves and loads again, and which files of it are opened meanwhile.

    Args:
        reads: seed a fault: a load that reads the dump of the config too.

    Returns:
        loaded: how many files of the checkpoint the load opened.
        reads_dump: whether the dump of the config is among them.
    """
    contents = ["model", "optimizer", "extra"]
    engine = _checkpoint.initialized_engine(run, "qwen3", contents=contents, engine={"use_dist_checkpointing": True})
    engine.optimizer_zero_grad()
    engine.optimizer_step()
    folder = _checkpoint.save(engine)
    opened: set[str] = set()
    sys.addaudithook(lambda event, arguments: opened.add(str(arguments[0])) if event == "open" else None)
    if reads:
        (folder / "transformer_config.json").read_text()
    engine.checkpoint_mananager.load_checkpoint(str(folder))
    inside = {name for name in opened if f"{folder}/" in name}
    return {"loaded": len(inside), "reads_dump": any(name.endswith("transformer_config.json") for name in inside)}
