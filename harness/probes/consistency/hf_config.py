"""Hugging Face config → provider → Hugging Face config: does every field arrive, and does it come back?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cached_property, partial
from typing import Any

from harness.observe.codec import canonical_bytes, encode
from harness.observe.run import Run
from harness.probes import _architectures
from harness.probes._architectures import Architecture
from harness.probes._models import choice
from harness.probes._other_values import UNVARIED, another_value
from harness.probes.registry import consistency_probe

PRELOAD = _architectures.PRELOAD

_FINE = "arrives and comes back"
_NO_CLASS = "no config class"


@dataclasses.dataclass(frozen=True)
class _Change:
    """Fields with other values.

    Attributes:
        fields: of the language model's config.
        outside: of the whole config, where that is another.
        than: fields of the language model's config that the changed one is compared with; none is the default.
    """

    name: str
    fields: Mapping[str, Any]
    outside: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    than: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_default(self) -> bool:
        """Whether nothing is changed."""
        return not (self.fields or self.outside)


Changes = Iterator[_Change]

_ROPE_KINDS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.5,
        "mscale_all_dim": 0.25,
        "truncate": False,
    },
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 2.0,
        "high_freq_factor": 8.0,
        "original_max_position_embeddings": 512,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}
"""Rotary embedding by `rope_type`, with every value it has away from its default."""


_ROUTING = (
    "aux_loss_alpha",
    "moe_router_use_expert_bias",
    "n_group",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "scoring_func",
    "seq_aux",
    "topk_group",
    "topk_method",
    "use_expert_bias",
)
"""How configs call what decides which experts a token goes to, and with which weight."""

_NOT_OF_THE_MODEL = (
    "max_seq_len",
    "model_type",
    "num_logits_to_keep",
    "output_router_logits",
    "pretraining_tp",
    "use_cache",
)
"""What configs say of generation and of what to return."""


@consistency_probe(
    enters=("megatron.bridge.models.conversion.auto_bridge:AutoBridge.to_megatron_provider",),
    returns=("expected.Qwen3MoeForCausalLM.*",),
)
def hf_round_trip(run: Run, *, fields: str = "default") -> Mapping[str, Any]:
    """For every architecture that Megatron-Bridge registers, one changed field after the other.

    A change arrives if it makes another provider than the default config does. It comes back if the config that the
    bridge makes of this provider gives the same provider again: what Bridge exports then says what Megatron computes.

    Args:
        fields: which are changed: `default` (none: the round trip of the default config alone), `plain` (every number,
            flag and known name of the language model's config, one at a time), `rope` (every kind of rotary
            embedding), `tied` (tied embeddings in the language model's config, in the whole one, in both), `layers`
            (patterns that differ from layer to layer: dense and expert layers, windows, layer types), or `routing`
            (every option of routing to experts that arrives alone, all of them together).

    Returns:
        By architecture and change, under `expected` that it arrives and comes back, under `actual` the same or what
        became of it: `ignored`, `refused: …`, or the provider's fields that differ after the round trip (but for those
        that differ after that of the default config).
    """
    outcomes_of: Callable[[Run, Architecture], dict[str, str]] = choice("fields", fields, _OUTCOMES)
    registered = _architectures.registered(run)
    found = {name: outcomes_of(run, known) for name, known in registered.items() if known is not None}
    if fields == "default":
        found |= {name: {"(default)": _NO_CLASS} for name, known in registered.items() if known is None}
    actual = {name: outcomes for name, outcomes in found.items() if outcomes}
    return {"expected": {name: dict.fromkeys(outcomes, _FINE) for name, outcomes in actual.items()}, "actual": actual}


def _outcomes(make: Callable[[Architecture], Changes], run: Run, known: Architecture) -> dict[str, str]:
    """By name of the change, what became of it; nothing of an architecture whose default config alone is refused."""
    default = _RoundTrip(run, known, known.config({}, {}))
    changes = list(make(known))
    if default.refusal is not None:
        return {change.name: default.refusal for change in changes if change.is_default}
    outcomes = {change.name: _outcome(run, known, default, change) for change in changes}
    return {name: outcome for name, outcome in outcomes.items() if outcome is not None}


def _outcome(run: Run, known: Architecture, default: _RoundTrip, change: _Change) -> str | None:
    """What becomes of changed fields; None where what they are compared with has been told to be lost already."""
    try:
        changed = _RoundTrip(run, known, known.config(change.fields, change.outside))
        than = _RoundTrip(run, known, known.config(change.than, {})) if change.than else default
    except Exception as error:  # noqa: BLE001 - the config class refuses the value: it is said
        return _refusal(error)
    if change.is_default:
        return _told(default.unlike_itself)
    if than.refusal is not None or (change.than and than.provider == default.provider):
        return None
    if changed.refusal is not None:
        return changed.refusal
    if changed.provider == than.provider:
        return "ignored"
    return _told(changed.unlike_itself - than.unlike_itself)


def _together(run: Run, known: Architecture) -> dict[str, str]:
    """Options of routing that arrive alone, all at once: each does what it does alone, and nothing more is lost."""
    changed = {name: another_value(name, known.text[name]) for name in _ROUTING if name in known.text}
    default = _RoundTrip(run, known, known.config({}, {}))
    alone = {
        name: trip
        for name, value in changed.items()
        if value is not UNVARIED and (trip := _tried(run, known, {name: value})) is not None
        if trip.refusal is None and trip.provider != default.provider
    }
    if not alone:
        return {}
    whole = _RoundTrip(run, known, known.config({name: changed[name] for name in alone}, {}))
    if whole.refusal is not None:
        return {"routing": whole.refusal}
    moved = {field for trip in alone.values() for field in default.unlike(trip)}
    otherwise = {
        field
        for field in moved
        if all(field not in default.unlike(trip) or field in trip.unlike(whole) for trip in alone.values())
    }
    if otherwise:
        return {"routing": f"arrives otherwise: {', '.join(sorted(otherwise))}"}
    lost = frozenset[str]().union(*(trip.unlike_itself for trip in alone.values()))
    return {"routing": _told(whole.unlike_itself - lost)}


def _tried(run: Run, known: Architecture, fields: Mapping[str, Any]) -> _RoundTrip | None:
    """A changed config; None where the config class refuses the value."""
    try:
        return _RoundTrip(run, known, known.config(fields, {}))
    except Exception:  # noqa: BLE001 - what is refused alone is told by `plain`
        return None


class _RoundTrip:
    """Hugging Face config → provider → Hugging Face config → provider.

    Attributes:
        provider: every field of the first provider but for Hugging Face configs that it carries along.
        refusal: why there is none.
    """

    def __init__(self, run: Run, known: Architecture, config: Any) -> None:
        self._run = run
        self._known = known
        self.provider: dict[str, bytes] = {}
        self.refusal: str | None = None
        try:
            self._bridge, self._made = self._bridged(config)
            self.provider = _described(self._made)
        except Exception as error:  # noqa: BLE001 - what upstream raises is the answer
            self.refusal = _refusal(error)

    @cached_property
    def unlike_itself(self) -> frozenset[str]:
        """Fields in which the second provider is not the first; why there is no second one."""
        try:
            exported = self._bridge._model_bridge.megatron_to_hf_config(self._made)
            again = _described(self._bridged(self._known.made_of(exported))[1])
        except Exception as error:  # noqa: BLE001 - as above
            return frozenset({_refusal(error)})
        return _unlike(self.provider, again)

    def unlike(self, other: _RoundTrip) -> frozenset[str]:
        """Fields in which another provider differs."""
        return _unlike(self.provider, other.provider)

    def _bridged(self, config: Any) -> tuple[Any, Any]:
        bridge = self._run.upstream(_architectures.AUTO_BRIDGE).from_hf_config(config)
        return bridge, bridge.to_megatron_provider(load_weights=False)


def _unlike(provider: Mapping[str, bytes], other: Mapping[str, bytes]) -> frozenset[str]:
    return frozenset(name for name in {*provider, *other} if provider.get(name) != other.get(name))


def _told(unlike: Set[str]) -> str:
    return f"comes back otherwise: {', '.join(sorted(unlike))}" if unlike else _FINE


def _refusal(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"refused: {type(error).__name__}: {first}"


def _described(provider: Any) -> dict[str, bytes]:
    values = {field.name: getattr(provider, field.name) for field in dataclasses.fields(provider)}
    plain = {name: value for name, value in values.items() if not hasattr(value, "to_dict")}
    return {name: canonical_bytes(encode(value).tree) for name, value in plain.items()}


# Changes --------------------------------------------------------------------------------------------------------------


def _default(_known: Architecture) -> Changes:
    yield _Change("(default)", {})


def _plain(known: Architecture) -> Changes:
    generic = _generic_fields(known)
    for name, value in known.text.items():
        other = another_value(name, value)
        if name not in generic and not name.endswith("_token_id") and other is not UNVARIED:
            yield _Change(name, {name: other} | _without_layer_lists(known, name))


def _generic_fields(known: Architecture) -> set[str]:
    """What every config has, whatever the model: labels, generation, what to return."""
    from transformers import PretrainedConfig

    return {*PretrainedConfig().to_dict(), *_NOT_OF_THE_MODEL} - {"num_hidden_layers"}


def _without_layer_lists(known: Architecture, name: str) -> dict[str, None]:
    """With another number of layers, lists that have an entry per layer are left to the class."""
    if name != "num_hidden_layers":
        return {}
    count = known.text[name]
    return {key: None for key, value in known.text.items() if isinstance(value, list) and len(value) == count}


def _rope(known: Architecture) -> Changes:
    name = next((name for name in ("rope_parameters", "rope_scaling") if name in known.text), None)
    theta = (known.text.get("rope_parameters") or {}).get("rope_theta", known.text.get("rope_theta", 10000.0))
    if name is None or not isinstance(theta, float | int):
        return
    base = {"rope_theta": theta} if name == "rope_parameters" else {}
    other = {"rope_theta": 54321.0}
    yield _Change("rope_theta", {name: {"rope_type": "default"} | other} if base else other)
    for kind, values in _ROPE_KINDS.items():
        whole = base | {"rope_type": kind} | values
        yield _Change(kind, {name: whole})
        for key in values:
            yield _Change(f"{kind}.{key}", {name: whole | {key: _doubled(values[key])}}, than={name: whole})


def _doubled(value: Any) -> Any:
    return not value if isinstance(value, bool) else value * 2


def _tied(known: Architecture) -> Changes:
    name = "tie_word_embeddings"
    inside, outside = known.text.get(name), known.default.get(name) if known.text_path else None
    if inside is not None:
        yield _Change("inside", {name: not inside})
    if outside is not None:
        yield _Change("outside", {}, {name: not outside})
    if inside is not None and outside is not None:
        yield _Change("both", {name: not inside}, {name: not inside})


def _layers(known: Architecture) -> Changes:
    text = known.text
    count = text.get("num_hidden_layers") or 0
    patterns: dict[str, dict[str, Any]] = {
        "first_k_dense_replace": {"first_k_dense_replace": 2},
        "moe_layer_freq": {"moe_layer_freq": 2},
        "moe_layer_freq list": {"moe_layer_freq": [0, 0, *[1, 0] * (count // 2)][:count]},
        "decoder_sparse_step": {"decoder_sparse_step": 2},
        "mlp_only_layers": {"mlp_only_layers": [0, 2]},
        "moe_layers_enum": {"moe_layers_enum": "1,3"},
        "sliding_window": {"sliding_window": 77, "use_sliding_window": True},
        "max_window_layers": {"sliding_window": 77, "use_sliding_window": True, "max_window_layers": 1},
        "sliding_window_pattern": {"sliding_window_pattern": 3},
        "layer_types": {"layer_types": _other_layer_types(text.get("layer_types"))},
        "no_rope_layers": {"no_rope_layers": [0, 1] * (count // 2)},
        "full_attention_interval": {"full_attention_interval": 2},
        "mlp_layer_types": {"mlp_layer_types": _other_layer_types(text.get("mlp_layer_types"))},
    }
    for name, fields in patterns.items():
        own = name.partition(" ")[0]
        if own in text and fields[next(iter(fields))] is not None:
            derived = {"layer_types": None} if "window" in own and "layer_types" in text else {}
            yield _Change(name, {key: value for key, value in fields.items() if key in text} | derived)


def _other_layer_types(types: Any) -> list[str] | None:
    """The same layer types in another order; None where there is no order to change."""
    if not isinstance(types, list) or len(set(types)) < 2:
        return None
    return list(reversed(types)) if types != list(reversed(types)) else [*types[1:], types[0]]


_OUTCOMES: dict[str, Callable[[Run, Architecture], dict[str, str]]] = {
    "default": partial(_outcomes, _default),
    "plain": partial(_outcomes, _plain),
    "rope": partial(_outcomes, _rope),
    "tied": partial(_outcomes, _tied),
    "layers": partial(_outcomes, _layers),
    "routing": _together,
}
