"""Every field that a config probe promises to compare, changed one at a time inside a worker.

The probe runs as it is shipped. Then, on the new side, its config is returned once for each field, with that field
changed; on the old side as often, as it was. What the comparison must say is exactly the changed field, every time.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from upstream_faults import SAVE, _around, _is_new

from harness.observe import Run
from harness.probes import _engine, probe
from harness.probes.registry import find_probe

PRELOAD = find_probe("config_dump").preload

WHOLE: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("provider_config", "config", {}),
    ("provider_config", "config", {"branch": "vanilla"}),
    ("architecture", "config", {"hf_config": "DeepseekV3ForCausalLM"}),
    ("ddp_config", "ddp_config", {}),
    ("moe_defaults", "fields", {}),
    ("dynamic_context_parallel", "fields", {"enabled": False}),
    ("dynamic_context_parallel", "groups", {"enabled": False}),
    ("config_fields", "defaults", {}),
    ("config_fields", "defaults", {"of": "optimizer"}),
    ("architectures", "registered", {}),
)
"""Probes, where in their tree the fields stand, and the probe's parameters."""


@probe(returns=("changed.*",))
def one_field_changed(run: Run, *, probe: str, at: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A shipped probe's fields, as many times as there are; on the new side another one is changed each time.

    Args:
        probe: name of the probe.
        at: where in its tree the fields stand.
        given: parameters of the probe.
    """
    whole = find_probe(probe).function(run, **given)[at]
    return {"changed": {name: {at: _with(whole, name) if _is_new(run) else whole} for name in _names(whole)}}


@probe(enters=find_probe("provider_overrides").evidence.enters, returns=("changed",))
def all_fields_changed_by_overrides(run: Run) -> Mapping[str, Any]:
    """`provider_overrides`, where on the new side the second resolved config differs from the first in every field."""
    calls = []

    def resolved(_run: Run, original: Any, engine: Any) -> Any:
        config = original(engine)
        calls.append(config)
        return _with_all(config) if len(calls) == 2 and _is_new(run) else config

    _around(f"{_engine.__name__}:resolved_config", resolved)(run)
    return find_probe("provider_overrides").function(run)


@probe(enters=find_probe("config_dump").evidence.enters, returns=("written",))
def all_fields_changed_in_dump(run: Run) -> Mapping[str, Any]:
    """`config_dump`, where on the new side every field of the config changes before the checkpoint is saved."""

    def save(_run: Run, original: Any, manager: Any, *arguments: Any, **keywords: Any) -> Any:
        if _is_new(run):
            manager.transformer_config = _with_all(manager.transformer_config)
        return original(manager, *arguments, **keywords)

    _around(SAVE, save)(run)
    return find_probe("config_dump").function(run)


def _names(whole: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(whole)] if dataclasses.is_dataclass(whole) else list(whole)


def _with(whole: Any, name: str) -> Any:
    changed = copy.copy(whole)
    if isinstance(whole, dict):
        changed[name] = _other(whole[name])
    else:
        object.__setattr__(changed, name, _other(getattr(whole, name)))
    return changed


def _with_all(whole: Any) -> Any:
    changed = whole
    for name in _names(whole):
        changed = _with(changed, name)
    return changed


def _other(value: Any) -> Any:
    """Another value, of the same type where that is possible."""
    match value:
        case bool():
            return not value
        case enum.Enum():
            return next(member for member in type(value) if member is not value)
        case int() | float():
            return value + 1
        case str():
            return value + "?"
        case list() | tuple():
            return type(value)([*value, "?"])
        case dict():
            return value | {"?": 1}
    return "?"
