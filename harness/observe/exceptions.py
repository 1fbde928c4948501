"""Exceptions as data: type, message and where they come from."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from harness.observe.run import HarnessFault, MissingSymbol, Refused

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_PORT = re.compile(r"(\[127\.0\.0\.1\]:)\d+")
"""Of a peer on this host, as gloo names it."""
_LOST_PEER = re.compile(
    r"\[\S*gloo/transport/tcp/pair\.cc:\d+\] "
    r"(?:Connection closed by peer \[127\.0\.0\.1\]:\d+|Read error \[127\.0\.0\.1\]:\d+: Connection reset by peer)"
)
"""How gloo says that a peer is gone: which of the two depends on when it went."""


@dataclass(frozen=True)
class Roots:
    """Folders that say whose code a frame is.

    Attributes:
        harness: files and folders of the harness and of the probe.
        upstream: folders of the pinned distributions.
        hidden: paths that differ between runs, with the word that replaces them in messages.
    """

    harness: tuple[Path, ...]
    upstream: tuple[Path, ...]
    hidden: Mapping[Path, str]


@dataclass(frozen=True)
class ObservedException:
    """One exception.

    Attributes:
        type: `module:QualifiedName`.
        message: its text, with run folders and addresses replaced.
        origin: `module:function` of the innermost frame in upstream or harness code.
        ours: whether that frame is the harness's own, so that the exception says nothing about upstream.
        traceback: the formatted traceback.
    """

    type: str
    message: str
    origin: str
    ours: bool
    traceback: str


def observe_exception(error: BaseException, roots: Roots) -> ObservedException:
    """Describe an exception; `ours` is false for what a `Run` raises to say that a pin lacks something."""
    kind = type(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if not _passes_on(frame)]
    owned = [(frame, _owner(frame, roots)) for frame in frames]
    innermost, owner = next(((frame, owner) for frame, owner in reversed(owned) if owner), (None, "harness"))
    if isinstance(error, (MissingSymbol, Refused)):
        return _described(error, kind, "the pin", False, roots)
    ours = owner == "harness" or isinstance(error, (HarnessFault, MemoryError))
    return _described(error, kind, _place(innermost), ours, roots)


def _described(
    error: BaseException, kind: type[BaseException], origin: str, ours: bool, roots: Roots
) -> ObservedException:
    return ObservedException(
        type=f"{kind.__module__}:{kind.__qualname__}",
        message=portable(str(error), roots.hidden),
        origin=origin,
        ours=ours,
        traceback="".join(traceback.format_exception(error)),
    )


def portable(text: str, hidden: Mapping[Path, str]) -> str:
    """`text` without what differs from run to run: the paths of `hidden`, addresses, ports, how a peer was lost."""
    for path in sorted(hidden, key=lambda path: -len(str(path))):
        text = text.replace(str(path), hidden[path])
    text = _LOST_PEER.sub("Connection closed by peer", text)
    return _PORT.sub(r"\1…", _ADDRESS.sub("0x…", text))


def _owner(frame: FrameType, roots: Roots) -> str:
    file = Path(frame.f_code.co_filename)
    if any(file == root or file.is_relative_to(root) for root in roots.harness):
        return "harness"
    return "upstream" if any(file.is_relative_to(root) for root in roots.upstream) else ""


def _passes_on(frame: FrameType) -> bool:
    """Whether a frame only hands a call on and says so, in the way pytest and others know."""
    return bool(frame.f_locals.get("__tracebackhide__"))


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "nowhere"
    module: Any = frame.f_globals.get("__name__", "?")
    return f"{module}:{frame.f_code.co_qualname}"
