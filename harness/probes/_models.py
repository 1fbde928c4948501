"""Parameters that probes share: a model by shipped name or Hugging Face `config.json`, and choices by name."""

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


def write_model_folder(
    run: Run, hf_config: str, *, tokenizer: bool = False, fields: Mapping[str, Any] | None = None
) -> Path:
    """Write the model's folder below `run.folder`, change into `run.folder`, and return the folder's relative path.

    The path is the same on both sides because upstream keeps it in its configs. It holds `config.json`, with `fields`
    in the place of its own, and, on request, a tokenizer of two words; ranks may call this at the same time.
    """
    source = config_file(hf_config).resolve()
    draft = run.folder / f"model-of-rank-{run.rank}"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps(json.loads(source.read_text()) | dict(fields or {})))
    if tokenizer:
        _write_tokenizer(draft)
    os.chdir(run.folder)
    try:
        draft.rename(MODEL_FOLDER)
    except OSError:
        # Another rank was first; its folder has the same content.
        shutil.rmtree(draft)
    return MODEL_FOLDER


def give_weights(run: Run) -> None:
    """Let the written model folder have weights, whose names and shapes Megatron-Bridge asks for when it exports."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if run.rank == 0:
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL_FOLDER)).save_pretrained(MODEL_FOLDER)
    run.upstream("torch.distributed:barrier")()


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
