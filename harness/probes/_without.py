"""A function of the harness, called in a fresh process of the stack: other imports, or one package less."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.observe.run import Run

ANSWER = "answer.json"
"""What such a process writes, beside its request."""

_MAIN = "harness.workers.without"
_OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclass(frozen=True)
class Package:
    """An optional package.

    Attributes:
        module: what is imported, dotted.
        distribution: what is installed.
    """

    module: str
    distribution: str


@dataclass(frozen=True)
class Answer:
    """What became of a process.

    Attributes:
        returned: what the function returned; None where the process ended otherwise.
        output: everything it printed, logged and warned of, and the traceback it ended with.
    """

    returned: Any
    output: str


def call_in_fresh_process(run: Run, preload: Sequence[str], function: str, *, without: Package | None = None) -> Answer:
    """Call `module:function` of the harness with a run of one rank, in a fresh process.

    Args:
        preload: modules that are imported first, in this order; what fails to be is left to the function.
        without: a package that the process does not find.
    """
    folder = run.folder / "fresh"
    folder.mkdir()
    request, answer = folder / "request.json", folder / ANSWER
    package = asdict(without) if without else None
    asked = {"package": package, "preload": list(preload), "function": function, "lane": run.lane.name}
    request.write_text(json.dumps(asked))
    ended = subprocess.run(
        [sys.executable, "-P", "-m", _MAIN, str(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        env={name: value for name, value in os.environ.items() if name not in _OF_A_RANK},
    )
    return Answer(json.loads(answer.read_text()) if answer.exists() else None, ended.stdout)
