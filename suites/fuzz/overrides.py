"""Strategies: what a user may write into `override_transformer_config`, right and wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import strategies as st
from real_configs import Fields, common, few, typed

from harness.probes._values import Description

Descriptions = st.SearchStrategy[Description]

_SIZES = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "num_moe_experts",
    "moe_router_topk",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "mtp_num_layers",
)
_SWITCHES = (
    "sequence_parallel",
    "fp16",
    "bf16",
    "gated_linear_unit",
    "multi_latent_attention",
    "add_bias_linear",
    "apply_rope_fusion",
    "bias_activation_fusion",
    "moe_grouped_gemm",
    "cpu_offloading",
    "enable_cuda_graph",
)
"""Fields that may contradict each other."""
_WRONG = (None, True, 0, -1, 2, 0.5, "no such", "", ["list"], ["dict"], ["py", "object()"])
UNKNOWN = ("no_such_field", "enable_routing_replay", "dynamic_context_parallel", "", "1")
METHODS = ("provide", "finalize")


def overridable(of_each: Sequence[Fields]) -> Collection[str]:
    """The names that are drawn: others are no field in one of the stacks."""
    return {*common(of_each), *UNKNOWN, *METHODS}


def provider_overrides(of_each: Sequence[Fields]) -> Descriptions:
    """Overrides of up to four fields; `of_each` are the fields of the provider's class in each stack."""
    fields = common(of_each)
    values = {name: typed(types) | st.sampled_from(_WRONG) for name, types in fields.items()}
    of_any = st.sampled_from(sorted(values)).flatmap(lambda name: st.tuples(st.just(name), values[name]))
    sizes = st.tuples(st.sampled_from([name for name in _SIZES if name in fields]), st.integers(0, 4))
    switches = st.tuples(st.sampled_from([name for name in _SWITCHES if name in fields]), st.booleans())
    choices = st.sampled_from([(name, each) for name in sorted(fields) for each in _choices(fields[name])])
    unknown = st.tuples(st.sampled_from(UNKNOWN + METHODS), st.sampled_from([None, 1]))
    pair = of_any | of_any | sizes | switches | choices | unknown
    pairs = st.lists(pair, min_size=1, max_size=4, unique_by=lambda each: each[0])
    return pairs.map(lambda drawn: ["dict", *(_with_a_text(part) for each in drawn for part in each)])


def _choices(types: list[Any]) -> list[Description]:
    """The values of a type that lists them."""
    return few([kind for kind in types if isinstance(kind, list) and kind[0] in ("literal", "enum")])


def _with_a_text(node: Description) -> Description:
    """The same where no value holds the overrides themselves, nor a set, in no order: messages show them."""
    if not isinstance(node, list):
        return node
    form, *parts = node or ["list"]
    if form == "up":
        return None
    return ["tuple" if form in ("set", "frozenset") else form, *map(_with_a_text, parts)]


def single_overrides(of_each: Sequence[Fields]) -> list[Description]:
    """Overrides of one field, of an unknown name, or of a method."""
    fields = common(of_each)
    return [
        *(["dict", name, value] for name in sorted(fields) for value in (*few(fields[name]), *_WRONG)),
        *(["dict", name, value] for name in UNKNOWN + METHODS for value in (None, 1)),
    ]
