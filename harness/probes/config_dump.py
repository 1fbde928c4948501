"""The `transformer_config.json` that verl writes beside a Megatron checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes import _checkpoint, _wrap
from harness.probes._models import choice
from harness.probes.registry import probe

PRELOAD = (*_wrap.PRELOAD, *_checkpoint.PRELOAD)

_FIELD = "recompute_modules"
"""A field every pin has, of a loose type, that nothing reads while a checkpoint is saved."""


@probe(enters=(_checkpoint.SAVE_CHECKPOINT,), returns=("written", "non_standard", "dropped", "files"))
def config_dump(run: Run, *, hf_config: str = "qwen3", variant: str = "default") -> Mapping[str, Any]:
    """The config file of a checkpoint that holds nothing else but the random number states (`extra`).

    The engine is initialized by its own `initialize` (model, optimizer, training hooks on the config) and its
    checkpoint manager saves. Fields that the lane forces appear with the forced value. An exception is the
    observation; a file it left half-written is not read.

    Returns:
        written: the parsed file, which rank 0 writes and every rank reads; its text where it is no JSON at all; from
            any variant but `default` only the field the value was put into.
        non_standard: the constants in the file that are no JSON (`NaN`, `Infinity`).
        dropped: dataclass fields of the config that the file does not have; from any variant but `default` only the
            field the value was put into.
        files: relative names of all files of the checkpoint; none from any variant but `default`.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        variant: `default` saves the config as it is. Any other puts one value by hand where it used to break the
            writer, into the field `recompute_modules`: `cycle`, `config_cycle`, `enum`, `nested_dataclass`, `nan`,
            `inf`, `set`, `bytes`, `tuple`, `callable`, `partial`, `list_of_callables`, `int_keys`, `tuple_keys`,
            `enum_keys`, `tensor`, `array`, `numpy_scalar`, `dtype_in_list`.
    """
    value = _value(variant) if variant != "default" else None
    engine = _checkpoint.initialized_engine(run, hf_config, contents=["extra"])
    if value is not None:
        run.by_hand(f"{type(engine.tf_config).__name__}.{_FIELD}", variant)
        setattr(engine.tf_config, _FIELD, value(engine.tf_config))
    folder = _checkpoint.save(engine)
    run.upstream("torch.distributed:barrier")()
    names = [field.name for field in dataclasses.fields(engine.tf_config)] if value is None else [_FIELD]
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return _read(folder, names) | {"files": files if value is None else set()}


def _read(folder: Path, names: list[str]) -> dict[str, Any]:
    text = (folder / "transformer_config.json").read_text()
    non_standard: set[str] = set()

    def constant(name: str) -> float:
        non_standard.add(name)
        return float(name)

    try:
        whole = json.loads(text, parse_constant=constant)
        written = whole if len(names) > 1 else {name: whole[name] for name in names if name in whole}
    except json.JSONDecodeError:
        written = text
    return {
        "written": written,
        "non_standard": non_standard,
        "dropped": {name for name in names if name not in written},
    }


@dataclasses.dataclass
class _Nested:
    """A dataclass inside a config."""

    size: int = 3
    inner: Any = None


def _value(variant: str) -> Callable[[Any], Any]:
    """A function from the config to the value that `variant` puts into it.

    Raises:
        ProbeError: no such variant.
    """
    import enum

    import torch

    colour = enum.Enum("colour", ["RED"])
    values: dict[str, Callable[[Any], Any]] = {
        "cycle": lambda _: _cycle(),
        "config_cycle": lambda config: [config],
        "enum": lambda _: colour.RED,
        "nested_dataclass": lambda _: _Nested(inner=_Nested()),
        "nan": lambda _: float("nan"),
        "inf": lambda _: [float("inf"), float("-inf")],
        "set": lambda _: {"moe"},
        "bytes": lambda _: b"\x00parity",
        "tuple": lambda _: (1, (2, 3)),
        "callable": lambda _: _cycle,
        "partial": lambda _: partial(_cycle),
        "list_of_callables": lambda _: ["first", _cycle, "last"],
        "int_keys": lambda _: {1: "one", 2: "two"},
        "tuple_keys": lambda _: {(1, 2): "pair"},
        "enum_keys": lambda _: {colour.RED: "red"},
        "tensor": lambda _: torch.arange(3),
        "array": lambda _: torch.arange(3).numpy(),
        "numpy_scalar": lambda _: torch.linspace(0, 1, 3).numpy()[1],
        "dtype_in_list": lambda _: [torch.bfloat16],
    }
    chosen: Callable[[Any], Any] = choice("variant", variant, values)
    return chosen


def _cycle() -> dict[str, Any]:
    cycle: dict[str, Any] = {"name": "cycle"}
    cycle["self"] = cycle
    return cycle
