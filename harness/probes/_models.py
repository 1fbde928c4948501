"""Parameters that probes share: a model by shipped name, Hugging Face `config.json` or class, and choices by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes.registry import ProbeError

_SHIPPED = Path(__file__).parent / "models"

_LAYER_COUNTS = ("num_hidden_layers", "depth", "encoder_layers", "num_layers")
"""How Hugging Face configs, those of their vision and audio parts included, call the number of layers."""

MODEL_FOLDER = Path("model")
"""Where a run finds its model, relative to the run's folder, so that both sides and all ranks see the same path."""


def shipped_models() -> tuple[str, ...]:
    """The names `hf_config=` takes besides a path."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.json")))


def config_file(hf_config: str) -> Path:
    """The `config.json` that `hf_config` names: a shipped one, a file, or a folder that holds one.

    Raises:
        ProbeError: neither a shipped name nor an existing file.
    """
    if hf_config in shipped_models():
        return _SHIPPED / f"{hf_config}.json"
    path = Path(hf_config)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        known = ", ".join(shipped_models())
        raise ProbeError(f"hf_config={hf_config!r} is no shipped model and no file; shipped: {known}")
    return path


def is_model_class(hf_config: str) -> bool:
    """Whether `hf_config` is written like a class: it need not exist."""
    return hf_config.isidentifier() and hf_config[0].isupper()


def default_config(run: Run, architecture: str) -> Any:
    """The config that transformers gives a model class by default, but of two layers, in each of its parts.

    Raises:
        MissingSymbol: the pin's transformers has no such class.
    """
    config = _shrunk(run.upstream(f"transformers:{architecture}.config_class"))
    config.architectures = [architecture]
    return config


def _shrunk(kind: type) -> Any:
    default = kind()
    counts = {name: 2 for name in _LAYER_COUNTS if isinstance(getattr(default, name, None), int)}
    parts = {name: type(getattr(default, name, None)) for name in getattr(kind, "sub_configs", ())}
    shrunk = {name: _shrunk(part).to_dict() for name, part in parts.items() if hasattr(part, "sub_configs")}
    # Lists with an entry per layer are made by the class from the number of layers.
    return kind(**counts, **shrunk)


def write_model_folder(
    run: Run, hf_config: str, *, tokenizer: bool = False, fields: Mapping[str, Any] | None = None
) -> Path:
    """Write the model's folder below `run.folder`, change into `run.folder`, and return the folder's relative path.

    The path is the same on both sides because upstream keeps it in its configs. It holds `config.json`, with `fields`
    in the place of its own, and, on request, a tokenizer of two words; ranks may call this at the same time.

    Args:
        hf_config: a shipped model name, the path of a `config.json`, or the name of a transformers model class such as
            `Qwen3ForCausalLM`, for the default config of that class shrunk to two layers.
    """
    draft = run.folder / f"model-of-rank-{run.rank}"
    draft.mkdir()
    if is_model_class(hf_config):
        default_config(run, hf_config).save_pretrained(draft)
    else:
        shutil.copyfile(config_file(hf_config).resolve(), draft / "config.json")
    written = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(written | dict(fields or {})))
    if tokenizer:
        _write_tokenizer(draft)
    os.chdir(run.folder)
    try:
        draft.rename(MODEL_FOLDER)
    except OSError:
        # Another rank was first; its folder has the same content.
        shutil.rmtree(draft)
    return MODEL_FOLDER


def choice(parameter: str, given: str, known: Mapping[str, Any] | Iterable[str]) -> Any:
    """What `known` holds for the given value of a probe's parameter (the value itself where `known` has no values).

    Raises:
        ProbeError: naming the values that exist.
    """
    names = tuple(known)
    if given not in names:
        raise ProbeError(f"{parameter}={given!r} is none of: {', '.join(names)}")
    return known[given] if isinstance(known, Mapping) else given


def _write_tokenizer(folder: Path) -> None:
    vocabulary = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3, "old": 4, "new": 5}
    state: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(state))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
