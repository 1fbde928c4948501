"""A model with an adapter against what Hugging Face's `transformers` and `peft` make of its exported weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes import _checkpoint, _engine, _hugging_face, _peft
from harness.probes._weights import fill_parameters
from harness.probes.registry import consistency_probe

PRELOAD = (*_peft.PRELOAD, *_checkpoint.PRELOAD, "peft", "transformers")

_TOLERANCE = 1e-4
"""What two logits may differ by, relative to what the adapter changes in them; in float32 it is about 1e-6."""


@consistency_probe(
    enters=(_peft.SAVE_HF_ADAPTER, "megatron.bridge.peft.base:PEFT.__call__"),
    returns=("expected.exported", "expected.merged"),
    tensors=("logits",),
)
def exported_adapter(run: Run, *, hf_config: str = "qwen3", peft: str = "lora", fields: str = "") -> Mapping[str, Any]:
    """The logits of a Megatron model with an adapter, in float32, against those of its exported weights.

    Returns:
        expected: True twice.
        actual: whether the model with the `exported` adapter (`save_hf_adapter`, which verl's checkpoint manager calls)
            on the exported base weights, and the model with `merged` weights (which verl hands to its rollout engine),
            give the same logits as the Megatron model; or why the `peft` library refuses the export.
        logits: of the Megatron model, sequences x tokens x this rank's part of the vocabulary.

    Args:
        hf_config: a shipped tiny model or the path of a Hugging Face `config.json`.
        peft: `lora`, `dora` or `canonical_lora`.
        fields: further fields of the `lora` section, as in `peft_object`.
    """
    import torch

    section = _peft.lora_section(peft, f"{fields};dtype=float32")
    engine = _engine.construct_engine(run, hf_config, dtype="float32", model={"lora": section})
    if run.rank == 0:
        _hugging_face.write_random_weights()
    _checkpoint.barrier()
    engine._build_tf_config()
    modules = _engine.build_module(run, engine)
    fill_parameters(modules)
    folder = run.folder / "export"
    engine.bridge.save_hf_adapter(modules, folder, engine.peft_cls)
    base, merged = (
        dict(engine.bridge.export_hf_weights(modules, merge_adapter_weights=merge, show_progress=False))
        for merge in (False, True)
    )
    _checkpoint.barrier()
    tokens = (torch.arange(16, device=run.lane.device).view(2, 8) * 7 + 3) % engine.model_config.hf_config.vocab_size
    with torch.no_grad():
        ours = _megatron_logits(modules, tokens)
        plain = _part(ours, _hugging_face.load_model(run, "plain", base)(tokens))
        merged_logits = _part(ours, _hugging_face.load_model(run, "merged", merged)(tokens))
        actual: dict[str, Any] = {"merged": _agree(ours, merged_logits, plain)}
        try:
            adapted = _hugging_face.with_adapter(_hugging_face.load_model(run, "base", base), folder)
        except RuntimeError as refusal:  # the `peft` library's, of tensors that are missing or of another shape
            actual["exported"] = str(refusal).partition("\n")[0]
        else:
            actual["exported"] = _agree(ours, _part(ours, adapted(tokens)), plain)
    return {"expected": {"exported": True, "merged": True}, "actual": actual, "logits": ours}


def _megatron_logits(modules: list[Any], tokens: Any) -> Any:
    import torch

    (model,) = modules
    model.eval()
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return model(input_ids=tokens, position_ids=positions, attention_mask=None).float()


def _part(ours: Any, output: Any) -> Any:
    """The part of a whole model's logits that this rank's have."""
    from megatron.core import parallel_state

    size = ours.shape[-1]
    first = size * parallel_state.get_tensor_model_parallel_rank()
    return output.logits[..., first : first + size]


def _agree(ours: Any, theirs: Any, plain: Any) -> bool:
    """Whether two logits are the same beside what the adapter changes, which must itself be seen."""
    changed = (ours - plain).norm()
    return bool(changed > 1e-2 * plain.norm() and (ours - theirs).norm() < _TOLERANCE * changed)
