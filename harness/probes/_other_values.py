"""Another value for a setting: one that differs from its default, of the same kind, and that upstream may accept."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

UNVARIED = object()
"""No other value is known: a text that may be anything, a function, a collection."""

_TEXTS = {
    "attention_backend": "unfused",
    "cuda_graph_impl": "local",
    "dropout_position": "post",
    "dtype": "float32",
    "fp8_recipe": "tensorwise",
    "hidden_act": "gelu",
    "hidden_activation": "silu",
    "lora_A_init_method": "normal",
    "lora_B_init_method": "normal",
    "lr_decay_style": "cosine",
    "lr_wsd_decay_style": "cosine",
    "moe_router_dtype": "fp32",
    "moe_router_load_balancing_type": "aux_loss",
    "moe_router_score_function": "sigmoid",
    "moe_token_dispatcher_type": "allgather",
    "muon_coefficient_type": "simple",
    "muon_scale_mode": "unit_rms_norm",
    "muon_tp_mode": "duplicated",
    "normalization": "RMSNorm",
    "optimizer": "sgd",
    "position_embedding_type": "none",
    "recompute_granularity": "selective",
    "recompute_method": "block",
    "scoring_func": "sigmoid",
    "type": "dora",
    "weight_decay_incr_style": "linear",
}
"""Settings whose values are names: one that is no default."""
_SECOND = {"scoring_func": "softmax", "hidden_act": "silu", "hidden_activation": "gelu"}
"""The same, where the first is what the setting has already."""


def another_value(name: str, current: Any, annotation: Any = None) -> Any:
    """A value for the setting `name` that is not the current one, or `UNVARIED`.

    Args:
        annotation: its type, which says what may stand where the current value is None.
    """
    match current:
        case bool():
            return not current
        case enum.Enum():
            return next((member for member in type(current) if member is not current), UNVARIED)
        case int():
            return current * 2 if current > 0 else 1
        case float():
            return current * 1.5 if current else 0.25
        case str():
            return _another_text(name, current, annotation)
        case None:
            return _some(name, annotation)
    return UNVARIED


def annotations_of(kind: type) -> dict[str, Any]:
    """Types of a dataclass's fields, resolved where that is possible."""
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError):
        # A name that upstream imports for its type checker alone, or a union with one: what is written is all there is.
        return {field.name: field.type for field in dataclasses.fields(kind)}


def _another_text(name: str, current: str, annotation: Any) -> Any:
    others = [choice for kind in alternatives(annotation) for choice in typing.get_args(kind) if choice != current]
    if others and isinstance(others[0], str):
        return others[0]
    known = [text for text in (_TEXTS.get(name), _SECOND.get(name)) if text not in (None, current)]
    return known[0] if known else UNVARIED


def _some(name: str, annotation: Any) -> Any:
    examples: dict[Any, Any] = {bool: True, int: 2, float: 0.5}
    for kind in alternatives(annotation):
        if kind in examples:
            return examples[kind]
        if kind is str:
            return _TEXTS.get(name, UNVARIED)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return next(iter(kind))
        if typing.get_origin(kind) is typing.Literal:
            return typing.get_args(kind)[0]
    return UNVARIED


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)
