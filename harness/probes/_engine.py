"""verl's Megatron engine, built inside a probe with upstream's own config classes and constructor."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from harness.observe.run import MissingSymbol, Run
from harness.probes._models import write_model_folder

PRELOAD = (
    "megatron.bridge",
    "megatron.bridge.training.config",
    "megatron.bridge.training.utils.config_utils",
    "megatron.core.dist_checkpointing.strategies.filesystem_async",
    "mbridge",
    "torch.utils.serialization.config",
    "verl.models.mcore.bridge",
    "verl.models.mcore.mbridge",
    "verl.utils.megatron.optimizer",
    "verl.workers.config.megatron_peft",
    "verl.workers.engine.megatron.transformer_impl",
)
"""What every probe that builds an engine lets the worker import."""

_ENGINE = "verl.workers.engine.megatron.transformer_impl:MegatronEngine"

_HOOKS = {
    "make_megatron_module": "verl.utils.megatron_utils:make_megatron_module",
    "AutoBridge": "verl.models.mcore.bridge:AutoBridge",
    "freeze_moe_router": "verl.models.mcore.bridge:freeze_moe_router",
    "make_value_model": "verl.models.mcore.bridge:make_value_model",
    "create_ddp_config": "megatron.bridge.training.utils.config_utils:create_ddp_config",
    "create_peft_hook": "megatron.bridge.peft.utils:create_peft_hook",
    "load_peft_adapter_checkpoint": "megatron.bridge.peft.utils:load_peft_adapter_checkpoint",
}


def construct_engine(
    run: Run,
    hf_config: str,
    *,
    dtype: str = "bfloat16",
    model: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    tokenizer: bool = False,
    fields: Mapping[str, Any] | None = None,
    engine_class: str = _ENGINE,
) -> Any:
    """A `MegatronEngine` through its real constructor, with process groups as the run's layout asks.

    Args:
        hf_config: see `harness.probes._models.write_model_folder`.
        dtype: parameter dtype; `float32`, which verl's config class refuses, is set by hand after construction.
        model: further fields of `HFModelConfig`.
        engine: further fields of `McoreEngineConfig`. `vanilla_mbridge` is False on every pin unless given; None leaves
            it to the pin.
        checkpoint: fields of `CheckpointConfig`.
        tokenizer: give the model folder a tokenizer, and let `HFModelConfig` load it.
        fields: of the Hugging Face config, in the place of its own.
        engine_class: `MegatronEngine`, or one derived from it.
    """
    folder = write_model_folder(run, hf_config, tokenizer=tokenizer, fields=fields)
    run.lane.start_distributed(run)
    return run.call(
        engine_class,
        model_config=run.call(
            "verl.workers.config:HFModelConfig", path=str(folder), load_tokenizer=tokenizer, **(model or {})
        ),
        engine_config=engine_config(run, dtype=dtype, **(engine or {})),
        optimizer_config=run.call("verl.workers.config:McoreOptimizerConfig", lr=1e-3, total_training_steps=10),
        checkpoint_config=run.call("verl.trainer.config:CheckpointConfig", **(checkpoint or {})),
    )


def engine_config(run: Run, *, dtype: str = "bfloat16", **fields: Any) -> Any:
    """A `McoreEngineConfig` with the parallel sizes of the run's layout."""
    sizes = run.layout.model_parallel_sizes | {"sequence_parallel": run.layout.sequence_parallel}
    refused = dtype == "float32"
    chosen = {"vanilla_mbridge": False, "seed": run.seed, "dtype": "bfloat16" if refused else dtype}
    given = sizes | chosen | fields
    if given["vanilla_mbridge"] is None:
        del given["vanilla_mbridge"]
    config = run.call("verl.workers.config:McoreEngineConfig", **given)
    if refused:
        # BaseConfig freezes its fields; MegatronEngine itself has no objection to float32.
        object.__setattr__(config, "dtype", run.by_hand("McoreEngineConfig.dtype", dtype))
    return config


def resolved_config(engine: Any) -> Any:
    """The config after `_build_tf_config`: the provider on the Bridge branch, the transformer config on the other."""
    return engine.tf_config if engine.provider is None else engine.provider


