"""The Hugging Face architectures that Megatron-Bridge registers, and a config of each."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.observe.run import MissingSymbol, Run

PRELOAD = ("megatron.bridge", "megatron.bridge.models.conversion.model_bridge", "transformers")

AUTO_BRIDGE = "megatron.bridge:AutoBridge"
_REGISTRY = "megatron.bridge.models.conversion.model_bridge:get_model_bridge"

_PACKAGE = "megatron.bridge.models."

_TEXT_PARTS = ("text_config", "thinker_config", "llm_config", "language_config")
"""Where the config of a multimodal model keeps that of its language model."""


@dataclass(frozen=True)
class Architecture:
    """One architecture with the default config of its class.

    Attributes:
        name: the Hugging Face class.
        kind: its config class.
        default: the config as a plain dictionary.
    """

    name: str
    kind: type
    default: Mapping[str, Any]

    @property
    def text_path(self) -> tuple[str, ...]:
        """Keys from the whole config to that of the language model."""
        path: tuple[str, ...] = ()
        node: Any = self.default
        while part := next((name for name in _TEXT_PARTS if isinstance(node.get(name), dict)), None):
            path, node = (*path, part), node[part]
        return path

    @property
    def text(self) -> Mapping[str, Any]:
        """The config of the language model."""
        node: Any = self.default
        for part in self.text_path:
            node = node[part]
        return dict(node)

    def config(self, fields: Mapping[str, Any], outside: Mapping[str, Any]) -> Any:
        """A config with `fields` in the language model's, and `outside` in the whole one.

        Raises:
            Exception: whatever the class says of values that it refuses.
        """
        whole = copy.deepcopy(dict(self.default)) | dict(outside)
        node = whole
        for part in self.text_path:
            node = node[part]
        node.update(fields)
        return self.made_of(whole)

    def made_of(self, whole: Mapping[str, Any]) -> Any:
        """A config from its plain dictionary."""
        config = self.kind(**whole)
        config.architectures = [self.name]
        return config


def registered(run: Run) -> dict[str, Architecture | None]:
    """Every architecture that `megatron.bridge` registers; None where this transformers has no config class for it.

    Those of diffusion models are left out: they are registered once somebody imports their package, and have no
    config class of transformers.
    """
    bridge_of = run.upstream(_REGISTRY)
    names = run.upstream(AUTO_BRIDGE).list_supported_models()
    ours = [name for name in names if type(bridge_of(name)).__module__.startswith(_PACKAGE)]
    return {name: _architecture(run, name) for name in ours}


def _architecture(run: Run, name: str) -> Architecture | None:
    kind = _config_class(run, name)
    return Architecture(name, kind, kind().to_dict()) if kind else None


def _config_class(run: Run, name: str) -> type | None:
    """The config class of the transformers class of that name, else that of the model type which the bridge names."""
    try:
        found: type = run.upstream(f"transformers:{name}.config_class")
    except MissingSymbol:
        model_type = getattr(run.upstream(_REGISTRY)(name), "MODEL_TYPE", None)
        known: Mapping[str, type] = run.upstream("transformers:CONFIG_MAPPING")
        return known.get(model_type)  # type: ignore[arg-type]
    return found
