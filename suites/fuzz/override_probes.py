"""A probe of the fuzzers: what a user's overrides do to the provider of a verl engine."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

from harness.observe.run import Run
from harness.probes import _engine
from harness.probes._field_types import described_fields
from harness.probes._readings import attempt, same, text_of
from harness.probes._values import Built
from harness.probes.adapter_load import PRELOAD as PRELOAD
from harness.probes.config_values import converse
from harness.probes.registry import probe

_BUILD = "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config"
_BRIDGE = "verl.models.mcore.bridge:AutoBridge"


@probe(enters=(_BUILD,), returns=("ended",))
def provider_settings(run: Run, *, listen: str) -> Mapping[str, Any]:
    """Answers a described `override_transformer_config` with what the engine's `_build_tf_config` makes of it.

    A question is `{"config": description, "fault": None or one of FAULTS}`; see `harness.probes._readings.attempt`.
    Fates are those of the fields that are overridden, `as given` or `another`, and of those that another value was
    derived for, `changed`. None is answered with the `fields` of the provider's class.
    """
    engine = _engine.construct_engine(run, "qwen3")
    run.by_hand("McoreEngineConfig.override_transformer_config", "described overrides")
    _read_the_model_once(run, engine)
    without = _resolved(engine, {})

    def answer(question: Mapping[str, Any] | None) -> dict[str, Any]:
        if question is None:
            return {"fields": described_fields(type(without))}
        with _faulty(type(without), question["fault"]):
            return attempt(lambda built: _read(engine, without, built), question["config"])

    converse(listen, answer)
    return {"ended": True}


def _read_the_model_once(run: Run, engine: Any) -> None:
    """Let the bridge hand out copies of the provider that it made of the model folder."""
    bridge = run.upstream(_BRIDGE).from_hf_pretrained(engine.model_config.local_path)
    provider = bridge.to_megatron_provider(load_weights=False)
    run.stand_in("AutoBridge.to_megatron_provider", "copies of the first", "the model folder is read once")
    bridge.to_megatron_provider = lambda **_: copy.deepcopy(provider)
    run.stand_in("AutoBridge.from_hf_pretrained", "the first bridge", "the model folder is read once")
    run.upstream(_BRIDGE).from_hf_pretrained = lambda *_, **__: bridge


def _resolved(engine: Any, overrides: Any) -> Any:
    object.__setattr__(engine.engine_config, "override_transformer_config", overrides)
    engine._build_tf_config()
    return engine.provider


def _read(engine: Any, without: Any, built: Built) -> dict[str, str]:
    given = dict(built.value)
    resolved = _resolved(engine, built.value)
    fates = {str(name): _fate(resolved, name, value) for name, value in given.items()}
    derived = [
        field.name
        for field in dataclasses.fields(resolved)
        if field.name not in given and not _equal(getattr(resolved, field.name), getattr(without, field.name))
    ]
    return fates | {name: f"changed: {text_of(getattr(resolved, name))}" for name in derived}


def _fate(resolved: Any, name: Any, value: Any) -> str:
    found = getattr(resolved, name)
    return "as given" if same(found, value) else f"another: {text_of(found)}"


def _equal(found: Any, other: Any) -> bool:
    return found is other or text_of(found) == text_of(other)


# Faults: a method of the provider, and from it to one that goes wrong. ------------------------------------------------

Method = Callable[..., Any]
_APPLY, _FINALIZE = "apply_overrides_and_finalize", "finalize"


def _faulty(owner: type, fault: str | None) -> contextlib.AbstractContextManager[Any]:
    if fault is None:
        return contextlib.nullcontext()
    name, change = FAULTS[fault]
    return patch.object(owner, name, change(getattr(owner, name)))


def _without_the_last(apply: Method) -> Method:
    return lambda self, dtype, overrides: apply(self, dtype, dict(list(overrides.items())[:-1]))


def _with_any_name(apply: Method) -> Method:
    def faulty(self: Any, dtype: Any, overrides: Mapping[str, Any]) -> Any:
        for name, value in overrides.items():
            setattr(self, name, value)
        return apply(self, dtype, overrides)

    return faulty


def _after_finalizing(apply: Method) -> Method:
    def faulty(self: Any, dtype: Any, overrides: Mapping[str, Any]) -> Any:
        made = apply(self, dtype, {})
        for name, value in overrides.items():
            setattr(self, name, value)
        return made

    return faulty


def _anything_goes(apply: Method) -> Method:
    def faulty(self: Any, dtype: Any, overrides: Mapping[str, Any]) -> Any:
        with contextlib.suppress(ValueError, AssertionError):
            apply(self, dtype, overrides)

    return faulty


def _as_text(apply: Method) -> Method:
    def faulty(self: Any, dtype: Any, overrides: Mapping[str, Any]) -> Any:
        return apply(self, dtype, {name: str(each) if type(each) is int else each for name, each in overrides.items()})

    return faulty


def _one_more_field(apply: Method) -> Method:
    def faulty(self: Any, dtype: Any, overrides: Mapping[str, Any]) -> Any:
        return apply(self, dtype, {"init_method_std": 1.0, **overrides})

    return faulty


FAULTS: Mapping[str, tuple[str, Callable[[Method], Method]]] = {
    "the last override is lost": (_APPLY, _without_the_last),
    "unknown names are taken": (_APPLY, _with_any_name),
    "overrides come after finalizing": (_APPLY, _after_finalizing),
    "refused values are taken": (_APPLY, _anything_goes),
    "integers become texts": (_APPLY, _as_text),
    "another field changes": (_APPLY, _one_more_field),
    "nothing is finalized": (_FINALIZE, lambda _: lambda self: None),
}
