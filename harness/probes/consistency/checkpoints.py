"""What is saved, loaded: what one stack wrote, read by this one; every parameter must come back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes import _checkpoint, _engine, _hf_weights, _peft, _wrap
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import consistency_probe, probe

PRELOAD = (*_hf_weights.PRELOAD, *_peft.PRELOAD, *_checkpoint.PRELOAD, "megatron.core.dist_checkpointing")

_SAVED = Path("saved")
_MODEL = "qwen3"
_CONTENTS = ["model"]

_ENGINES: dict[str, dict[str, Any]] = {
    "core": {},
    "distributed": {"engine": {"use_dist_checkpointing": True}},
    "adapter": {},
    "hugging_face": {},
    "config": {},
}
"""Kind of checkpoint → further fields of the engine that writes and reads it.

`core` is Megatron-Core's own distributed checkpoint; `distributed`, `adapter` and `hugging_face` are those of verl's
checkpoint manager; `config` is the `transformer_config.json` that it writes beside them.
"""


@probe(
    enters=(f"{_checkpoint.SAVE_CHECKPOINT} | megatron.core.dist_checkpointing.serialization:save",),
    returns=("parameters",),
)
def checkpoint_written(
    run: Run, *, kind: str = "core", hf_config: str = _MODEL, peft: str = "lora", on: str = "all"
) -> Mapping[str, Any]:
    """A checkpoint of a model whose parameters are a function of name and index.

    Returns:
        parameters: how many there are.

    Args:
        kind: one of `core`, `distributed`, `adapter`, `hugging_face`, `config`.
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: type of the adapter: `lora`, `canonical_lora` or `dora`; of the kind `adapter` alone, like `on`.
        on: the kind of module that has one: `attention`, `dense_mlp`, `experts`, `shared_experts`, `router`, or `all`.
    """
    engine = _initialized(run, kind, hf_config, _peft.section_on(peft, on))
    fill_parameters(engine.module)
    if kind == "core":
        _save_core(run, engine)
    else:
        engine.checkpoint_mananager.save_checkpoint(str(_SAVED), global_step=1)
    run.upstream("torch.distributed:barrier")()
    return {"parameters": len(dict(_wrap.named_parameters(engine.module)))}


@consistency_probe(returns=("expected.parameters.*",), reads="checkpoint_written")
def checkpoint_read(
    run: Run, *, kind: str = "core", hf_config: str = _MODEL, peft: str = "lora", on: str = "all"
) -> Mapping[str, Any]:
    """Whether this stack reads what another, or itself, has written.

    Before the load every parameter is one more than what was saved. An exception is the observation: a reader may
    refuse, and says so.

    Returns:
        By parameter, under `expected` that it is restored, and under `actual` whether it is `restored`, `untouched` or
        something `else`; of an adapter's checkpoint, base parameters must be untouched. For `config`, the values of the
        file against those of the same stack's config.

    Args:
        kind: one of `core`, `distributed`, `adapter`, `hugging_face`, `config`.
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: type of the adapter: `lora`, `canonical_lora` or `dora`; of the kind `adapter` alone, like `on`.
        on: the kind of module that has one: `attention`, `dense_mlp`, `experts`, `shared_experts`, `router`, or `all`.
    """
    engine = _initialized(run, kind, hf_config, _peft.section_on(peft, on))
    folder = run.written.relative_to(run.folder) / _SAVED
    if kind == "config":
        return _config_read(engine, folder)
    fill_parameters(engine.module)
    saved = {name: parameter.detach().clone() for name, parameter in _wrap.named_parameters(engine.module)}
    _add_one(engine.module)
    if kind == "core":
        _load_core(run, engine, folder)
    else:
        engine.checkpoint_mananager.load_checkpoint(str(folder))
    found = {name: _state(parameter, saved[name]) for name, parameter in _wrap.named_parameters(engine.module)}
    part = _peft.adapters(engine.module) if kind == "adapter" else saved
    return {
        "expected": {"parameters": {name: "restored" if name in part else "untouched" for name in found}},
        "actual": {"parameters": found},
    }


def _initialized(run: Run, kind: str, hf_config: str, section: Mapping[str, Any]) -> Any:
    chosen: dict[str, Any] = choice("kind", kind, _ENGINES) | (
        {"model": {"lora": section}} if kind == "adapter" else {}
    )
    contents = ["extra"] if kind == "config" else _CONTENTS
    checkpoint = {"save_contents": contents, "load_contents": contents}
    engine = _engine.construct_engine(run, hf_config, checkpoint=checkpoint, **chosen)
    if kind == "hugging_face":
        _hf_weights.write_hf_weights(run)
    _engine.initialize(run, engine)
    for name in ("load_hf_weights", "load_weights"):
        vars(engine.bridge).pop(name, None)  # the build is over: from here on, weights may be loaded
    return engine


def _sharded(engine: Any) -> dict[str, Any]:
    chunks: Sequence[Any] = [_wrap.unwrapped(module) for module in engine.module]
    return {f"model{number}": chunk.sharded_state_dict() for number, chunk in enumerate(chunks)}


def _save_core(run: Run, engine: Any) -> None:
    if run.rank == 0:
        _SAVED.mkdir()
    run.upstream("torch.distributed:barrier")()
    run.call("megatron.core.dist_checkpointing:save", _sharded(engine), str(_SAVED))


def _load_core(run: Run, engine: Any, folder: Path) -> None:
    loaded = run.call("megatron.core.dist_checkpointing:load", _sharded(engine), str(folder))
    for number, module in enumerate(engine.module):
        _wrap.unwrapped(module).load_state_dict(loaded[f"model{number}"])


def _add_one(modules: Sequence[Any]) -> None:
    import torch

    with torch.no_grad():
        for _, parameter in _wrap.named_parameters(list(modules)):
            parameter.add_(1)


def _state(parameter: Any, saved: Any) -> str:
    if bool((parameter == saved).all()):
        return "restored"
    moved = saved.clone().add_(1)
    return "untouched" if bool((parameter == moved).all()) else "else"


def _config_read(engine: Any, folder: Path) -> dict[str, Any]:
    written = json.loads((folder / "transformer_config.json").read_text())
    config = _wrap.unwrapped(engine.module[0]).config
    plain = {name: value for name, value in written.items() if value is None or isinstance(value, bool | int | float)}
    return {
        "expected": {"parameters": plain},
        "actual": {"parameters": {name: getattr(config, name, "no such field") for name in plain}},
    }
