"""The config dataclasses themselves: fields and defaults, and which of them verl names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.observe.run import Run
from harness.probes._models import choice
from harness.probes.registry import probe

DATACLASSES = {
    "transformer": "megatron.core.transformer.transformer_config:TransformerConfig",
    "mla": "megatron.core.transformer.transformer_config:MLATransformerConfig",
    "ddp": "megatron.core.distributed:DistributedDataParallelConfig",
    "optimizer": "megatron.core.optimizer:OptimizerConfig",
    "bridge_ddp": "megatron.bridge.training.config:DistributedDataParallelConfig",
    "bridge_optimizer": "megatron.bridge.training.config:OptimizerConfig",
    "gpt_provider": "megatron.bridge.models.gpt_provider:GPTModelProvider",
    "mla_provider": "megatron.bridge.models.mla_provider:MLAModelProvider",
    "verl_engine": "verl.workers.config:McoreEngineConfig",
    "verl_optimizer": "verl.workers.config:McoreOptimizerConfig",
    "verl_model": "verl.workers.config:HFModelConfig",
}
PRELOAD = tuple({reference.partition(":")[0]: None for reference in DATACLASSES.values()})

_MEGATRON = ("mcore", "megatron")
"""What the paths of verl's files have in them that deal with Megatron."""


@probe(returns=("defaults.*", "named_by_verl"))
def config_fields(run: Run, *, of: str = "transformer") -> Mapping[str, Any]:
    """Every field of a config dataclass that its constructor takes, with its default.

    Args:
        of: which dataclass; one of `DATACLASSES`.

    Returns:
        `defaults`: by field; `(required)` stands for none. `named_by_verl`: those fields whose name is a word of verl's
        own Megatron files, Python or YAML: what it may set or read.
    """
    kind = run.upstream(choice("of", of, DATACLASSES))
    defaults = {field.name: _default(field) for field in dataclasses.fields(kind) if field.init}
    words = _words_in(Path(run.upstream("verl").__file__).parent)
    return {"defaults": defaults, "named_by_verl": words & defaults.keys()}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return "(required)" if field.default is dataclasses.MISSING else field.default


def _words_in(package: Path) -> set[str]:
    files = [file for file in package.rglob("*") if file.suffix in (".py", ".yaml")]
    concerned = [file for file in files if any(word in str(file.relative_to(package)) for word in _MEGATRON)]
    return {word for file in concerned for word in re.findall(r"\w+", file.read_text())}
