"""Which of the config fields that differ touch a module, by the words that Megatron-Core's fields are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.compare.trees import ABSENT

Row = Mapping[str, str]
"""A field of a resolved config that differs: `field`, `old`, `new`."""

_WORDS: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "attn", "qkv", "head", "kv_channels", "softmax", "query", "rope", "rotary", "window"),
    "embedding": ("vocab", "embedding", "position", "rope", "rotary"),
    "rotary": ("rope", "rotary", "yarn", "seq_len"),
    "mlp": ("mlp", "ffn", "activation", "gated", "glu", "silu"),
    "expert": ("moe", "expert", "ffn", "activation", "gated", "glu"),
    "router": ("moe", "router", "topk", "expert"),
    "norm": ("norm", "epsilon"),
    "output_layer": ("vocab", "logit", "untie", "embeddings"),
    "linear": ("bias", "linear"),
    "adapter": ("peft", "lora", "dora", "alpha", "rank"),
    "mtp": ("mtp",),
}
"""Part of a module's name → parts of the names of fields that it reads."""

_EVERYWHERE = ("dtype", "fp8", "fp16", "bf16", "fusion", "fused", "dropout", "deterministic", "residual", "autocast")
"""Parts of the names of fields that any module may read."""


def touching(module: str, rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """The rows that touch a module, and the others; of both, values that changed before fields that one side lacks.

    Args:
        module: its global name, `decoder.layers.1.mlp.linear_fc1`; empty where no module is known.
    """
    words = {word for part, found in _WORDS.items() if part in module for word in found}
    wanted = [*words, *_EVERYWHERE] if module else []
    near: list[Row] = []
    far: list[Row] = []
    for row in sorted(rows, key=lambda row: ABSENT in (row["old"], row["new"])):
        name = row["field"].lower()
        (near if any(word in name for word in wanted) else far).append(row)
    return near, far
