"""Globs over names that hold brackets: `*` and `?` are the only special characters."""

from __future__ import annotations

import re
from functools import cache


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = (
        ".*" if piece == "*" else "." if piece == "?" else re.escape(piece) for piece in re.split(r"([*?])", pattern)
    )
    return re.compile("".join(parts), re.DOTALL)


def matches(pattern: str, text: str) -> bool:
    """Whether the whole of `text` fits `pattern` (`*`: any characters, `?`: one; brackets are plain text)."""
    return _compiled(pattern).fullmatch(text) is not None
