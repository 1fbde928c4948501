"""One optional package absent: does the stack do the same, and if not, does it say so?"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from harness.observe.evidence import FirstEntries
from harness.observe.run import Run, Unavailable
from harness.probes import _checkpoint, _engine, _peft, _wrap
from harness.probes._models import choice
from harness.probes._without import Package, call_in_fresh_process
from harness.probes.registry import consistency_probe

PRELOAD = (*_peft.PRELOAD, *_checkpoint.PRELOAD)

PACKAGES = {
    "apex": Package("apex", "apex"),
    "energon": Package("megatron.energon", "megatron-energon"),
    "flash_attn": Package("flash_attn", "flash-attn"),
    "mbridge": Package("mbridge", "mbridge"),
    "modelopt": Package("modelopt", "nvidia-modelopt"),
    "peft": Package("peft", "peft"),
    "transformer_engine": Package("transformer_engine", "transformer-engine"),
}

_FINE = "the same, or it is said"
_ABSENCE = re.compile(
    r"no module|not (installed|available|found|importable)|unavailable|missing|requires|install|fall", re.I
)
_TOOL = 3
"""A `sys.monitoring` tool id that the evidence does not use."""


@consistency_probe(
    enters=(_wrap.MAKE_MEGATRON_MODULE, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("expected.plain.hooks.make_megatron_module", "expected.adapter.hooks.make_megatron_module"),
)
def without_package(run: Run, *, package: str) -> Mapping[str, Any]:
    """Verl's engine, without and with a LoRA adapter, built twice: as it is, and where a package cannot be imported.

    The second time is a fresh process that finds neither the package nor its metadata. It says that something is amiss
    if it ends, or if a line of its output names the package and its absence. A hook that comes from another module must
    be said so; that the build raises later says it of the functions it did not come to, not of the hook.

    Returns:
        By engine: each hook, and each function of verl and Megatron-Bridge that only one of both entered; expected is
        that it is the same or that it is said, actual the same or what is otherwise. `said`: the lines that name the
        package's absence.

    Args:
        package: one of `PACKAGES`.
    """
    hidden = choice("package", package, PACKAGES)
    answers = package == "transformer_engine"  # where it is absent, the lane's answers for it are what is taken away
    if not answers and not _is_there(hidden.module):
        raise Unavailable(f"this stack has no {hidden.distribution}: every case runs without it")
    here = paths_taken(run)
    there = call_in_fresh_process(run, PRELOAD, f"{__name__}:{paths_taken.__name__}", without=hidden)
    said = [line for line in there.output.splitlines() if _names_absence(line, hidden)]
    fine = {
        engine: {"hooks": dict.fromkeys(path["hooks"], _FINE), "functions": {"of verl and Megatron-Bridge": _FINE}}
        for engine, path in here.items()
    }
    spoken = there.returned is None or bool(said)
    found = {} if spoken else {engine: _otherwise(path, there.returned[engine]) for engine, path in here.items()}
    return {
        "expected": fine,
        "actual": {
            engine: {
                "hooks": path["hooks"] | found.get(engine, {}).get("hooks", {}),
                "functions": found.get(engine, {}).get("functions") or path["functions"],
            }
            for engine, path in fine.items()
        },
        "said": said,
    }


def paths_taken(run: Run) -> dict[str, Any]:
    """What verl's engine takes from where, and which functions it enters, when it is built.

    Returns:
        By `plain` and `adapter` (with LoRA): `hooks` as in the provenance of an observation; `functions` of verl and
        Megatron-Bridge that were entered; `raised`, the exception that ended it, or None.
    """
    engine = _engine.construct_engine(run, "qwen3")
    lora = _peft.lora_section("lora")
    return {
        "plain": _path_taken(run, engine),
        "adapter": _path_taken(
            run,
            type(engine)(
                model_config=dataclasses.replace(engine.model_config, lora=lora),
                engine_config=engine.engine_config,
                optimizer_config=engine.optimizer_config,
                checkpoint_config=engine.checkpoint_config,
            ),
        ),
    }


def _path_taken(run: Run, engine: Any) -> dict[str, Any]:
    raised = None
    run.provenance.clear()
    with _Entered(run) as entered:
        try:
            engine._build_tf_config()
            _engine.record_provenance(run, engine)
            _engine.build_module(run, engine)
        except Exception as error:  # noqa: BLE001 - whatever upstream raises says that something is amiss
            raised = f"{type(error).__name__}: {error}"
    return {"hooks": dict(run.provenance), "functions": sorted(entered.functions), "raised": raised}


def _otherwise(here: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    """Hooks and functions that are not the same, by name."""
    hooks = {
        name: f"{place} → {there['hooks'].get(name, 'nothing')}, in silence"
        for name, place in here["hooks"].items()
        if there["hooks"].get(name) != place and (name in there["hooks"] or there["raised"] is None)
    }
    ours, theirs = set(here["functions"]), set(there["functions"])
    functions = dict.fromkeys(ours - theirs, "entered only where the package is there")
    functions |= dict.fromkeys(theirs - ours, "entered only without the package, in silence")
    return {"hooks": hooks, "functions": {} if there["raised"] or here["raised"] else functions}


def _names_absence(line: str, package: Package) -> bool:
    names = "|".join(re.escape(name) for name in (package.module.rpartition(".")[2], package.distribution))
    named = re.search(rf"(?<![\w./])({names}|{re.escape(package.module)})(?![\w/])", line, re.I)
    return named is not None and _ABSENCE.search(line) is not None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class _Entered(FirstEntries):
    """Notes which functions of verl and Megatron-Bridge are entered."""

    def __init__(self, run: Run) -> None:
        super().__init__(_TOOL)
        verl, bridge = (Path(run.upstream(name).__path__[0]) for name in ("verl", "megatron.bridge"))
        self._folders = (f"{verl}/", f"{bridge}/")
        self._root = verl.parent
        self.functions: set[str] = set()

    def note(self, code: CodeType) -> None:
        """Keep the name of a function in one of both packages."""
        if code.co_filename.startswith(self._folders) and not code.co_name.startswith("<"):
            module = Path(code.co_filename).relative_to(self._root).with_suffix("")
            self.functions.add(f"{'.'.join(module.parts)}:{code.co_qualname}")
