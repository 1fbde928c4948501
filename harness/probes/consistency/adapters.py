"""Adapters of every type on every kind of module: what is merged is what the library peft merges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _peft, _wrap
from harness.probes._models import choice, give_weights
from harness.probes.registry import consistency_probe

PRELOAD = (*_peft.PRELOAD, "peft", "megatron.bridge.models.conversion.auto_bridge")

_ALPHA = 32
_RANK = 8

_FUSED = {
    "attention": ("*self_attention.linear_qkv", "*self_attention.linear_proj"),
    "dense_mlp": ("*mlp.linear_fc1", "*mlp.linear_fc2"),
    "experts": ("*experts.local_experts.*.linear_fc1", "*experts.local_experts.*.linear_fc2"),
    "shared_experts": ("*shared_experts.linear_fc1", "*shared_experts.linear_fc2"),
    "router": ("*router",),
}
"""Kind of module → target modules, where query, key and value, and gate and up, have one adapter."""
_SPLIT = {"linear_qkv": ("linear_q", "linear_k", "linear_v"), "linear_fc1": ("linear_fc1_gate", "linear_fc1_up")}
"""What the fused ones are called where each has its own."""
_EXPORTED = ("attention", "dense_mlp", "shared_experts", "router")
"""Kinds whose adapters can be exported without grouped layers, which need Transformer Engine."""


@consistency_probe(
    enters=(_wrap.MAKE_MEGATRON_MODULE, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("expected.*.*", "wrapped.*"),
    tensors=("expected/*",),
)
def adapter_merge(
    run: Run, *, peft: str = "lora", on: str = "attention", hf_config: str = "glm4_moe"
) -> Mapping[str, Any]:
    """The weights that Bridge exports of a model with an adapter, and those it computes with, against peft's.

    Weights are small whole numbers in float32, so that every sum is exact. Magnitudes of DoRA are twice the norms of
    what they belong to; results are rounded to thousandths.

    Returns:
        `merged` (but for experts of their own, whose adapters Bridge exports from grouped layers alone): by Hugging
        Face name, the exported base weight into which the library peft merges the exported adapter, against what
        `export_hf_weights` makes of both. `computed` (but for routers, which give probabilities): by module, its own
        weight and adapter merged by peft, against its output for the unit matrix. `wrapped`: modules with an adapter.

    Args:
        peft: `lora`, `canonical_lora` or `dora`.
        on: `attention`, `dense_mlp`, `experts`, `shared_experts` or `router`.
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
    """
    targets = _targets(peft, choice("on", on, _FUSED))
    section = _peft.lora_section(peft, rank=_RANK, alpha=_ALPHA, target_modules=targets)
    engine = _engine.construct_engine(
        run, hf_config, dtype="float32", model={"lora": section}, fields={"num_nextn_predict_layers": 0}
    )
    give_weights(run)
    engine._build_tf_config()
    chunks = [_wrap.unwrapped(module) for module in _engine.build_module(run, engine)]
    _fill(chunks)
    wrapped = {name: part for name, part in chunks[0].named_modules() if hasattr(part, "to_wrap")}
    for part in wrapped.values():
        if hasattr(part.adapter, "weight_magnitude"):
            part.adapter.weight_magnitude.data.copy_(2 * part._get_weight_norm())
    found = [_exported(engine.bridge, chunks, wrapped)] if on in _EXPORTED else []
    found += [_computed(wrapped)] if on != "router" else []
    return {
        "expected": {kind: expected for kind, expected, _ in found},
        "actual": {kind: actual for kind, _, actual in found},
        "wrapped": sorted(wrapped),
    }


Compared = tuple[str, dict[str, Any], dict[str, Any]]
"""What was done, what is expected of it by name, and what came of it."""


def _exported(bridge: Any, chunks: Sequence[Any], wrapped: Mapping[str, Any]) -> Compared:
    """Weights that Bridge exports merged, against exported base weights and adapters merged by peft."""

    def export(*, merge: bool) -> dict[str, Any]:
        found = bridge.export_hf_weights(list(chunks), cpu=True, show_progress=False, merge_adapter_weights=merge)
        return {name: value.clone() for name, value in found}

    magnitudes: dict[str, Any] = {}
    if any(hasattr(part.adapter, "weight_magnitude") for part in wrapped.values()):
        with _base_weights(wrapped, lambda part: part.adapter.weight_magnitude.unsqueeze(1)):
            magnitudes = {name: rows[:, 0].clone() for name, rows in export(merge=False).items() if rows.dim() == 2}
    base, merged = export(merge=False), export(merge=True)
    adapters = dict(bridge.export_adapter_weights(list(chunks), cpu=True, show_progress=False))
    expected = {
        name: _merged_by_peft(base[name], *pair, magnitude=magnitudes.get(name))
        for name, pair in _pairs(adapters).items()
    }
    return "merged", expected, {name: _rounded(merged[name]) for name in expected}


def _computed(wrapped: Mapping[str, Any]) -> Compared:
    """What each wrapped module multiplies its input with, against its weights merged by peft.

    Where query, key and value have adapters of their own, the fused layer's rows are ordered by query group: these
    are judged by what is exported.
    """
    plain = {name: part for name, part in wrapped.items() if not hasattr(part.adapter, "adapter_q")}
    expected = {name: _merged_parts(part) for name, part in plain.items()}
    return "computed", expected, {name: _rounded(_effective_weight(part)) for name, part in plain.items()}


def _merged_parts(part: Any) -> Any:
    import torch

    adapter, weight = part.adapter, part.to_wrap.weight
    if not hasattr(adapter, "adapter_gate"):
        magnitude = getattr(adapter, "weight_magnitude", None)
        return _merged_by_peft(weight, adapter.linear_in.weight, adapter.linear_out.weight, magnitude=magnitude)
    halves = zip(weight.chunk(2), (adapter.adapter_gate, adapter.adapter_up), strict=True)
    return torch.cat(
        [_merged_by_peft(half, own.linear_in.weight, own.linear_out.weight, magnitude=None) for half, own in halves]
    )


def _targets(peft: str, fused: Sequence[str]) -> list[str]:
    if peft != "canonical_lora":
        return list(fused)
    return [
        glob.replace(name, part)
        for glob in fused
        for name in [glob.rpartition(".")[2]]
        for part in _SPLIT.get(name, (name,))
    ]


def _fill(chunks: Sequence[Any]) -> None:
    """Small whole numbers, other ones in every row and column."""
    import torch

    with torch.no_grad():
        for chunk in chunks:
            for number, (_, parameter) in enumerate(chunk.named_parameters()):
                values = (torch.arange(parameter.numel()) * 7 + number * 3) % 11 - 5
                parameter.copy_(values.reshape(parameter.shape))


def _pairs(adapters: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Name of a base weight → the two matrices of its exported adapter."""
    first, second = ".lora_A.weight", ".lora_B.weight"
    bases = [name.removesuffix(first) for name in adapters if name.endswith(first)]
    return {f"{base}.weight": (adapters[f"{base}{first}"], adapters[f"{base}{second}"]) for base in bases}


