"""Weights as a function of where they belong, so that stacks and layouts can be compared.

Let `N` be the global name of a parameter (layers and experts counted over all ranks), `S` its global shape, and `k` the
row-major position of an element within `S`. Its value is

    centre(N) + spread(S) * (2 * frac(phase(N) + k / φ) - 1)

with `phase(N)` the CRC-32 of `N` over 2^32, φ the golden ratio, `centre` 1 for the weights of norms and 0 for all
else, and `spread` 0.5 / sqrt(last size of `S`). It is computed in float64 and rounded once, to the parameter's dtype.
Multiples of 1 / φ keep apart as far as possible: the values of a parameter with a million elements still differ in
float32, so a row that moved is seen.

A rank fills its shard from the global positions it holds. Shards are contiguous along the parameter's partition
dimension, except for the fused first layer of a gated MLP: there each rank holds its part of the gate, then its part
of the up projection. (The fused query, key and value layer orders heads by query group; its shards are contiguous.)
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.observe.run import HarnessFault

_GOLDEN_FRACTION = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Placed:
    """A parameter of this rank and its place in the whole model.

    Attributes:
        name: global name, free of wrappers.
        parameter: this rank's shard.
        dim: dimension along which it is sharded, or None.
        rank: which shard, of `shards`.
        blocks: how many equal blocks of the global parameter are sharded one by one (2 for gate and up, else 1).
    """

    name: str
    parameter: Any
    dim: int | None = None
    rank: int = 0
    shards: int = 1
    blocks: int = 1

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Shape of the whole parameter."""
        shape = list(self.parameter.shape)
        if self.dim is not None:
            shape[self.dim] *= self.shards
        return tuple(shape)

    def global_indices(self, dim: int) -> Any:
        """Which global indices along `dim` this shard holds, in its own order."""
        import torch

        size = self.parameter.shape[dim]
        if dim != self.dim:
            return torch.arange(size)
        return torch.arange(size * self.shards).view(self.blocks, self.shards, -1)[:, self.rank].reshape(-1)


def fill_parameters(chunks: Sequence[Any], *, perturbed: int = 0) -> None:
    """Give every parameter of the model chunks its values; see the module's docstring for the formula.

    Args:
        perturbed: if not 0, move each value by one unit in the last place, up or down as its global position and this
            seed say.
    """
    import torch

    with torch.no_grad():
        for placed in placed_parameters(chunks):
            values = _values(placed).to(placed.parameter.dtype)
            if perturbed:
                values = torch.nextafter(values, _directions(placed, perturbed))
            placed.parameter.copy_(values)


def fill_named(parameters: Iterable[tuple[str, Any]]) -> None:
    """Give whole parameters, each under its own name, their values; see the module's docstring for the formula."""
    import torch

    with torch.no_grad():
        for name, parameter in parameters:
            parameter.copy_(_values(Placed(name, parameter)))


def placed_parameters(chunks: Sequence[Any]) -> Iterator[Placed]:
    """Every parameter of this rank with its place in the whole model, wrappers removed, in upstream's order."""
    from megatron.core import parallel_state

    for chunk in chunks:
        model = _unwrapped(chunk)
        layers = _layer_prefixes(model)
        for name, parameter in model.named_parameters():
            expert = ".experts." in name
            placed = Placed(_global_name(model, name, layers), parameter)
            if getattr(parameter, "tensor_model_parallel", False):
                group = "expert_tensor_parallel" if expert else "tensor_model_parallel"
                placed = Placed(
                    placed.name,
                    parameter,
                    dim=parameter.partition_dim,
                    rank=getattr(parallel_state, f"get_{group}_rank")(),
                    shards=getattr(parallel_state, f"get_{group}_world_size")(),
                    blocks=2 if _holds_gate_and_up(model, name, parameter) else 1,
                )
            yield placed


