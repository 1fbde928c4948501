"""Quantization-aware training: verl's patches of Megatron-Core and Megatron-Bridge, and what replaced them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from harness.observe.run import MissingSymbol, Run
from harness.probes import _engine, _hf_weights, _sharded, _wrap
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = (
    *_wrap.PRELOAD,
    *_sharded.PRELOAD,
    *_hf_weights.PRELOAD,
    "megatron.bridge.models.conversion.model_bridge",
    "modelopt.torch.export.quant_utils",
    "modelopt.torch.quantization",
    "modelopt.torch.quantization.plugins.megatron",
)

PATCHES = "verl.utils.modelopt.megatron_qat_patch"
_CONVERSION = "megatron.bridge.models.conversion"
LOCAL_TO_GLOBAL = f"{_CONVERSION}.model_bridge:_megatron_local_name_to_global"
_NVFP4 = "modelopt.torch.quantization.qtensor.nvfp4_tensor"
_PATCHED = {
    "apply_swiglu_sharded_factory": "megatron.core.transformer.mlp:apply_swiglu_sharded_factory",
    "gather_from_ep_ranks": f"{_CONVERSION}.param_mapping:MegatronParamMapping.gather_from_ep_ranks",
    "extract_sort_key": f"{_CONVERSION}.utils:extract_sort_key",
    "extract_sort_key_in_use": f"{_CONVERSION}.model_bridge:extract_sort_key",
    "megatron_local_name_to_global": LOCAL_TO_GLOBAL,
    "is_adapter_param_name": f"{_CONVERSION}.model_bridge:MegatronModelBridge._is_adapter_param_name",
    "detect_parallelism_type": f"{_CONVERSION}.param_mapping:AutoMapping._detect_parallelism_type",
}
"""What the patches replace."""

_STEPS: Mapping[str, tuple[str, ...]] = {
    "as_shipped": ("apply_qat_patch",),
    "native": (),
    "applied": ("apply_qat_patch",),
    "twice": ("apply_qat_patch", "apply_qat_patch"),
    "reverted": ("apply_qat_patch", "revert_qat_patch"),
    "twice_reverted": ("apply_qat_patch", "apply_qat_patch", "revert_qat_patch"),
}

_SCHEMES = ("NVFP4_MLP_WEIGHT_ONLY_CFG", "INT8_WEIGHT_ONLY_CFG")


@probe(
    enters=("verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_megatron_module",),
    returns=("quantizers", "layer_spec"),
)
def qat_engine(run: Run, *, hf_config: str = "qwen3") -> Mapping[str, Any]:
    """The model of verl's engine with `qat.enable`, as its `_build_tf_config` and `_build_megatron_module` make it.

    Returns:
        layer_spec: the layer spec that verl chooses, before the lane forces another.
        quantizers: format, block sizes and whether it is enabled, of every quantizer in the model, by name.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
    """
    qat = run.call("verl.workers.config.engine:QATEngineConfig", enable=True)
    engine = _engine.construct_engine(run, hf_config, engine={"qat": qat})
    engine._build_tf_config()
    layer_spec = engine.provider.transformer_layer_spec
    quantizer = run.upstream("modelopt.torch.quantization.nn:TensorQuantizer")
    found = {
        name: {"enabled": module.is_enabled, "num_bits": module.num_bits, "block_sizes": module.block_sizes}
        for chunk in _engine.build_module(run, engine)
        for name, module in _wrap.unwrapped(chunk).named_modules()
        if isinstance(module, quantizer)
    }
    return {"layer_spec": layer_spec, "quantizers": found}


@probe(
    enters=("modelopt.torch.quantization.model_quant:quantize", "megatron.core.transformer.mlp:MLP.sharded_state_dict"),
    returns=("sections",),
)
def qat_state(
    run: Run, *, hf_config: str = "qwen3", patch: str = "as_shipped", scheme: str = "NVFP4_MLP_WEIGHT_ONLY_CFG"
) -> Mapping[str, Any]:
    """The sharded state dict of a quantized model, quantizer states included.

    Returns:
        sections: of each model chunk, keys and sharded metadata; see `harness.probes._sharded`.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        patch: how verl's patches are used before the model is built. `as_shipped` applies them where this verl has
            them, as its engine does; `native` leaves them alone; `applied`, `twice`, `reverted` and `twice_reverted`
            need them.
        scheme: a config of nvidia-modelopt's: `NVFP4_MLP_WEIGHT_ONLY_CFG`, whose quantizers have one maximum for each
            weight, or `INT8_WEIGHT_ONLY_CFG`, whose maxima lie along the rows and are sharded with them.
    """
    _, chunks = quantized(run, hf_config, patch, scheme)
    return {"sections": states(run, chunks)}


@probe(
    enters=(LOCAL_TO_GLOBAL,),
    returns=("names",),
)
def qat_names(run: Run, *, hf_config: str = "qwen3_moe", patch: str = "as_shipped") -> Mapping[str, Any]:
    """The global name that Megatron-Bridge gives to each parameter of this rank.

    Returns:
        names: by local name. A name that no model of this size has is a parameter that will not be found.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        patch: as `qat_state`.
    """
    _, chunks = built(run, hf_config, patch)
    return {"names": global_names(run, chunks)}


@probe(enters=("modelopt.torch.quantization.model_quant:quantize",), tensors=("exported/*",))
def qat_export(
    run: Run,
    *,
    hf_config: str = "qwen3_moe",
    patch: str = "as_shipped",
    exporter: str = "verl",
    mapped: bool = False,
    scheme: str = "NVFP4_MLP_WEIGHT_ONLY_CFG",
) -> Mapping[str, Any]:
    """The weights of a quantized model as they are sent to the rollout, gathered from all ranks.

    The weights are a function of name and index, so that one expert's cannot be taken for another's.

    Returns:
        exported: by Hugging Face name, each whole.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        patch: as `qat_state`.
        exporter: `bridge` takes Megatron-Bridge's export as it is; `verl` lets verl's exporter pack the weights in
            NVFP4 and add their scales.
        mapped: set `ENABLE_BRIDGE_QUANT_MAPPING`, with which Megatron-Bridge has names for the states of quantizers.
            verl does not set it.
        scheme: as `qat_state`.
    """
    if mapped:
        os.environ["ENABLE_BRIDGE_QUANT_MAPPING"] = "1"
        run.by_hand("ENABLE_BRIDGE_QUANT_MAPPING", "1")
    engine, chunks = quantized(run, hf_config, patch, scheme)
    weights = engine.bridge.export_hf_weights(chunks)
    if choice("exporter", exporter, ("bridge", "verl")) == "verl":
        if run.lane.name == "cpu":
            run.upstream(_NVFP4).fp4_compatible = lambda: False
            run.stand_in(f"{_NVFP4}:fp4_compatible", "False", "it asks a GPU for its compute capability")
        weights = run.call("verl.utils.modelopt:export_qat_weights", weights, chunks, "w4a16", engine.bridge)
    return {"exported": {name: weight.detach().clone() for name, weight in weights}}


def built(run: Run, hf_config: str, patch: str) -> tuple[Any, list[Any]]:
    """An engine and its model chunks, built after the patches were used as `patch` says."""
    engine = _engine.construct_engine(run, hf_config)
    _hf_weights.write_hf_weights(run)
    use_patches(run, patch)
    engine._build_tf_config()
    chunks = _engine.build_module(run, engine)
    for name, function in in_place(run):
        run.comes_from(name, function)
    fill_parameters(chunks, perturbed=run.perturbed)
    return engine, chunks


def quantized(run: Run, hf_config: str, patch: str, scheme: str) -> tuple[Any, list[Any]]:
    """As `built`, and nvidia-modelopt has put its quantizers in."""
    quantization = run.upstream("modelopt.torch.quantization")
    config = getattr(quantization, choice("scheme", scheme, _SCHEMES))
    engine, chunks = built(run, hf_config, patch)
    for chunk in chunks:
        quantization.quantize(chunk, config)
    return engine, chunks


def states(run: Run, chunks: list[Any]) -> list[Any]:
    """Of each model chunk the sharded state dict, without data; see `harness.probes._sharded`."""
    group = run.upstream("megatron.core.parallel_state:get_data_parallel_group")(with_context_parallel=True)
    metadata = {"singleton_local_shards": False, "dp_cp_group": group}
    return [_sharded.described(_wrap.unwrapped(chunk).sharded_state_dict(metadata=dict(metadata))) for chunk in chunks]


def global_names(run: Run, chunks: list[Any]) -> dict[str, str]:
    """The global name that Megatron-Bridge gives to each parameter of this rank, by its local name."""
    to_global = run.upstream(LOCAL_TO_GLOBAL)
    models = [_wrap.unwrapped(chunk) for chunk in chunks]
    return {
        name: to_global(models, models[0].config, name, stage)
        for stage, model in enumerate(models)
        for name, _ in model.named_parameters()
    }


def use_patches(run: Run, patch: str) -> None:
    """Use verl's patches as `patch` says.

    Raises:
        MissingSymbol: this verl has none, and `patch` is neither `as_shipped` nor `native`.
    """
    steps = choice("patch", patch, _STEPS)
    if not steps:
        return
    try:
        patches = run.upstream(PATCHES)
    except MissingSymbol:
        if patch == "as_shipped":
            return
        raise
    for step in steps:
        getattr(patches, step)()


def in_place(run: Run) -> Iterator[tuple[str, Any]]:
    """The functions that the patches replace, as they are now; what a pin does not have is left out."""
    for name, reference in _PATCHED.items():
        try:
            yield name, run.upstream(reference)
        except MissingSymbol:
            continue


def owners(run: Run) -> Iterator[tuple[str, Any]]:
    """The modules and classes of the replaced functions, each once."""
    for owner in dict.fromkeys(_owner_of(reference) for reference in _PATCHED.values()):
        yield owner, run.upstream(owner)


def _owner_of(reference: str) -> str:
    module, _, path = reference.partition(":")
    kind = path.rpartition(".")[0]
    return f"{module}:{kind}" if kind else module
