"""Quantization-aware training: verl's patches of Megatron-Core and Megatron-Bridge, and what replaced them."""

from __future__ import annotations

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

_PATCHES = "verl.utils.modelopt.megatron_qat_patch"
_CONVERSION = "megatron.bridge.models.conversion"
_PATCHED = {
    "apply_swiglu_sharded_factory": "megatron.core.transformer.mlp:apply_swiglu_sharded_factory",
    "gather_from_ep_ranks": f"{_CONVERSION}.param_mapping:MegatronParamMapping.gather_from_ep_ranks",
    "extract_sort_key": f"{_CONVERSION}.utils:extract_sort_key",
    "extract_sort_key_in_use": f"{_CONVERSION}.model_bridge:extract_sort_key",
    "megatron_local_name_to_global": f"{_CONVERSION}.model_bridge:_megatron_local_name_to_global",
    "is_adapter_param_name": f"{_CONVERSION}.model_bridge:MegatronModelBridge._is_adapter_param_name",
    "detect_parallelism_type": f"{_CONVERSION}.param_mapping:AutoMapping._detect_parallelism_type",
}
"""What the patches replace."""

_STEPS: Mapping[str, tuple[str, ...]] = {
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


@probe(enters=(f"{_PATCHES}:apply_qat_patch",), returns=("left", "functions"))
def qat_patch(run: Run, *, patch: str = "reverted") -> Mapping[str, Any]:
    """What verl's patches leave of Megatron-Core and Megatron-Bridge.

    Returns:
        functions: of each function that the patches replace, whether it is the original object.
        left: names that the patches added to the modules and classes of those functions, and that are still there.

    Args:
        patch: `applied`, `twice` or `reverted`; `twice_reverted` reverts once after two applications.
    """
    run.upstream(_PATCHES)
    before = dict(_in_place(run))
    owned = {reference: set(vars(owner)) for reference, owner in _owners(run)}
    _patch(run, patch)
    left = {reference: set(vars(owner)) - owned[reference] for reference, owner in _owners(run)}
    return {
        "functions": {name: function is before[name] for name, function in _in_place(run)},
        "left": {reference: names for reference, names in left.items() if names},
    }


@probe(
    enters=("modelopt.torch.quantization.model_quant:quantize", "megatron.core.transformer.mlp:MLP.sharded_state_dict"),
    returns=("sections",),
)
def qat_state(
    run: Run, *, hf_config: str = "qwen3", patch: str = "native", scheme: str = "NVFP4_MLP_WEIGHT_ONLY_CFG"
) -> Mapping[str, Any]:
    """The sharded state dict of a quantized model, quantizer states included.

    Returns:
        sections: of each model chunk, keys and sharded metadata; see `harness.probes._sharded`.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        patch: `native`, or how verl's patches are used before the model is built: `applied`, `twice` or `reverted`. A
            stack that does not have them any more stays as it is, which the provenance tells.
        scheme: a config of nvidia-modelopt's: `NVFP4_MLP_WEIGHT_ONLY_CFG`, whose quantizers have one maximum for each
            weight, or `INT8_WEIGHT_ONLY_CFG`, whose maxima lie along the rows and are sharded with them.
    """
    _, chunks = _quantized(run, hf_config, patch, scheme)
    group = run.upstream("megatron.core.parallel_state:get_data_parallel_group")(with_context_parallel=True)
    metadata = {"singleton_local_shards": False, "dp_cp_group": group}
    states = [_wrap.unwrapped(chunk).sharded_state_dict(metadata=dict(metadata)) for chunk in chunks]
    return {"sections": [_sharded.described(state) for state in states]}


@probe(
    enters=(f"{_CONVERSION}.model_bridge:_megatron_local_name_to_global | {_PATCHES}:apply_qat_patch",),
    returns=("names",),
)
def qat_names(run: Run, *, hf_config: str = "qwen3_moe", patch: str = "native") -> Mapping[str, Any]:
    """The global name that Megatron-Bridge gives to each parameter of this rank.

    Returns:
        names: by local name. A name that no model of this size has is a parameter that will not be found.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        patch: as `qat_state`.
    """
    _, chunks = _built(run, hf_config, patch)
    to_global = run.upstream(f"{_CONVERSION}.model_bridge:_megatron_local_name_to_global")
    models = [_wrap.unwrapped(chunk) for chunk in chunks]
    return {
        "names": {
            name: to_global(models, models[0].config, name, stage)
            for stage, model in enumerate(models)
            for name, _ in model.named_parameters()
        }
    }


@probe(enters=("modelopt.torch.quantization.model_quant:quantize",), returns=("names",), tensors=("exported/*",))
def qat_export(
    run: Run,
    *,
    hf_config: str = "qwen3_moe",
    patch: str = "native",
    exporter: str = "verl",
    scheme: str = "NVFP4_MLP_WEIGHT_ONLY_CFG",
) -> Mapping[str, Any]:
    """The weights of a quantized model as they are sent to the rollout, gathered from all ranks.

    The weights are a function of name and index, so that one expert's cannot be taken for another's.

    Returns:
        names: in the order of the export.
        exported: by Hugging Face name, each whole.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        patch: as `qat_state`.
        exporter: `bridge` takes Megatron-Bridge's export as it is; `verl` lets verl's exporter pack the weights in
            NVFP4 and add their scales.
        scheme: as `qat_state`.
    """
    engine, chunks = _quantized(run, hf_config, patch, scheme)
    weights = engine.bridge.export_hf_weights(chunks)
    if choice("exporter", exporter, ("bridge", "verl")) == "verl":
        weights = run.call("verl.utils.modelopt:export_qat_weights", weights, chunks, "w4a16", engine.bridge)
    found = [(name, weight.detach().clone()) for name, weight in weights]
    return {"names": [name for name, _ in found], "exported": dict(found)}


def _built(run: Run, hf_config: str, patch: str) -> tuple[Any, list[Any]]:
    """An engine and its model chunks, built after the patches were used as `patch` says."""
    engine = _engine.construct_engine(run, hf_config)
    _hf_weights.write_hf_weights(run)
    _patch(run, patch)
    engine._build_tf_config()
    chunks = _engine.build_module(run, engine)
    for name, function in _in_place(run):
        run.comes_from(name, function)
    fill_parameters(chunks, perturbed=run.perturbed)
    return engine, chunks


def _quantized(run: Run, hf_config: str, patch: str, scheme: str) -> tuple[Any, list[Any]]:
    quantization = run.upstream("modelopt.torch.quantization")
    config = getattr(quantization, choice("scheme", scheme, _SCHEMES))
    engine, chunks = _built(run, hf_config, patch)
    for chunk in chunks:
        quantization.quantize(chunk, config)
    return engine, chunks


def _patch(run: Run, patch: str) -> None:
    steps = choice("patch", patch, _STEPS)
    try:
        patches = run.upstream(_PATCHES)
    except MissingSymbol as missing:
        run.provenance["qat_patch"] = f"absent: {missing}"
        return
    for step in steps:
        getattr(patches, step)()
    run.provenance["qat_patch"] = f"{_PATCHES}, {patch}"


def _in_place(run: Run) -> Iterator[tuple[str, Any]]:
    """The functions that the patches replace, as they are now; what a pin does not have is left out."""
    for name, reference in _PATCHED.items():
        try:
            yield name, run.upstream(reference)
        except MissingSymbol:
            continue


def _owners(run: Run) -> Iterator[tuple[str, Any]]:
    """The modules and classes of the replaced functions, each once."""
    for owner in dict.fromkeys(_owner_of(reference) for reference in _PATCHED.values()):
        yield owner, run.upstream(owner)


def _owner_of(reference: str) -> str:
    module, _, path = reference.partition(":")
    kind = path.rpartition(".")[0]
    return f"{module}:{kind}" if kind else module
