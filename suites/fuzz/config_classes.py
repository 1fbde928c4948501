"""The config classes that a stack really has, and the types of their fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from harness.observe.run import Run
from harness.probes._field_types import described_fields
from harness.probes._values import made_with_sizes
from harness.probes.config_values import PRELOAD as PRELOAD
from harness.probes.config_values import converse
from harness.probes.registry import probe

_TRANSFORMER_CONFIG = "megatron.core.transformer.transformer_config:TransformerConfig"


@probe(enters=(f"{_TRANSFORMER_CONFIG}.__post_init__",), returns=("ended",))
def config_classes(run: Run, *, listen: str) -> Mapping[str, Any]:
    """Answers any question with the classes derived from Megatron-Core's TransformerConfig, and itself.

    An answer has `classes`: reference → field → alternatives of its type, see
    `harness.probes._field_types`; and `refused`: reference → why it could not be made with a few sizes.
    """
    kinds = [run.upstream(_TRANSFORMER_CONFIG), *_derived(run.upstream(_TRANSFORMER_CONFIG))]
    references = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in kinds}
    classes: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for reference, kind in sorted(references.items()):
        try:
            made_with_sizes(reference)
        except Exception as error:  # noqa: BLE001 - what a class refuses is listed
            refused[reference] = f"{type(error).__name__}: {error}"
            continue
        classes[reference] = described_fields(kind)
    converse(listen, lambda _: {"classes": classes, "refused": refused})
    return {"ended": True}


def _derived(kind: type) -> Iterator[type]:
    for derived in kind.__subclasses__():
        if dataclasses.is_dataclass(derived) and "<locals>" not in derived.__qualname__:
            yield derived
            yield from _derived(derived)
