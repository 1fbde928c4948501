"""Fields in which the configs that two sides resolved differ."""

from __future__ import annotations

from collections.abc import Sequence

from harness.compare.trees import Difference, tree_differences
from harness.observe.observation import Observation


def changed_configs(old: Sequence[Observation], new: Sequence[Observation]) -> list[Difference]:
    """`config.field` with both values, of the configs that the lowest ranks kept; empty where one kept none."""
    kept = [ranks[0].environment.get("configs") if ranks else None for ranks in (old, new)]
    return tree_differences(kept[0], kept[1]) if kept[0] and kept[1] else []
