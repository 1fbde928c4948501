"""Adapters of every type on every kind of module: what is computed, merged and exported is the same model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from harness.observe.run import Run
from harness.probes import _engine, _hugging_face, _peft, _wrap
from harness.probes.registry import consistency_probe

PRELOAD = (*_peft.PRELOAD, "peft", "megatron.bridge.models.conversion.auto_bridge")

_ALPHA = 32
_EXPORTED = ("attention", "dense_mlp", "experts", "router")
"""Kinds that a model has which Bridge exports with ungrouped experts: with shared experts, there is none everywhere."""


@consistency_probe(
    enters=(_wrap.MAKE_MEGATRON_MODULE, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("expected.*.*", "wrapped.*"),
    tensors=("expected/*",),
)
def adapter_merge(
    run: Run, *, peft: str = "lora", on: str = "attention", hf_config: str = "qwen3"
) -> Mapping[str, Any]:
    """The weights of a model with an adapter: computed with, merged by Bridge, and exported for the library peft.

    Weights are small whole numbers in float32, so that every sum is exact. Magnitudes of DoRA are twice the norms of
    what they belong to; results are rounded to thousandths.

    Returns:
        `computed` (but for routers, which give probabilities, and where query, key and value have adapters of their
        own): by module, its own weight and adapter merged by peft, against its output for the unit matrix.
        `merged` (but for shared experts, see below): by Hugging Face name, the weights that `export_hf_weights` gives
        when the modules' weights are those outputs and it shall not merge, against those it merges itself.
        `exported`: the former against base weights and adapters, both exported by Bridge, merged by peft.
        `wrapped`: the modules with an adapter. No Bridge exports a model with shared experts without grouped layers.

    Args:
        peft: `lora`, `canonical_lora` or `dora`.
        on: `attention`, `dense_mlp`, `experts`, `shared_experts` or `router`.
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
    """
    engine = _engine.construct_engine(
        run,
        hf_config,
        dtype="float32",
        model={"lora": _peft.section_on(peft, on, alpha=_ALPHA)},
        fields={"num_nextn_predict_layers": 0},
    )
    _hugging_face.write_random_weights()
    engine._build_tf_config()
    chunks = [_wrap.unwrapped(module) for module in _engine.build_module(run, engine)]
    _fill(chunks)
    wrapped = {name: part for name, part in chunks[0].named_modules() if hasattr(part, "to_wrap")}
    for part in wrapped.values():
        if hasattr(part.adapter, "weight_magnitude"):
            part.adapter.weight_magnitude.data.copy_(2 * part._get_weight_norm())
    by_peft = {name: _by_peft(part) for name, part in wrapped.items() if not hasattr(part.adapter, "adapter_q")}
    computed = {name: _computed(part) for name, part in wrapped.items() if on != "router"}
    both = sorted(by_peft.keys() & computed.keys())
    found = (
        {"computed": ({name: by_peft[name] for name in both}, {name: computed[name] for name in both})} if both else {}
    )
    if on in _EXPORTED:
        found |= _handed_out(engine.bridge, chunks, wrapped, computed or by_peft)
    return {
        "expected": {kind: expected for kind, (expected, _) in found.items()},
        "actual": {
            kind: {name: _rounded(actual[name]) for name in expected} for kind, (expected, actual) in found.items()
        },
        "wrapped": sorted(wrapped),
    }


Compared = tuple[dict[str, Any], dict[str, Any]]
"""Weights by name, as they should be and as they are."""


def _handed_out(
    bridge: Any, chunks: Sequence[Any], wrapped: Mapping[str, Any], whole: Mapping[str, Any]
) -> dict[str, Compared]:
    """What Bridge merges, and what peft merges of its exports, against an export of the `whole` weights."""

    def export(*, merge: bool) -> dict[str, Any]:
        found = bridge.export_hf_weights(list(chunks), cpu=True, show_progress=False, merge_adapter_weights=merge)
        return {name.replace(".base_layer.", "."): value.clone() for name, value in found}

    base, merged = export(merge=False), export(merge=True)
    adapters = dict(bridge.export_adapter_weights(list(chunks), cpu=True, show_progress=False))
    with _base_weights(wrapped, whole):
        unmerged = export(merge=False)
    by_peft = {name: _merged_by_peft(base[name], *pair) for name, pair in _pairs(adapters).items()}
    expected = {name: _rounded(unmerged[name]) for name in by_peft}
    return {"merged": (expected, merged), "exported": (expected, by_peft)}


def _by_peft(part: Any) -> Any:
    """A module's own weight with its own adapter, merged by the library peft."""
    import torch

    adapter, weight = part.adapter, part.to_wrap.weight
    if not hasattr(adapter, "adapter_gate"):
        magnitude = getattr(adapter, "weight_magnitude", None)
        return _rounded(_merged_by_peft(weight, adapter.linear_in.weight, adapter.linear_out.weight, magnitude))
    halves = zip(weight.chunk(2), (adapter.adapter_gate, adapter.adapter_up), strict=True)
    return _rounded(
        torch.cat([_merged_by_peft(half, own.linear_in.weight, own.linear_out.weight) for half, own in halves])
    )


def _computed(part: Any) -> Any:
    """What a module with an adapter multiplies its input with: its output for each unit vector."""
    import torch

    unit = torch.eye(part.to_wrap.weight.shape[1])
    with torch.no_grad():
        output, *_ = part(unit.unsqueeze(1))
    return output.squeeze(1).T


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


def _merged_by_peft(base: Any, first: Any, second: Any, magnitude: Any = None) -> Any:
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
    return adapted.get_base_layer().weight


def _rounded(weight: Any) -> Any:
    return (weight.detach() * 1000).round() / 1000


@contextmanager
def _base_weights(wrapped: Mapping[str, Any], weights: Mapping[str, Any]) -> Iterator[None]:
    """Put other values into the base weights of wrapped modules for a while."""
    own = {name: part.to_wrap.weight.data.clone() for name, part in wrapped.items()}
    for name, part in wrapped.items():
        part.to_wrap.weight.data.copy_(weights[name].detach())
    yield
    for name, part in wrapped.items():
        part.to_wrap.weight.data.copy_(own[name])
