"""The sharded state dicts that verl's checkpoint manager makes, for Megatron-Core to save or to load into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes import _checkpoint, _peft, _sharded
from harness.probes._models import choice
from harness.probes.registry import probe

PRELOAD = (*_checkpoint.PRELOAD, *_peft.PRELOAD, *_sharded.PRELOAD)

_MODULE = "verl.utils.checkpoint.megatron_checkpoint_manager"
_MANAGER = f"{_MODULE}:MegatronCheckpointManager"
_CONTENTS = ("model", "optimizer", "extra")
_OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "dp_reshardable": {},
    "fully_reshardable": {"dist_ckpt_optim_fully_reshardable": True},
    "not_distributed": {"use_distributed_optimizer": False},
}


@probe(
    enters=(
        f"{_MANAGER}.generate_state_dict | {_MANAGER}._build_model_sharded_state_dict"
        f" | {_MANAGER}._build_extra_state_dict",
    ),
    returns=("sections",),
)
def checkpoint_state(
    run: Run,
    *,
    hf_config: str = "qwen3",
    layers: int = 2,
    through: str = "save",
    contents: str = "model+optimizer+extra",
    peft: str = "none",
    optimizer: str = "dp_reshardable",
    surplus: str = "none",
) -> Mapping[str, Any]:
    """Keys and sharded metadata of a checkpoint of model, optimizer and extra states.

    The engine is initialized by its own `initialize`, with distributed checkpoints switched on, and its optimizer makes
    one step with gradients of zero, so that it has a state to save. What Megatron-Core is given is taken down as the
    manager hands it over, before a file is written or read.

    Returns:
        sections: by top-level key (`model`, or `model0`, `model1` with several chunks; `optimizer`; `rng_state`) the
            entries with key, dtype, local and global shape, offset, fragmentation and replica id, without data; see
            `harness.probes._sharded`.
        folders: which sections lie together, by folder of the checkpoint; none through `generate_state_dict`.

    Args:
        hf_config: a shipped model name, or the path of a Hugging Face `config.json`.
        layers: of the model; the stages of the layout must divide it.
        through: `save` and `load` ask the manager's `save_checkpoint` and `load_checkpoint` (of what it saved);
            `generate_state_dict` asks the manager's method of that name.
        contents: what of `model`, `optimizer`, `extra` to save, load or generate, joined by `+`.
        peft: `lora`, `dora` or `canonical_lora`; `none` is a model without adapters.
        optimizer: `dp_reshardable` (verl's default) or `fully_reshardable`, the two formats of the distributed
            optimizer; or `not_distributed`.
        surplus: keys joined by `+` that are put into the state dict while the optimizer is asked for its own, through
            `generate_state_dict`.
    """
    chosen = [choice("contents", name, _CONTENTS) for name in contents.split("+")]
    engine = _checkpoint.initialized_engine(
        run,
        hf_config,
        contents=chosen,
        model={"lora": _peft.lora_section(peft)} if peft != "none" else None,
        fields={"num_hidden_layers": layers},
        engine={"use_dist_checkpointing": True} | choice("optimizer", optimizer, _OPTIMIZERS),
    )
    engine.optimizer_zero_grad()
    engine.optimizer_step()
    ask = choice("through", through, {"save": _saved, "load": _loaded, "generate_state_dict": _generated})
    if surplus != "none":
        _add_keys(run, engine.optimizer, surplus.split("+"))
    return ask(run, engine, chosen)


@probe(enters=(f"{_MANAGER}._is_model_state_key",), returns=("answers",))
def model_state_key(
    run: Run, *, keys: str = "model+model0+model12+model-1+model 1+model0x+models+model_ema+modelopt_state+Model"
) -> Mapping[str, Any]:
    """Which keys of a state dict the manager takes for a model chunk's.

    Returns:
        answers: by key, what `_is_model_state_key` says.

    Args:
        keys: joined by `+`.
    """
    is_model_state_key = run.upstream(f"{_MANAGER}._is_model_state_key")
    return {"answers": {key: is_model_state_key(key) for key in keys.split("+")}}


def _saved(run: Run, engine: Any, _contents: list[str]) -> dict[str, Any]:
    given = _noted(run, "save_dist_checkpointing", "ckpt_path")
    _checkpoint.save(engine)
    return _by_section(given)


def _loaded(run: Run, engine: Any, _contents: list[str]) -> dict[str, Any]:
    folder = _checkpoint.save(engine)
    run.upstream("torch.distributed:barrier")()
    given = _noted(run, "load_dist_checkpointing", "ckpt_dir")
    engine.checkpoint_mananager.load_checkpoint(str(folder))
    return _by_section(given)


def _generated(run: Run, engine: Any, contents: list[str]) -> dict[str, Any]:
    generate = run.upstream(f"{_MANAGER}.generate_state_dict")
    state = generate(
        engine.checkpoint_mananager,
        **{f"generate_{name}": name in contents for name in _CONTENTS},
    )
    return {"sections": _sharded.described(state), "folders": {}}


def _noted(run: Run, name: str, folder: str) -> dict[str, Any]:
    """Let the manager's function `name` first take down the state dict it is given, by the folder it is for."""
    module = run.upstream(_MODULE)
    original: Callable[..., Any] = getattr(module, name)
    checkpoint = _checkpoint.FOLDER.resolve()
    given: dict[str, Any] = {}

    def noting(*, sharded_state_dict: Mapping[str, Any], **keywords: Any) -> Any:
        place = Path(keywords[folder]).resolve().relative_to(checkpoint)
        given[str(place)] = _sharded.described(sharded_state_dict)
        return original(sharded_state_dict=sharded_state_dict, **keywords)

    setattr(module, name, noting)
    run.stand_in(f"{_MODULE}:{name}", "itself, after a look at the state dict it is given", "what it gets is observed")
    return given


def _by_section(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sections": {section: entries for sections in given.values() for section, entries in sections.items()},
        "folders": {folder: set(sections) for folder, sections in given.items()},
    }


def _add_keys(run: Run, optimizer: Any, keys: list[str]) -> None:
    """Let the optimizer leave further keys in the state dict it is given."""
    original = optimizer.sharded_state_dict

    def adding(state_dict: dict[str, Any], **keywords: Any) -> Any:
        answer = original(state_dict, **keywords)
        state_dict.update(dict.fromkeys(keys, "surplus"))
        return answer

    optimizer.sharded_state_dict = adding
    run.stand_in("optimizer.sharded_state_dict", "itself, then keys of the case", "what the manager keeps is observed")
