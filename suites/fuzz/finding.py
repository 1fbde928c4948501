"""A config that shows what nobody knows: kept for every later run, and shown in a way that runs in its stack."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.probes._values import Description, source
from harness.stacks import BuiltStack

EXAMPLES = Path(__file__).with_name("examples")
FINDINGS = Path(__file__).parents[2] / "golden" / "FINDINGS.md"
_HEADING = "| class | config | 0.7.1 | 0.8.0 |"
_LONGEST = 70
"""Characters of a dump or class in a table."""

_MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager"

_SHOW = {
    "functions": f"""
import json
from {_MANAGER} import _config_to_shallow_dict, _to_json_safe_config_dict

print(json.dumps(_to_json_safe_config_dict(value if isinstance(value, dict) else _config_to_shallow_dict(value))))
""",
    "saves": f"""
import json, pathlib, tempfile, types
import torch
from megatron.core import parallel_state
from {_MANAGER} import MegatronCheckpointManager
from verl.trainer.config import CheckpointConfig

if not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
parallel_state.initialize_model_parallel()
replaced = dict.fromkeys(["save_dist_checkpointing", "print"], lambda *_, **__: None)
MegatronCheckpointManager.save_checkpoint.__globals__.update(replaced)
manager = MegatronCheckpointManager(
    config=types.SimpleNamespace(model=types.SimpleNamespace(path="")),
    checkpoint_config=CheckpointConfig(save_contents=["extra"], load_contents=["extra"]),
    transformer_config=value, role="actor", model=[], bridge="asked for nothing",
    **dict.fromkeys(["model_config", "arch", "hf_config", "param_dtype", "share_embeddings_and_output_weights",
                     "processing_class", "optimizer", "optimizer_scheduler", "use_distributed_optimizer"]),
)
folder = tempfile.mkdtemp()
manager.save_checkpoint(folder, global_step=1)
print(json.dumps(json.loads((pathlib.Path(folder) / "transformer_config.json").read_text())))
""",
    "peft_sections": """
import torch
from verl.workers.config.megatron_peft import get_peft_cls

print(get_peft_cls(value, bridge=object(), provider=object(), dtype=torch.bfloat16))
""",
    "provider_overrides": """
import tempfile, types
import torch, transformers
from verl.workers.config import McoreEngineConfig
from verl.workers.engine.megatron.transformer_impl import MegatronEngine

if not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
sizes = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
hf_config = transformers.Qwen3Config(architectures=["Qwen3ForCausalLM"], intermediate_size=96, vocab_size=128, **sizes)
folder = tempfile.mkdtemp()
hf_config.save_pretrained(folder)
engine = types.SimpleNamespace(
    model_config=types.SimpleNamespace(
        hf_config=hf_config, local_path=folder, trust_remote_code=False, mtp=types.SimpleNamespace(enable=False),
        model_type="language_model", share_embeddings_and_output_weights=False,
    ),
    engine_config=McoreEngineConfig(vanilla_mbridge=False, override_transformer_config=value),
    enable_routing_replay=False, _qat_enabled=False,
)
names = list(value)
MegatronEngine._build_tf_config(engine)
print({name: getattr(engine.provider, name) for name in names})
""",
    "marlin_scales": """
import torch
from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_permute_scales
from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import nvfp4_marlin_process_scales

