"""What the records keep of tensors that differ: a line for each, everything of the worst, pictures of very few."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.compare import Judged, Side
from harness.compare.elements import ObservedTensors
from harness.compare.profile import profile
from harness.compare.tensors import TensorVerdict

_WHOLE = 12
"""Tensors of a case that are kept with everything said of them."""
_PICTURED = 4
"""Of these, how many with a histogram and a map."""
_BRIEF = 600
"""Tensors of a case that are kept at all."""

_Ranked = tuple[int, TensorVerdict]


def tensor_records(judged: Judged, sides: Mapping[str, Side]) -> list[dict[str, Any]]:
    """The tensors that are not bitwise equal, the one furthest beyond what is allowed first."""
    found = [(rank, tensor) for rank, tensors in enumerate(judged.tensors) for tensor in tensors]
    ranked = sorted(found, key=_excess)
    return [
        _brief(rank, tensor)
        | (_whole(tensor) if number < _WHOLE else {})
        | (_picture(rank, tensor, sides) if number < _PICTURED else {})
        for number, (rank, tensor) in enumerate(ranked[:_BRIEF])
    ]


def _excess(ranked: _Ranked) -> tuple[bool, float, int, str]:
    """Sort key: what differs before what is within noise, then by how often the allowance is used up."""
    rank, tensor = ranked
    excess = tensor.needed / tensor.allowed if tensor.allowed else tensor.needed
    return tensor.kind != "different", -excess if math.isfinite(excess) else -math.inf, rank, tensor.name


def _brief(rank: int, tensor: TensorVerdict) -> dict[str, Any]:
    error = tensor.statistics.relative_error if tensor.statistics else None
    return {"rank": rank, "name": tensor.name, "kind": tensor.kind, "relative_error": _finite(error)}


def _whole(tensor: TensorVerdict) -> dict[str, Any]:
    return {
        "message": tensor.message,
        "quantity": tensor.decisive.quantity if tensor.decisive else "relative error",
        "needed": _finite(tensor.needed) if tensor.statistics else None,
        "allowed": _finite(tensor.allowed),
        "no_floor": tensor.why,
        "dtype": (tensor.new or tensor.old or ("", ()))[0],
        "shape": (tensor.new or tensor.old or ("", ()))[1],
    }


def _picture(rank: int, tensor: TensorVerdict, sides: Mapping[str, Side]) -> dict[str, Any]:
    """Histogram and map, where the elements of both sides are at hand."""
    if tensor.statistics is None or sides.keys() != {"old", "new"} or sides["old"].layout != sides["new"].layout:
        return {}
    pair: Sequence[ObservedTensors] = [ObservedTensors(sides[name].ranks[rank]) for name in ("old", "new")]
    found = profile(*(side.array(tensor.name) for side in pair))
    return {"profile": asdict(found)} if found else {}


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