def named_modules(chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Every module of this rank by global name, wrappers removed; the outermost is `(model)`."""
    for chunk in chunks:
        model = _unwrapped(chunk)
        layers = _layer_prefixes(model)
        for name, module in model.named_modules():
            yield _global_module_name(model, name, layers) or "(model)", module


def _positions(placed: Placed) -> Any:
    """Row-major positions within the whole parameter of the elements that this rank holds."""
    import torch

    shape = placed.global_shape
    position = torch.zeros((), dtype=torch.float64)
    for dim in range(len(shape)):
        position = position.unsqueeze(-1) * shape[dim] + placed.global_indices(dim).to(torch.float64)
    return position


def _directions(placed: Placed, seed: int) -> Any:
    """Plus or minus infinity for each element, without a pattern that a sum could see."""
    import torch

    upwards = torch.frac((_positions(placed) + seed / 3) * math.sqrt(seed + 1)) < 0.5
    return torch.where(upwards, math.inf, -math.inf).to(placed.parameter.dtype)


def _values(placed: Placed) -> Any:
    import torch

    shape = placed.global_shape
    position = _positions(placed)
    phase = zlib.crc32(placed.name.encode()) / 2**32
    centre = 1.0 if re.search(r"norm[a-z_.]*weight$", placed.name) else 0.0
    spread = 0.5 / math.sqrt(shape[-1])
    return centre + spread * (2 * torch.frac(phase + position * _GOLDEN_FRACTION) - 1)


def _unwrapped(chunk: Any) -> Any:
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def _layer_prefixes(model: Any) -> dict[str, str]:
    """Local prefixes such as `decoder.layers.0.` with the global ones: pipeline stages count layers from zero."""
    prefixes = {}
    for name, module in model.named_modules():
        stem, _, index = name.rpartition(".")
        if index.isdigit() and stem.endswith("layers") and isinstance(getattr(module, "layer_number", None), int):
            prefixes[f"{name}."] = f"{stem}.{module.layer_number - 1}."
    return prefixes


def _global_module_name(model: Any, name: str, layers: dict[str, str]) -> str:
    whole = _with_global_layer(f"{name}.", layers)[:-1]
    if ".local_experts." not in whole:
        return whole
    first = _first_expert(model)
    return re.sub(r"(\.local_experts\.)(\d+)", lambda match: f"{match[1]}{first + int(match[2])}", whole)


def _with_global_layer(name: str, layers: dict[str, str]) -> str:
    for local, whole in layers.items():
        if name.startswith(local):
            return whole + name.removeprefix(local)
    return name


def _first_expert(model: Any) -> int:
    """Global index of this rank's first expert."""
    from megatron.core import parallel_state

    local_experts = model.config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
    return int(local_experts * parallel_state.get_expert_model_parallel_rank())


def _global_name(model: Any, name: str, layers: dict[str, str]) -> str:
    if name == "output_layer.weight" and getattr(model, "share_embeddings_and_output_weights", False):
        return "embedding.word_embeddings.weight"
    name = _with_global_layer(name, layers)
    if ".experts." not in name:
        return name
    first = _first_expert(model)
    renamed, found = re.subn(
        r"(\.local_experts\.|\.linear_fc[12]\.(?:weight|bias))(\d+)",
        lambda match: f"{match[1]}{first + int(match[2])}",
        name,
    )
    if found != 1:
        raise HarnessFault(f"expert parameter {name} holds several experts in one tensor; its layout is not known here")
    return renamed


def _holds_gate_and_up(model: Any, name: str, parameter: Any) -> bool:
    # An adapter's first matrix is sharded along its rank; canonical adapters keep gate and up apart.
    apart = (".linear_in.", ".adapter_gate.", ".adapter_up.")
    gated = bool(getattr(model.config, "gated_linear_unit", False))
    fused = ".linear_fc1." in name and not any(part in name for part in apart)
    return gated and fused and parameter.partition_dim == 0
