"""Faults seeded into upstream's code inside a worker, one for each area of the models' suites, and what shows them.

A case of each area runs with each fault, on the new side alone; the old side is the same stack without it. Exactly the
fault's own area must differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.observe import Run
from harness.observe.fault import Change, is_new, seed_fault
from harness.probes import probe
from harness.probes._models import choice
from harness.probes.registry import find_probe

AREAS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "value head": ("critic", {}),
    "router freeze": ("router_freeze", {}),
    "balanced experts": ("moe_step", {}),
    "adapters": ("lora_step", {}),
    "multi-token prediction": ("mtp_step", {"recompute": "full"}),
    "Marlin scales": ("marlin_forms", {"form": "tuple"}),
    "symbols": ("upstream_symbols", {}),
}
"""Area → a shipped probe, and parameters of a case."""

PRELOAD = tuple(dict.fromkeys(name for shipped, _ in AREAS.values() for name in find_probe(shipped).preload))


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        place: the upstream function that is replaced, `module:name`.
        change: what stands there.
        area: the one that must differ.
        shows: globs over differences, each of which must be met.
        seen_as: makes the signature that the replacement shows of the original's, where that is the fault.
    """

    name: str
    place: str
    change: Change
    area: str
    shows: tuple[str, ...]
    seen_as: Callable[[inspect.Signature], inspect.Signature] | None = None


@probe(returns=("area", "seen"))
def faulty_area(run: Run, *, area: str, fault: str = "none") -> Mapping[str, Any]:
    """The case of an area, with a fault in upstream's code on the new side.

    Args:
        area: one of `AREAS`.
        fault: name of one of `FAULTS`, or `none`.
    """
    shipped, parameters = choice("area", area, AREAS)
    seeded: Fault | None = choice("fault", fault, {"none": None} | {item.name: item for item in FAULTS})
    if seeded and is_new(run):
        seed_fault(run, seeded.place, seeded.change, seen_as=seeded.seen_as)
    return {"area": area, "seen": find_probe(shipped).function(run, **parameters)}


def _scaled(original: Change, *arguments: Any, **keywords: Any) -> Any:
    """The first of what a function returns, a little larger."""
    answer = original(*arguments, **keywords)
    if isinstance(answer, tuple):
        return (answer[0] * (1 + 2**-7), *answer[1:])
    return answer * (1 + 2**-7)


def _skipped(_original: Change, *_arguments: Any, **_keywords: Any) -> None:
    return None


def _as_it_is(original: Change, *arguments: Any, **keywords: Any) -> Any:
    return original(*arguments, **keywords)


def _as_it_was_given(_original: Change, scale: Any) -> Any:
    return scale


def _without_overrides(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=[item for item in signature.parameters.values() if item.name != "overrides"])


_HELPERS = "megatron.bridge.training.utils.train_utils"
_MTP = "megatron.core.transformer.multi_token_prediction:MultiTokenPredictionLayer"

FAULTS = (
    Fault(
        "value head scaled by 1 + 2^-7",
        f"{_HELPERS}:LinearForLastLayer.forward",
        _scaled,
        "value head",
        ("seen/gradients/*", "seen.grad_norm"),
    ),
    Fault(
        "nothing frozen",
        f"{_HELPERS}:_freeze_parameter_if_present",
        _skipped,
        "router freeze",
        ("seen.requires_grad.*.router.weight", "seen/gradients/*.router.weight"),
    ),
    Fault(
        "auxiliary loss scaled by 1 + 2^-7",
        "megatron.core.transformer.moe.router:TopKRouter.get_aux_loss_coeff",
        _scaled,
        "balanced experts",
        ("seen/gradients/*.router.weight",),
    ),
    Fault(
        "the model under the adapters not frozen",
        "megatron.bridge.peft.base:PEFT.freeze_model",
        _skipped,
        "adapters",
        ("seen.frozen", "seen/gradients/*.linear_qkv.*"),
    ),
    Fault(
        "layer of multi-token prediction scaled by 1 + 2^-7",
        f"{_MTP}._proj_and_transformer_layer",
        _scaled,
        "multi-token prediction",
        ("seen/gradients/mtp.*", "seen.mtp_losses.*"),
    ),
    Fault(
        "a tuple of scales is taken for a tensor",
        "verl.utils.modelopt.vllm_modelopt_patch:_unwrap_marlin_scale",
        _as_it_was_given,
        "Marlin scales",
        ("seen*unwrapped*",),
    ),
    Fault(
        "a function that no longer takes an argument",
        "megatron.bridge.training.utils.config_utils:create_ddp_config",
        _as_it_is,
        "symbols",
        ("seen.names.*:create_ddp_config.calls", "seen.refused.*:create_ddp_config*"),
        _without_overrides,
    ),
)