# What vLLM makes of the scales. Helpers of verl need a layer: parity check-stack STACK marlin_invariant helper=NAME …
codes = torch.tensor(list(bytes.fromhex(value["scales"][2:])), dtype=torch.uint8)
blocks = codes[torch.arange(512) % len(codes)].view(torch.float8_e4m3fn).reshape(64, 8)
scales = blocks.T.contiguous().to(getattr(torch, value["dtype"]))
print(nvfp4_marlin_process_scales(marlin_permute_scales(s=scales, size_k=128, size_n=64, group_size=16)))
""",
}
"""Python that prints what a stack makes of `value`, by the way to it."""


class Unexplained(AssertionError):
    """A config that shows in a stack what nobody knows.

    Attributes:
        told: what it shows, in words.
    """

    def __init__(self, told: Sequence[str], config: Description, through: str, stack: BuiltStack) -> None:
        super().__init__(f"{stack.name}: {'; '.join(told)}: {json.dumps(config)}")
        self.told, self.config, self.through, self.stack = list(told), config, through, stack

    def keep(self, folder: Path = EXAMPLES) -> str:
        """Write it where every later run begins; say where, and how to see it again."""
        file = example_file(self.through, self.config, folder)
        write(file, {"through": self.through, "config": self.config, "told": self.told})
        return "\n".join(
            [
                str(self),
                f"kept as {file.parent.name}/{file.name}, where every later run begins; to see it, give the rest to",
                f"PYTHONPATH={self.stack.overlay} {self.stack.python} -P -",
                "",
                reproduction(self.config, self.through),
            ]
        )


def reproduction(config: Description, through: str) -> str:
    """Python that makes a config and prints its dump; it needs nothing but a stack."""
    return source(config) + "\n" + _SHOW[through]


def example_file(through: str, config: Description, folder: Path = EXAMPLES) -> Path:
    """Where a config is kept that goes to `through`."""
    return folder / f"{through}-{hashlib.sha256(json.dumps(config).encode()).hexdigest()[:8]}.json"


def write(file: Path, example: Mapping[str, Any]) -> None:
    """Keep an example."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_as_json(example))


def pin(through: str, examples: Sequence[Mapping[str, Any]], folder: Path = EXAMPLES) -> list[str]:
    """Keep the examples that show what is known; what that changed in the folder, a line for each file.

    A known example that is none of them goes: a class that it showed is gone, or has a smaller one.
    """
    wanted = {example_file(through, example["config"], folder): example for example in examples}
    known = [example_file(through, each["config"], folder) for each in kept(through, folder) if "shows" in each]
    changes = []
    for file, example in wanted.items():
        if not file.exists() or file.read_text() != _as_json(example):
            write(file, example)
            changes.append(f"wrote {folder.name}/{file.name}: {'; '.join(example['told'])}")
    for file in known:
        if file not in wanted:
            changes.append(f"removed {folder.name}/{file.name}: {'; '.join(json.loads(file.read_text())['told'])}")
            file.unlink()
    return changes


def _as_json(example: Mapping[str, Any]) -> str:
    return json.dumps(example, indent=1, ensure_ascii=False) + "\n"


def kept(through: str, folder: Path = EXAMPLES) -> list[dict[str, Any]]:
    """What earlier runs found: `config`, what they were `told` of it, and, once known, what each stack `shows`."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return [example for example in found if example["through"] == through]


def shown(answer: Mapping[str, Any]) -> str:
    """What a stack makes of a config, in a line."""
    dump = answer["text"] if answer["raised"] is None else f"raises {answer['raised']}"
    return "; ".join([" ".join(str(dump).split()), *answer["broken"]])


def section(findings: Path) -> str:
    """The part of the findings that `table` writes."""
    lines = findings.read_text().splitlines(keepends=True)
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[lines.index(f"{_HEADING}\n") :])
    return "".join(rows)


def table() -> str:
    """Every class of difference between two stacks, with its smallest example, as Markdown."""
    lines = [_HEADING, "| --- | --- | --- | --- |"]
    for example in sorted((each for each in kept("saves") if "shows" in each), key=lambda each: each["told"][0]):
        classes = [told.partition(": ")[2] for told in example["told"] if " → " in told.partition(": ")[0]]
        cells = [json.dumps(example["config"], ensure_ascii=False), *example["shows"].values()]
        if classes:
            row = ["; ".join(map(_short, classes)), *(f"`{_short(cell)}`" for cell in cells)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
