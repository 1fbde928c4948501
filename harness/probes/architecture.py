"""The provider that Megatron-Bridge and verl make of the default config of every Hugging Face class Bridge knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import MissingSymbol, Run
from harness.probes import _engine
from harness.probes.registry import probe

PRELOAD = (*_engine.PRELOAD, "megatron.bridge.models.conversion.auto_bridge", "transformers")

_BRIDGE = "megatron.bridge.models.conversion.auto_bridge:AutoBridge"


@probe(
    enters=("verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",),
    returns=("config", "other_attributes"),
)
def architecture(run: Run, *, hf_config: str) -> Mapping[str, Any]:
    """The provider after the real `MegatronEngine._build_tf_config`, on the Bridge branch.

    Args:
        hf_config: the name of a transformers model class, for its default config shrunk to two layers, made by the
            stack's own transformers; or the path of a Hugging Face `config.json`, which is taken as it is.

    Returns:
        `config`: the provider, every field of it. `other_attributes`: what was set on it beside its fields.
    """
    engine = _engine.construct_engine(run, hf_config)
    engine._build_tf_config()
    _engine.record_provenance(run, engine)
    return _engine.observed_config(_engine.resolved_config(engine))


@probe(enters=(f"{_BRIDGE}.list_supported_models",), returns=("registered.LlamaForCausalLM",))
def architectures(run: Run) -> Mapping[str, Any]:
    """The model classes that the stack's Megatron-Bridge registers.

    Returns:
        `registered`: class name → name of its config class in the stack's transformers, None where that has none.
    """
    names = run.upstream(_BRIDGE).list_supported_models()
    return {"registered": {name: _config_class(run, name) for name in names}}


def _config_class(run: Run, architecture: str) -> str | None:
    try:
        found: str = run.upstream(f"transformers:{architecture}.config_class").__name__
    except MissingSymbol:
        return None
    return found
