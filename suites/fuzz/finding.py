"""A config that shows what nobody knows: kept for every later run, and shown in a way that runs in its stack."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from harness.probes._values import Description, source
from harness.stacks import BuiltStack

EXAMPLES = Path(__file__).with_name("examples")

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
MegatronCheckpointManager.save_checkpoint.__globals__["save_dist_checkpointing"] = lambda **_: None
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
}
"""Python that prints the dump of `value`, by the way to dump it."""


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
        file = folder / f"{self.through}-{hashlib.sha256(json.dumps(self.config).encode()).hexdigest()[:8]}.json"
        kept = {"through": self.through, "config": self.config, "told": self.told}
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(kept, indent=1) + "\n")
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


def kept(through: str, folder: Path = EXAMPLES) -> list[Description]:
    """Configs that earlier runs found."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return [example["config"] for example in found if example["through"] == through]
