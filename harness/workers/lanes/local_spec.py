"""The local layer spec: a config made to build without Transformer Engine's layers, on any lane."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from harness.observe.run import Run, Unavailable

NAME = "local"


def force_local_spec(run: Run, config: Any, **more: Any) -> None:
    """Make a Megatron config build local layers; each field that changes, or could have, becomes a mask.

    Fields the pin does not have are left alone.

    Args:
        more: further fields that the lane forces.

    Raises:
        Unavailable: the config asks for something that only Transformer Engine's layers have.
    """
    if getattr(config, "multi_latent_attention", False):
        raise Unavailable("multi-latent attention needs Transformer Engine's attention; the local spec has none")
    if getattr(config, "context_parallel_size", 1) > 1:
        raise Unavailable("context parallelism needs Transformer Engine's attention; the local spec has none")
    force_fields(run, config, {**_forced_fields(config), **more})
    if type(config).__module__.startswith("megatron.core."):
        _let_mbridge_build_local_layers(run)
    if getattr(config, "sequence_parallel", False):
        _let_torch_norms_be_sequence_parallel(run)
    if getattr(config, "mtp_num_layers", None):
        _let_mtp_layers_be_local(run)


def force_fields(run: Run, config: Any, fields: Mapping[str, Any]) -> None:
    """Set fields of a config, those that the pin has; each becomes a mask with the stack's own value."""
    owner = type(config).__name__
    for name, forced in fields.items():
        if hasattr(config, name):
            run.mask(f"{owner}.{name}", getattr(config, name), forced)
            setattr(config, name, forced)


def _forced_fields(config: Any) -> dict[str, Any]:
    """Fused kernels that come with other packages or the CPU lacks, and layers that need Transformer Engine."""
    forced: dict[str, Any] = {
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
        "moe_permute_fusion": False,
    }
    if hasattr(config, "transformer_layer_spec"):
        forced["transformer_layer_spec"] = _local_layer_spec(config.transformer_layer_spec)
    return forced


def _local_layer_spec(own: Any) -> Any:
    """The provider's layer spec without Transformer Engine: its own function, where that one takes the choice."""
    if isinstance(own, functools.partial) and "use_transformer_engine" in own.keywords:
        return functools.partial(own.func, *own.args, **(own.keywords | {"use_transformer_engine": False}))
    from megatron.bridge.models.gpt_provider import local_layer_spec

    return local_layer_spec


def _let_mtp_layers_be_local(run: Run) -> None:
    """Build layers of multi-token prediction like the others: Bridge's provider asks for Transformer Engine's there.

    A second call does nothing.
    """
    from megatron.core.models.gpt import gpt_layer_specs

    original = gpt_layer_specs.get_gpt_mtp_block_spec
    if original.__module__ == __name__:
        return

    def local(config: Any, spec: Any, use_transformer_engine: bool, **keywords: Any) -> Any:
        return original(config, spec, use_transformer_engine=False, **keywords)

    gpt_layer_specs.get_gpt_mtp_block_spec = local
    run.stand_in(
        "megatron.core.models.gpt.gpt_layer_specs:get_gpt_mtp_block_spec(use_transformer_engine=True)",
        f"{__name__}:{_let_mtp_layers_be_local.__name__}",
        "the same function is asked for local layers, as the decoder's are",
    )


def _let_mbridge_build_local_layers(run: Run) -> None:
    """Give mbridge, which always asks for Transformer Engine's layers, the local ones. A second call does nothing."""
    from mbridge.core import llm_bridge

    original = llm_bridge.get_gpt_decoder_block_spec
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def local(config: Any, use_transformer_engine: bool, **keywords: Any) -> Any:
        return original(config, use_transformer_engine=False, **keywords)

    llm_bridge.get_gpt_decoder_block_spec = local
    run.stand_in(
        "mbridge.core.llm_bridge:get_gpt_decoder_block_spec",
        f"{__name__}:{_let_mbridge_build_local_layers.__name__}",
        "it asks for layers of Transformer Engine, which the local spec has none of",
    )


def _let_torch_norms_be_sequence_parallel(run: Run) -> None:
    """Give the weights of torch's norms the flag that the fused norms, absent here, would set.

    Megatron-Core refuses torch's norms under sequence parallelism because nothing else would sum their gradients over
    tensor parallel ranks; the flag is what makes it do so. A second call does nothing.
    """
    from megatron.core.transformer import torch_norm

    original = torch_norm.WrappedTorchNorm.__new__
    if original.__module__ == __name__:
        return

    def flagged(cls: type, config: Any, *arguments: Any, **keywords: Any) -> Any:
        own, config.sequence_parallel = config.sequence_parallel, False
        try:
            norm = original(cls, config, *arguments, **keywords)
        finally:
            config.sequence_parallel = own
        for parameter in norm.parameters():
            parameter.sequence_parallel = own
        return norm

    torch_norm.WrappedTorchNorm.__new__ = flagged
    run.stand_in(
        "megatron.core.transformer.torch_norm:WrappedTorchNorm",
        f"{__name__}:{_let_torch_norms_be_sequence_parallel.__name__}",
        "it refuses sequence parallelism; the fused norms that allow it are not part of the local spec",
    )
