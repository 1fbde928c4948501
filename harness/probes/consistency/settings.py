"""Every setting of the user at another value than its default: does it arrive, or is its loss said?"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.observe.codec import canonical_bytes, encode
from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._models import choice
from harness.probes._other_values import UNVARIED, annotations_of, another_value
from harness.probes._said import listening
from harness.probes.registry import consistency_probe

PRELOAD = (*_engine.PRELOAD, "megatron.bridge.peft.lora", "megatron.core.optimizer", "yaml")

_FINE = "arrives, or its loss is said"
_UNKNOWN = "no_such_setting"
"""A name that no pin knows, such as one that was renamed."""

_LOSS = re.compile(r"ignor|supported|unknown|drop|deprecat|no effect|instead|has no|disabl", re.IGNORECASE)
"""How upstream may say of a setting that it is lost; to print every setting says nothing."""

Resolve = Callable[[dict[str, Any]], Mapping[str, Any]]
"""From what the user sets to every field of what it is resolved to."""


@dataclasses.dataclass(frozen=True)
class _Kind:
    """One place in which a user sets things.

    Attributes:
        settings: every setting that there is, with its default and type.
        resolve: what a dict of settings becomes.
        by_name: whether the resolved object has each under the same name.
    """

    settings: Mapping[str, tuple[Any, Any]]
    resolve: Resolve
    by_name: bool


@consistency_probe(
    enters=(
        "megatron.core.optimizer.optimizer_config:OptimizerConfig.__post_init__"
        " | verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",
    ),
    returns=(f"expected.{_UNKNOWN}", "varied"),
)
def user_settings(run: Run, *, of: str, hf_config: str = "qwen3_moe") -> Mapping[str, Any]:
    """Each setting by itself, at a value that is not its default, through verl's own way to what it is resolved to.

    Args:
        of: `optimizer` (fields of verl's `McoreOptimizerConfig`), `muon` (the same, with that optimizer),
            `optimizer_overrides`, `ddp_overrides`, `transformer_overrides` (of the Bridge branch),
            `vanilla_overrides` (of the other), or `peft` (keys of the `lora` section of verl's YAML).
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.

    Returns:
        By setting, under `expected` that it arrives or its loss is said (an exception, or something printed, logged or
        warned that names it and its loss), under `actual` the same or what becomes of it. `no_such_setting` is a name
        that no pin knows. `varied` and `unvaried`: settings that were given another value, and those of which none is
        known.
    """
    kinds: dict[str, Callable[[Run, str], _Kind]] = {
        "optimizer": _optimizer,
        "muon": _muon,
        "optimizer_overrides": _optimizer_overrides,
        "ddp_overrides": _ddp_overrides,
        "transformer_overrides": _transformer_overrides,
        "vanilla_overrides": _vanilla_overrides,
        "peft": _peft,
    }
    make: Callable[[Run, str], _Kind] = choice("of", of, kinds)
    kind = make(run, hf_config)
    values = {name: another_value(name, *setting) for name, setting in kind.settings.items()}
    varied = {name: value for name, value in values.items() if value is not UNVARIED} | {_UNKNOWN: 1}
    default = kind.resolve({})
    return {
        "expected": dict.fromkeys(varied, _FINE),
        "actual": {name: _outcome(kind, default, name, value) for name, value in varied.items()},
        "varied": sorted(varied),
        "unvaried": sorted(name for name, value in values.items() if value is UNVARIED),
    }


def _outcome(kind: _Kind, default: Mapping[str, Any], name: str, value: Any) -> str:
    with listening() as said:
        try:
            found = kind.resolve({name: value})
        except Exception:  # noqa: BLE001 - whatever upstream raises says that the setting is refused
            return _FINE
    if kind.by_name and name in found:
        lost = _same(found[name], default.get(name)) and not _same(found[name], value)
    else:
        lost = all(_same(found[field], default.get(field)) for field in found)
    if not lost or any(_LOSS.search(line) for line in said.lines(name)):
        return _FINE
    return "lost in silence"


def _same(one: Any, other: Any) -> bool:
    return canonical_bytes(encode(one).tree) == canonical_bytes(encode(other).tree)


def _fields(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _settings_of(kind: type, *, without: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    """Fields that a dataclass's constructor takes, with default and type; those without a default are left out."""
    types = annotations_of(kind)
    return {
        field.name: (field.default, types.get(field.name))
        for field in dataclasses.fields(kind)
        if field.init and field.default is not dataclasses.MISSING and field.name not in without
    }


# Optimizer ------------------------------------------------------------------------------------------------------------

_MCORE_OPTIMIZER = "verl.workers.config:McoreOptimizerConfig"


def _optimizer(run: Run, _hf_config: str) -> _Kind:
    settings = _settings_of(run.upstream(_MCORE_OPTIMIZER))
    plain = {name: setting for name, setting in settings.items() if not _is_of_muon(name)}
    return _Kind(plain, lambda given: _resolved_optimizer(run, given), False)


def _muon(run: Run, _hf_config: str) -> _Kind:
    settings = _settings_of(run.upstream(_MCORE_OPTIMIZER))
    muon = {name: setting for name, setting in settings.items() if _is_of_muon(name)}
    return _Kind(muon, lambda given: _resolved_optimizer(run, {"optimizer": "muon"} | given), False)


def _is_of_muon(name: str) -> bool:
    """Whether verl documents a setting as one that other optimizers ignore."""
    return "muon" in name or "layer_wise" in name


def _optimizer_overrides(run: Run, _hf_config: str) -> _Kind:
    settings = _settings_of(run.upstream("megatron.core.optimizer:OptimizerConfig"))
    return _Kind(
        settings, lambda given: _resolved_optimizer(run, {"override_optimizer_config": given} if given else {}), True
    )


def _resolved_optimizer(run: Run, given: dict[str, Any]) -> dict[str, Any]:
    """Fields of Megatron-Core's optimizer config and of its scheduler of learning rate and weight decay."""
    import torch

    config = run.upstream(_MCORE_OPTIMIZER)(**({"lr": 1e-3, "total_training_steps": 10} | given))
    resolved = run.upstream("verl.utils.megatron.optimizer:init_megatron_optim_config")(config)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    make_scheduler = run.upstream("verl.utils.megatron.optimizer:get_megatron_optimizer_param_scheduler")
    scheduler = vars(make_scheduler(optimizer, config))
    plain = {name: value for name, value in scheduler.items() if value is None or isinstance(value, int | float | str)}
    return {f"scheduler.{name}": value for name, value in plain.items()} | _fields(resolved)


# Model and its wrapper ------------------------------------------------------------------------------------------------


class _Reached(BaseException):
    """Leaves upstream's code where `provide_distributed_model` is called: all that matters was seen."""


def _ddp_overrides(run: Run, hf_config: str) -> _Kind:
    first = _engine.construct_engine(run, hf_config)

    def resolve(given: dict[str, Any]) -> dict[str, Any]:
        engine = _another(run, first, override_ddp_config=given)
        engine._build_tf_config()
        seen: dict[str, Any] = {}

        def reach(**arguments: Any) -> None:
            seen.update(arguments)
            raise _Reached

        engine.provider.provide_distributed_model = reach
        try:
            engine._build_megatron_module()
        except _Reached:
            return _fields(seen["ddp_config"])
        raise AssertionError("make_megatron_module called no provide_distributed_model")

    run.stand_in("provider.provide_distributed_model", f"{__name__}:reach", "its arguments are the observation")
    return _Kind(_settings_of(run.upstream("megatron.core.distributed:DistributedDataParallelConfig")), resolve, True)


def _transformer_overrides(run: Run, hf_config: str) -> _Kind:
    return _overrides_of_transformer(run, hf_config, vanilla=False)


def _vanilla_overrides(run: Run, hf_config: str) -> _Kind:
    return _overrides_of_transformer(run, hf_config, vanilla=True)


def _overrides_of_transformer(run: Run, hf_config: str, *, vanilla: bool) -> _Kind:
    first = _engine.construct_engine(run, hf_config, engine={"vanilla_mbridge": vanilla})

    def resolve(given: dict[str, Any]) -> dict[str, Any]:
        engine = _another(run, first, vanilla_mbridge=vanilla, override_transformer_config=given)
        engine._build_tf_config()
        return _fields(_engine.resolved_config(engine))

    default = resolve({})
    kind = run.upstream("megatron.core.transformer.transformer_config:TransformerConfig")
    types = annotations_of(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.init and field.name in default]
    return _Kind({name: (default[name], types.get(name)) for name in names}, resolve, True)


def _another(run: Run, first: Any, **engine: Any) -> Any:
    """An engine of the same class and model with other fields in its engine config."""
    return type(first)(
        model_config=first.model_config,
        engine_config=_engine.engine_config(run, **engine),
        optimizer_config=first.optimizer_config,
        checkpoint_config=first.checkpoint_config,
    )


# PEFT -----------------------------------------------------------------------------------------------------------------

_NOT_OF_THE_OBJECT = ("adapter_path", "fully_sharded_loras", "merge", "rank")
"""Keys that verl reads elsewhere, and `rank`, without which there is no object."""
_ALL_SETTINGS = "_generated_ppo_megatron_trainer.yaml"


def _peft(run: Run, hf_config: str) -> _Kind:
    first = _engine.construct_engine(run, hf_config)
    first._build_tf_config()
    section = {name: value for name, value in _lora_section(run) if name not in _NOT_OF_THE_OBJECT}
    get_peft_cls = run.upstream("verl.workers.config.megatron_peft:get_peft_cls")

    def resolve(given: dict[str, Any]) -> dict[str, Any]:
        model = dataclasses.replace(first.model_config, lora=section | {"rank": 8} | given)
        made = get_peft_cls(model_config=model, bridge=first.bridge, provider=first.provider, dtype=first.param_dtype)
        return {"class": type(made).__qualname__} | _fields(made)

    lists = {"target_modules": ["linear_proj"], "exclude_modules": ["*linear_fc1"]}
    settings = {name: (value, type(value)) for name, value in section.items() if name not in lists}
    return _Kind(settings, resolve, False)


def _lora_section(run: Run) -> Iterator[tuple[str, Any]]:
    """What the `lora` section holds in the YAML file that shows a user of verl every setting."""
    import yaml

    [folder] = run.upstream("verl").__path__
    whole = yaml.safe_load((Path(folder) / "trainer" / "config" / _ALL_SETTINGS).read_text())
    yield from _sections(whole, "lora")[0].items()


def _sections(node: Any, name: str) -> list[dict[str, Any]]:
    """Every mapping of that name in a tree of mappings."""
    if not isinstance(node, dict):
        return []
    found = [node[name]] if isinstance(node.get(name), dict) else []
    return found + [section for inner in node.values() for section in _sections(inner, name)]
