"""Models as `transformers` and `peft` make them of weights that Megatron-Bridge exported."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import HarnessFault, Run
from harness.probes._models import MODEL_FOLDER


def write_random_weights() -> None:
    """Give the run's model folder weights that transformers initialises; one rank calls this.

    Bridge takes the names of what it exports from them, not the values.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(MODEL_FOLDER)
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(MODEL_FOLDER)


def load_model(run: Run, name: str, weights: Mapping[str, Any]) -> Any:
    """The model that transformers loads from a folder with these weights and the run's config, in float32.

    Bridge names a layer that has an adapter as the `peft` library would: `q_proj.base_layer.weight`.

    Args:
        name: of the folder, which is this rank's own.

    Raises:
        HarnessFault: the weights are not exactly those that the model has.
    """
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    folder = run.folder / f"{name}-{run.rank}"
    shutil.copytree(MODEL_FOLDER, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    named = {key.replace(".base_layer.", "."): weight.float().contiguous() for key, weight in weights.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    model, told = AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", attn_implementation="eager", output_loading_info=True
    )
    wrong = {kind: sorted(map(str, keys)) for kind, keys in told.items() if keys}
    if wrong:
        raise HarnessFault(f"{name}: {wrong}")
    return model.to(run.lane.device).eval()


def with_adapter(model: Any, folder: Path) -> Any:
    """A model of transformers with the adapter in `folder`, as the `peft` library loads it."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(folder)).eval()
