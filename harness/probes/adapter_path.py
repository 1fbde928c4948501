"""Whether `adapter_path` in a PEFT config really loads an adapter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.observe.run import HarnessFault, Run
from harness.probes import _checkpoint, _engine, _peft, _wrap
from harness.probes._models import choice
from harness.probes._weights import fill_parameters
from harness.probes.registry import probe

PRELOAD = (*_peft.PRELOAD, *_checkpoint.PRELOAD)

_FOLDERS = ("adapter_checkpoint", "model/dist_ckpt", "dist_ckpt")
"""Where a checkpoint keeps its adapter: verl 0.7, 0.9, 0.8. The first that exists counts."""


@probe(
    enters=(_checkpoint.SAVE_CHECKPOINT, _wrap.MAKE_MEGATRON_MODULE, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("loaded", "restored", "written"),
    tensors=("adapters/*",),
)
def adapter_path(run: Run, *, hf_config: str = "qwen3", peft: str = "lora", given: str = "dict") -> Mapping[str, Any]:
    """An adapter saved by the stack itself, then named by `adapter_path` in the config of a second model.

    The first model's adapter gets distinct values (a function of name and index) and is saved by verl's checkpoint
    manager in the stack's own format. The second model is built by `make_megatron_module` with a PEFT config that names
    the saved adapter; its own adapter starts from random values, so only a load can bring the distinct ones back.

    Returns:
        loaded: whether every adapter parameter of this rank came back bit for bit.
        restored: how many did.
        written: how many the first model had.
        adapters: the second model's adapter weights by name, tensors of this rank's shape and of the adapter's dtype.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: `lora`, `dora` or `canonical_lora`.
        given: what `make_megatron_module` gets as `peft_config`: `dict` (what verl's engine passes), `dictconfig`
            (OmegaConf), `dataclass`, `base_config` (verl's own dataclass base), `object`, or `none`; or a dict whose
            `adapter_path` is `absent`, None (`none_path`), `empty`, or names a folder that is `missing`.
    """
    section = _peft.lora_section(peft)
    form = _form(run, given)
    engine = _checkpoint.initialized_engine(run, hf_config, contents=["model"], model={"lora": section})
    fill_parameters(engine.module)
    written = _peft.adapters(engine.module)
    folder = _adapter_folder(_checkpoint.save(engine))
    engine = _engine.construct_engine(run, hf_config, model={"lora": section})
    engine._build_tf_config()
    found = _peft.adapters(_wrap.make_module(run, engine, peft_config=form(section, str(folder))))
    restored = [name for name, value in written.items() if name in found and bool((found[name] == value).all())]
    return {
        "loaded": len(restored) == len(written) > 0,
        "restored": len(restored),
        "written": len(written),
        "adapters": found,
    }


def _adapter_folder(checkpoint: Path) -> Path:
    for name in _FOLDERS:
        if (checkpoint / name).is_dir():
            return checkpoint / name
    raise HarnessFault(f"the saved checkpoint has none of {', '.join(_FOLDERS)}")


def _form(run: Run, given: str) -> Callable[[dict[str, Any], str], Any]:
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