def observed_config(config: Any) -> dict[str, Any]:
    """`config`, every field of it, and `other_attributes`: what was set on it beside its fields.

    A Hugging Face config among them stands as its own `to_dict()`, without the version of its writer: how transformers
    keeps one in memory is its affair.
    """
    shown = copy.copy(config)
    for name, value in vars(config).items():
        if hasattr(value, "to_json_string"):
            object.__setattr__(shown, name, {"(class)": type(value).__name__, **value.to_dict()})
            getattr(shown, name).pop("transformers_version", None)
    names = {field.name for field in fields(config)}
    return {"config": shown, "other_attributes": {key: value for key, value in vars(shown).items() if key not in names}}


def build_module(run: Run, engine: Any, *, spec: str = "local") -> list[Any]:
    """The model chunks of `engine`, built by its real `_build_megatron_module`, which calls `make_megatron_module`.

    Call `engine._build_tf_config()` first. `spec`: whose layers, `local` or `transformer_engine`.
    """
    prepare_build(run, engine, spec=spec)
    engine.module = engine._build_megatron_module()
    record_hooks(run, engine.provider)
    return list(engine.module)


def prepare_build(run: Run, engine: Any, *, spec: str = "local", loads: bool = False) -> None:
    """After `_build_tf_config`, before a build: let the lane force what it must, and let nothing be loaded.

    The model folder has no weights, unless a probe wrote some and says `loads`; see `harness.probes._weights` for what
    parameters get instead.
    """
    _resolve_configs(run, engine)
    run.lane.force(run, resolved_config(engine), spec)
    record_provenance(run, engine)
    if loads:
        return
    loaders = [(engine.bridge, name) for name in ("load_hf_weights", "load_weights") if hasattr(engine.bridge, name)]
    if engine.engine_config.use_dist_checkpointing:
        loaders.append((run.upstream(_ENGINE.partition(":")[0]), "load_mcore_dist_weights"))
    for owner, name in loaders:
        of = owner.__name__ if inspect.ismodule(owner) else type(owner).__name__
        run.stand_in(f"{of}.{name}", "nothing", "weights are set after the build")
        setattr(owner, name, lambda *_arguments, **_keywords: None)


def _resolve_configs(run: Run, engine: Any) -> None:
    """Show the run the configs that decide what is built: the model's, and the one its chunks are wrapped with."""
    if run.restored is None:
        return
    run.resolve("config", resolved_config(engine))
    if engine.provider is None:
        owner, name = run.upstream("megatron.core.distributed:DistributedDataParallel"), "__init__"
    else:
        owner, name = type(engine.provider), "provide_distributed_model"
    original = getattr(owner, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def shown(*arguments: Any, **keywords: Any) -> Any:
        ddp_config = signature.bind(*arguments, **keywords).arguments.get("ddp_config")
        if ddp_config is not None:
            run.resolve("ddp_config", ddp_config)
        return original(*arguments, **keywords)

    setattr(owner, name, shown)


def initialize(run: Run, engine: Any, *, loads: bool = False) -> Any:
    """Run the engine's whole `initialize`, and return the config as it was when `_build_tf_config` had resolved it.

    `loads`: see `prepare_build`.
    """
    build_tf_config = engine._build_tf_config
    resolved: list[Any] = []

    def build_then_prepare() -> None:
        build_tf_config()
        resolved.append(copy.deepcopy(resolved_config(engine)))
        prepare_build(run, engine, loads=loads)

    engine._build_tf_config = build_then_prepare
    run.stand_in("MegatronEngine._build_tf_config", "itself, then what the lane forces", "initialize goes on to build")
    engine.initialize()
    return resolved[0]


def record_provenance(run: Run, engine: Any) -> None:
    """Record where verl's builder, the hooks it uses, and this engine's bridge and config really come from."""
    run.comes_from("bridge", type(engine.bridge))
    run.comes_from("resolved_config", type(resolved_config(engine)))
    for name, reference in _HOOKS.items():
        try:
            run.comes_from(name, run.upstream(reference))
        except MissingSymbol as missing:
            run.provenance[name] = f"absent: {missing}"
        except ImportError as broken:
            # Upstream's own `except ImportError` takes another path here, without a word.
            run.provenance[name] = f"import fails: {broken}"


def record_hooks(run: Run, provider: Any) -> None:
    """Record, in order, where each hook registered on the provider really comes from; the vanilla branch has none."""
    for stage in ("pre", "post"):
        for position, hook in enumerate(getattr(provider, f"_{stage}_wrap_hooks", ())):
            run.comes_from(f"{stage}_wrap_hook.{position}", hook)
