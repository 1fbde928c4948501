"""Adapters that a model starts with: `adapter_path` in the PEFT config, and the function that loads what it names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

from harness.observe.run import HarnessFault, MissingSymbol, Run
from harness.probes import _checkpoint, _engine, _peft, _wrap
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = (*_peft.PRELOAD, *_checkpoint.PRELOAD)

_OLD_LOADER = "verl.utils.megatron_peft_utils:load_adapter_checkpoint"
_NEW_LOADER = "megatron.bridge.peft.utils:load_peft_adapter_checkpoint"
_OWN_FORMATS = ("adapter_checkpoint", "model/dist_ckpt", "dist_ckpt")
"""Where a checkpoint keeps its adapter: verl 0.7, 0.9, 0.8. The first that exists counts."""


@probe(
    enters=(_wrap.MAKE_MEGATRON_MODULE, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("restored", "written"),
    tensors=("adapters/*",),
    reads="adapter_checkpoint",
)
def adapter_path(
    run: Run,
    *,
    hf_config: str = "qwen3",
    peft: str = "lora",
    given: str = "dict",
    folder: str = "absent",
    fields: str = "",
    written_fields: str = "absent",
) -> Mapping[str, Any]:
    """A model built by `make_megatron_module` with a PEFT config whose `adapter_path` names a saved adapter.

    The adapter that was saved has distinct values (a function of name and index); this model's own starts from random
    ones, so only a load can bring the distinct ones back.

    Returns:
        restored: how many adapter parameters of this rank came back bit for bit.
        written: how many there are.
        adapters: the model's adapter weights by name, tensors of this rank's shape and of the adapter's dtype.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: `lora`, `dora` or `canonical_lora`.
        given: what `make_megatron_module` gets as `peft_config`: `dict` (what verl's engine passes), `dictconfig`
            (OmegaConf), `dataclass`, `base_config` (verl's own dataclass base), `object`, or `none`; or a dict whose
            `adapter_path` is `absent`, None (`none_path`), `empty`, or names a folder that is `missing`.
        folder: which folder of the checkpoint to name; `absent` for the one that the stack that wrote it reads itself.
        fields: further fields of the model's `lora` section, as in `peft_object`.
        written_fields: the same of the model that was saved.
    """
    section = _peft.lora_section(peft, fields)
    form = peft_form(run, given)
    engine = _engine.construct_engine(run, hf_config, model={"lora": section})
    engine._build_tf_config()
    path = _named_folder(run, folder)
    modules = _wrap.make_module(run, engine, peft_config=form(section, str(path)))
    found = _peft.adapters(modules)
    fill_parameters(modules)
    written = _peft.adapters(modules)
    restored = [name for name, value in written.items() if bool((found[name] == value).all())]
    return {"restored": len(restored), "written": len(written), "adapters": found}


@probe(
    enters=(f"{_OLD_LOADER} | {_NEW_LOADER}",),
    returns=("adapter", "frozen"),
    tensors=("adapters/*",),
    reads="adapter_checkpoint",
)
def adapter_load(
    run: Run,
    *,
    hf_config: str = "qwen3",
    peft: str = "lora",
    strict: str = "absent",
    fields: str = "",
    written_fields: str = "absent",
) -> Mapping[str, Any]:
    """The stack's own function that loads an adapter, called on a model whose every parameter was perturbed.

    It is verl's `load_adapter_checkpoint` or Megatron-Bridge's `load_peft_adapter_checkpoint`, whichever
    `make_megatron_module` calls; a verl that calls neither has none.

    Returns:
        adapter: by name, whether each adapter parameter is `restored`, `untouched`, or something `else`.
        frozen: the names of the other parameters that the load changed.
        adapters: the adapter's weights by name, this rank's shards.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: `lora`, `dora` or `canonical_lora`.
        strict: what is passed as `strict`, `true` or `false`; `absent` leaves it to the function's default.
        fields: further fields of the model's `lora` section: it may have other adapters than were written.
        written_fields: the same of the model that was saved.
    """
    engine = _engine.construct_engine(run, hf_config, model={"lora": _peft.lora_section(peft, fields)})
    engine._build_tf_config()
    modules = _wrap.make_module(run, engine, peft_config={}, wrap_with_ddp=False)
    before = _peft.perturbed(modules)
    chosen = {} if strict == "absent" else {"strict": choice("strict", strict, {"true": True, "false": False})}
    loader, more = _loader(run, engine)
    chunks = [_wrap.unwrapped(chunk) for chunk in modules]
    run.comes_from("loader", run.upstream(loader))
    run.call(loader, chunks, str(_named_folder(run, "absent")), **more, **chosen)
    return _peft.loaded(modules, before)


def _loader(run: Run, engine: Any) -> tuple[str, dict[str, Any]]:
    """The function by which this verl loads an adapter, and what it takes besides model and path."""
    called = run.upstream(_wrap.MAKE_MEGATRON_MODULE).__code__
    names = {name for code in (called, *_inner(called)) for name in code.co_names}
    for loader, more in ((_OLD_LOADER, {}), (_NEW_LOADER, {"peft": engine.peft_cls})):
        if loader.partition(":")[2] in names:
            return loader, more
    raise MissingSymbol(f"{_wrap.MAKE_MEGATRON_MODULE} calls no function that loads an adapter")


def _inner(code: CodeType) -> Iterator[CodeType]:
    """The functions defined within a function, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _named_folder(run: Run, folder: str) -> Path:
    """A folder of the written checkpoint, by name or else the one that holds the adapter.

    Its path is relative, so that messages and configs are the same on both sides.
    """
    checkpoint = run.written.relative_to(run.folder) / _checkpoint.FOLDER
    if folder != "absent":
        return checkpoint / folder
    for name in _OWN_FORMATS:
        if (checkpoint / name).is_dir():
            return checkpoint / name
    raise HarnessFault(f"the written checkpoint has none of {', '.join(_OWN_FORMATS)}")


def peft_form(run: Run, given: str) -> Callable[[dict[str, Any], str], Any]:
    """A function from the `lora` section and the adapter's folder to the PEFT config in the form `given`.

    Raises:
        ProbeError: no such form.
    """

    def fields(section: dict[str, Any], path: str) -> list[tuple[str, Any, Any]]:
        whole = section | {"adapter_path": path}
        return [(name, Any, dataclasses.field(default=value)) for name, value in whole.items()]

    def dictconfig(section: dict[str, Any], path: str) -> Any:
        from omegaconf import OmegaConf

        return OmegaConf.create(section | {"adapter_path": path})

    def base_config(section: dict[str, Any], path: str) -> Any:
        base = run.upstream("verl.base_config:BaseConfig")
        return dataclasses.make_dataclass("LoraSection", fields(section, path), bases=(base,))()

    forms: dict[str, Callable[[dict[str, Any], str], Any]] = {
        "dict": lambda section, path: section | {"adapter_path": path},
        "dictconfig": dictconfig,
        "dataclass": lambda section, path: dataclasses.make_dataclass("LoraSection", fields(section, path))(),
        "base_config": base_config,
        "object": lambda section, path: SimpleNamespace(**section, adapter_path=path),
        "none": lambda section, path: None,
        "absent": lambda section, path: section,
        "none_path": lambda section, path: section | {"adapter_path": None},
        "empty": lambda section, path: section | {"adapter_path": ""},
        "missing": lambda section, path: section | {"adapter_path": f"{path}-that-is-missing"},
    }
    chosen: Callable[[dict[str, Any], str], Any] = choice("given", given, forms)
    return chosen