def _merged_by_peft(base: Any, first: Any, second: Any, *, magnitude: Any) -> Any:
    """What the library peft makes of a linear layer with an adapter when it merges it."""
    import peft
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(base.shape[1], base.shape[0], bias=False))
    config = peft.LoraConfig(r=first.shape[0], lora_alpha=_ALPHA, target_modules=["0"], use_dora=magnitude is not None)
    adapted: Any = peft.inject_adapter_in_model(config, model)[0]
    with torch.no_grad():
        adapted.get_base_layer().weight.copy_(base)
        adapted.lora_A["default"].weight.copy_(first)
        adapted.lora_B["default"].weight.copy_(second)
        if magnitude is not None:
            adapted.lora_magnitude_vector["default"].weight.copy_(magnitude)
        adapted.merge()
    return _rounded(adapted.get_base_layer().weight)


def _rounded(weight: Any) -> Any:
    return (weight.detach() * 1000).round() / 1000


@contextmanager
def _base_weights(wrapped: Mapping[str, Any], weight_of: Callable[[Any], Any]) -> Iterator[None]:
    """Put other values into the base weights of wrapped modules for a while; none of them sees another's."""
    own = {name: part.to_wrap.weight.data.clone() for name, part in wrapped.items()}
    others = {name: weight_of(part).detach().clone() for name, part in wrapped.items()}
    for name, part in wrapped.items():
        part.to_wrap.weight.data.copy_(others[name].expand_as(own[name]))
    yield
    for name, part in wrapped.items():
        part.to_wrap.weight.data.copy_(own[name])


def _effective_weight(part: Any) -> Any:
    """What a wrapped linear module multiplies its input with: its output for each unit vector."""
    import torch

    unit = torch.eye(part.to_wrap.weight.shape[1])
    with torch.no_grad():
        output, *_ = part(unit.unsqueeze(1))
    return output.squeeze(1).T
