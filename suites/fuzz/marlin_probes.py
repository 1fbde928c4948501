"""Probes of the fuzzers: what becomes of drawn NVFP4 block scales on their way into Marlin's layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

from harness.observe.run import Run
from harness.probes import marlin_scales
from harness.probes._readings import attempt
from harness.probes._values import Built
from harness.probes.adapter_load import PRELOAD as PRELOAD
from harness.probes.config_values import converse
from harness.probes.consistency.marlin import E4M3_ROUNDING, HELPERS
from harness.probes.registry import probe

_MODELOPT = "verl.utils.modelopt.vllm_modelopt_patch"
_UNWRAP, _SPLIT = f"{_MODELOPT}:_unwrap_marlin_scale", f"{_MODELOPT}:_split_marlin_scale"
_MODULE = "vllm.model_executor.layers.quantization.utils.marlin_utils_fp4"
_PROCESS = f"{_MODULE}:nvfp4_marlin_process_scales"

_SOUND = ("exact", "within rounding")

Function = Callable[..., Any]
Faults = Mapping[str, tuple[str, Callable[[Function], Function]]]
"""A fault: the function that has it, and from that to one that goes wrong."""

FORM_FAULTS: Faults = {
    "pairs are not taken apart": ("_unwrap_marlin_scale", lambda _: lambda value: value),
    "the factor of a pair is 1": ("_split_marlin_scale", lambda split: lambda value: (split(value)[0], 1.0)),
}
SCALE_FAULTS: Faults = {
    "the factor is lost": (
        "nvfp4_marlin_process_scales",
        lambda process: lambda *given, **more: (_pair(process(*given, **more))[0], 1.0),
    ),
    "the factor is twice as large": (
        "nvfp4_marlin_process_scales",
        lambda process: (
            lambda *given, **more: (
                (pair := _pair(process(*given, **more)))[0],
                2 * pair[1],
            )
        ),
    ),
}


@probe(enters=(_UNWRAP, _SPLIT), returns=("ended",))
def marlin_forms_drawn(run: Run, *, listen: str) -> Mapping[str, Any]:
    """Answers a described value with what verl's two helpers make of it beside a factor, and of it alone.

    A question is `{"config": description, "fault": None or one of FORM_FAULTS}`; see
    `harness.probes._readings.attempt`. Fates are which of the two came out, or neither. A tuple, which would be taken
    for a pair, is asked about in a list.
    """
    module = run.upstream(_MODELOPT)

    def read(built: Built) -> dict[str, str]:
        value, factor = built.value, object()
        no_pair = [value] if isinstance(value, tuple) else value
        unwrap, split = module._unwrap_marlin_scale, module._split_marlin_scale
        scales, beside = split((value, factor))
        alone, one = split(no_pair)
        return {
            "unwrapped": _which(unwrap((value, factor)), value, factor),
            "scales": _which(scales, value, factor),
            "factor": _which(beside, value, factor),
            "no pair, unwrapped": _which(unwrap(no_pair), no_pair, None),
            "no pair, scales": _which(alone, no_pair, None),
            "no pair, factor": repr(one),
        }

    def answer(question: Mapping[str, Any]) -> dict[str, Any]:
        with _faulty(module, FORM_FAULTS, question["fault"]):
            return attempt(read, question["config"])

    converse(listen, answer)
    return {"ended": True}


@probe(enters=(_PROCESS,), returns=("ended",))
def marlin_scales_drawn(run: Run, *, listen: str) -> Mapping[str, Any]:
    """Answers a described dict of arguments with how far from exact the block scales of every weight are.

    Arguments are `helper` (of `marlin_invariant`), `dtype` and `scales` (of `marlin_scales`). A question is
    `{"config": description, "fault": None or one of SCALE_FAULTS}`; see `harness.probes._readings.attempt`.

    Raises:
        Unavailable: there is no vLLM.
    """
    marlin_scales.need_vllm()
    module = run.upstream(_MODULE)

    def read(built: Built) -> dict[str, str]:
        arguments = dict(built.value)
        helper = arguments.pop("helper")
        function, more = HELPERS[helper]
        tree = function(run, **arguments, **more)
        weights = tree if "w13" in tree else {"weight": tree}
        return {f"{helper}.{name}": _error(seen["largest_error"]) for name, seen in weights.items()}

    def answer(question: Mapping[str, Any] | None) -> dict[str, Any]:
        if question is None:
            return {"fields": None}
        with _faulty(module, SCALE_FAULTS, question["fault"]):
            found = attempt(read, question["config"])
        wrong = [f"{name}: {fate}" for name, fate in found["fates"].items() if fate not in _SOUND]
        return found | {"broken": [*found["broken"], *wrong]}

    converse(listen, answer)
    return {"ended": True}


def _which(found: Any, value: Any, factor: Any) -> str:
    return "the value" if found is value else "the factor" if found is factor else "neither"


def _error(largest: float) -> str:
    if largest <= E4M3_ROUNDING:
        return _SOUND[0 if largest == 0 else 1]
    return "some become zero" if largest == 1 else "another"


def _pair(processed: Any) -> tuple[Any, Any]:
    return processed if isinstance(processed, tuple) else (processed, 1.0)


def _doubled(scales: Any, factor: float) -> tuple[Any, float]:
    return scales, 2 * factor


def _faulty(module: Any, faults: Faults, fault: str | None) -> contextlib.AbstractContextManager[Any]:
    if fault is None:
        return contextlib.nullcontext()
    name, change = faults[fault]
    return patch.object(module, name, change(getattr(module, name)))
