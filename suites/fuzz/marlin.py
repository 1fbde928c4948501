"""Strategies: NVFP4 block scales, and which function of vLLM or verl brings them into Marlin's layout."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from harness.probes._values import Description
from harness.probes.consistency.marlin import HELPERS

_LARGEST = 0x7E
"""The byte of the largest E4M3 number; one more is none."""
_DTYPES = ("bfloat16", "float16")


def block_scales(_: list[Any]) -> st.SearchStrategy[Description]:
    """Arguments of `marlin_scales_drawn`: up to 16 scales, often zero, or the smallest or the largest that there is."""
    codes = st.lists(st.sampled_from([0, 1, _LARGEST]) | st.integers(0, _LARGEST), min_size=1, max_size=16)
    return st.builds(_arguments, st.sampled_from(sorted(HELPERS)), st.sampled_from(_DTYPES), codes.map(bytes))


def single_scales(_: list[Any]) -> list[Description]:
    """The same with one scale everywhere, and with two that are far apart."""
    codes = [bytes([code]) for code in (0x38, 0, 1, 7, 8, _LARGEST)] + [
        bytes([low, _LARGEST]) for low in (0, 1, 8, 0x38)
    ]
    return [_arguments(helper, dtype, each) for helper in sorted(HELPERS) for dtype in _DTYPES for each in codes]


def _arguments(helper: str, dtype: str, codes: bytes) -> Description:
    return ["dict", "scales", f"0x{codes.hex()}", "helper", helper, "dtype", dtype]
