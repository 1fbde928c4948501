"""Goldens: observations of a blessed stack, kept under `golden/<lane>/` with their provenance.

A run never writes one. A golden holds the whole tree, and per tensor its dtype, shape, hash and statistics in full
precision; the elements only where they are few. On the host class it was recorded on, a golden is compared bit for bit;
on another, by its statistics (see `PORTABLE_FACTOR`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from harness.compare import Difference, Judged, Verdict
from harness.compare.circumstances import hooks
from harness.compare.elements import Array, dtype_named, elements, epsilon, is_float
from harness.compare.trees import ABSENT, Kind, tree_differences
from harness.compare.verdicts import describe, merge_ranks
from harness.observe import Encoded, Observation
from harness.observe.codec import canonical_bytes
from harness.observe.shapes import shaped

FORMAT = 1
UNRAISED = describe(None)
"""What stands for the exception of a rank that raised none."""
SMALL = 8
"""Elements up to which a golden holds them all."""

PORTABLE_FACTOR = 64.0
"""What another host class may change, in rounding units of the dtype, relative to the tensor's norm (for its norm) or
root mean square (for its mean, minimum and maximum). Vector width and the order of sums move these by a few units; the
factor leaves room for depth, and is far below a scale error of 0.1 % in float32."""

_PORTABLE_FLOAT = PORTABLE_FACTOR * 2.0**-23
"""The same for a plain number in the tree, which comes from a float32 computation."""


class GoldenError(ValueError):
    """A golden that cannot be used; the message names the file and what to type."""


@dataclass(frozen=True)
class TensorGolden:
    """What a golden keeps of one tensor.

    Attributes:
        norm: Euclidean norm of the finite elements, in float64; like the next three None for an empty tensor.
        mean: mean of the finite elements.
        minimum: smallest finite element.
        maximum: largest finite element.
        nan: number of NaN.
        inf: number of infinities.
        values: the elements in order as texts, where they are no more than `SMALL`.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    norm: float | None
    mean: float | None
    minimum: float | None
    maximum: float | None
    nan: int
    inf: int
    values: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return (
            f"{self.dtype}{list(self.shape)} norm {self.norm!r} mean {self.mean!r} "
            f"in [{self.minimum!r}, {self.maximum!r}] {self.sha256[:8]}"
        )


@dataclass(frozen=True)
class RankGolden:
    """What one rank saw.

    Attributes:
        masks: fields the lane forces → the value the stack had chosen.
    """

    tree: Encoded
    tensors: Mapping[str, TensorGolden]
    exception: str
    masks: Mapping[str, Encoded]


@dataclass(frozen=True)
class Golden:
    """One case of one blessed stack.

    Attributes:
        provenance: stack, versions, commits, lane, layout, host class, harness version, and the command that runs the
            case again.
        history: who accepted it, why, when, and from which run; the latest last.
        hooks: where hooks come from; None in goldens that did not keep it yet.
    """

    case: str
    provenance: Mapping[str, Any]
    history: tuple[Mapping[str, str], ...]
    ranks: tuple[RankGolden, ...]
    hooks: Mapping[str, str] | None = None

    @property
    def versions(self) -> Mapping[str, str]:
        """Distribution → version of the stack it was recorded from."""
        return dict(self.provenance["versions"])


@dataclass(frozen=True)
class GoldenStore:
    """The goldens of one lane, a file per case."""

    folder: Path

    def path(self, slug: str) -> Path:
        """Where the golden of a case lies, by its slug."""
        return self.folder / f"{slug}.json"

    def read(self, slug: str) -> Golden | None:
        """The golden of a case, None if there is none.

        Raises:
            GoldenError: the file is damaged, merge-conflicted, edited by hand, or of a newer format.
        """
        path = self.path(slug)
        return _parse(path) if path.exists() else None

    def all(self) -> dict[str, Golden]:
        """Every golden of the lane by case id.

        Raises:
            GoldenError: a file cannot be used.
        """
        return {found.case: found for path in sorted(self.folder.glob("*.json")) for found in [_parse(path)]}

    def write(self, slug: str, golden: Golden) -> Path:
        """Write one golden beside its place, then rename; two writers at once never mix."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(slug)
        with filelock.FileLock(self.folder / ".lock"):
            partial = path.with_suffix(".partial")
            partial.write_text(_text(golden))
            partial.replace(path)
        return path

    def remove(self, slug: str) -> None:
        """Delete the golden of a case."""
        with filelock.FileLock(self.folder / ".lock"):
            self.path(slug).unlink(missing_ok=True)


def golden_of(
    case: str, ranks: Sequence[Observation], provenance: Mapping[str, Any], history: Iterable[Mapping[str, str]]
) -> Golden:
    """A golden of what a side's ranks saw."""
    return Golden(case, dict(provenance), tuple(history), tuple(_rank_golden(rank) for rank in ranks), hooks(ranks))


def host_class(rank: Observation) -> Mapping[str, Any]:
    """What bitwise equality on one lane depends on besides the stack: instruction set, processor, torch."""
    return dict(rank.environment.get("host", {}))


def golden_differences(golden: Golden, ranks: Sequence[Observation]) -> list[Difference]:
    """How a stack's own later run differs from a golden, with what the lane masks; the golden's values are the old."""
    if len(golden.ranks) != len(ranks):
        return _ranks_differ(golden, ranks)
    pairs = list(zip(golden.ranks, ranks, strict=True))
    return [*observed_differences(golden, ranks), *merge_ranks([_mask_differences(*pair) for pair in pairs])]


def observed_differences(golden: Golden, ranks: Sequence[Observation]) -> list[Difference]:
    """How exceptions, trees and tensors of a side differ from a golden; the golden's values are the old ones."""
    if len(golden.ranks) != len(ranks):
        return _ranks_differ(golden, ranks)
    portable = any(host_class(rank) != golden.provenance.get("host") for rank in ranks)
    pairs = zip(golden.ranks, ranks, strict=True)
    return merge_ranks([_rank_differences(kept, rank, portable) for kept, rank in pairs])


def with_golden(judged: Judged, of_old: list[Difference], of_new: list[Difference]) -> Judged:
    """A verdict in the light of a golden of the old stack.

    Args:
        of_old: how the old side differs from it.
        of_new: how the new side differs from it.
    """
    if not of_old or judged.verdict in (Verdict.BROKEN, Verdict.NOT_RUN):
        return judged
    more = f" (+{len(of_old) - 1} more)" if len(of_old) > 1 else ""
    told = f"golden {of_old[0]}{more}"
    if not judged.verdict.fails or not of_new:
        return replace(judged, verdict=Verdict.DRIFT, why=f"{told} [{judged.verdict}]", drift=tuple(of_old))
    return replace(judged, why=f"{judged.why}; the golden differs from both: {told}", drift=tuple(of_old))


def _ranks_differ(golden: Golden, ranks: Sequence[Observation]) -> list[Difference]:
    return [Difference("ranks", "changed", str(len(golden.ranks)), str(len(ranks)))]


def _rank_golden(rank: Observation) -> RankGolden:
    data = rank.tensor_data()
    return RankGolden(
        tree=rank.tree,
        tensors={name: _tensor_golden(elements(data[name]), entry.sha256) for name, entry in rank.tensors.items()},
        exception=describe(rank.exception),
        masks={mask.field: mask.own for mask in rank.masks},
    )


def _tensor_golden(array: Array, sha256: str) -> TensorGolden:
    flat = array.reshape(-1)
    wide = flat.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    finite = np.abs(wide[np.isfinite(wide)]) if array.dtype.kind == "c" else wide[np.isfinite(wide)]
    known = finite.size > 0
    return TensorGolden(
        dtype=str(array.dtype),
        shape=tuple(array.shape),
        sha256=sha256,
        norm=float(np.sqrt(np.sum(finite * finite))) if known else None,
        mean=float(finite.mean()) if known else None,
        minimum=float(finite.min()) if known else None,
        maximum=float(finite.max()) if known else None,
        nan=int(np.isnan(wide).sum()),
        inf=int(np.isinf(wide).sum()),
        values=tuple(str(value) for value in flat) if array.size <= SMALL else None,
    )


def _rank_differences(kept: RankGolden, rank: Observation, portable: bool) -> list[Difference]:
    raised = describe(rank.exception)
    if raised != kept.exception:
        moved: Kind = "added" if kept.exception == UNRAISED else "removed" if raised == UNRAISED else "changed"
        return [Difference("exception", moved, kept.exception, raised)]
    trees = tree_differences(kept.tree, rank.tree)
    if portable:
        trees = [found for found in trees if not _close_numbers(found)]
    return trees + _tensor_differences(kept, rank, portable)


def _mask_differences(kept: RankGolden, rank: Observation) -> list[Difference]:
    if describe(rank.exception) != kept.exception:
        return []
    masks = tree_differences(dict(kept.masks), {mask.field: mask.own for mask in rank.masks})
    return [replace(found, path=f"masked: {found.path}") for found in masks]


def _tensor_differences(kept: RankGolden, rank: Observation, portable: bool) -> list[Difference]:
    entries = rank.tensors
    suspects = [
        name
        for name in sorted({*kept.tensors, *entries})
        if name not in entries or name not in kept.tensors or entries[name].sha256 != kept.tensors[name].sha256
    ]
    data = rank.tensor_data() if suspects else {}
    found = []
    for name in suspects:
        old = kept.tensors.get(name)
        new = _tensor_golden(elements(data[name]), entries[name].sha256) if name in entries else None
        if old is None or new is None:
            found.append(
                Difference(name, "added" if old is None else "removed", str(old or ABSENT), str(new or ABSENT))
            )
        elif not (portable and _close(old, new)):
            found.append(Difference(name, "changed", str(old), str(new)))
    return found


def _close(old: TensorGolden, new: TensorGolden) -> bool:
    """Whether two tensors may be the same computation on two host classes."""
    if (old.dtype, old.shape, old.nan, old.inf) != (new.dtype, new.shape, new.nan, new.inf):
        return False
    if not is_float(dtype_named(old.dtype)):
        return False
    if old.norm is None or new.norm is None:
        return old.norm == new.norm
    allowed = PORTABLE_FACTOR * epsilon(dtype_named(old.dtype)) * max(old.norm, new.norm)
    rms = allowed / math.sqrt(max(1, math.prod(old.shape)))
    pairs = ((old.mean, new.mean), (old.minimum, new.minimum), (old.maximum, new.maximum))
    return abs(old.norm - new.norm) <= allowed and all(abs((a or 0.0) - (b or 0.0)) <= rms for a, b in pairs)


def _close_numbers(found: Difference) -> bool:
    try:
        old, new = float(found.old), float(found.new)
    except ValueError:
        return False
    return "." in found.old and math.isclose(old, new, rel_tol=_PORTABLE_FLOAT)


def _text(golden: Golden) -> str:
    document = _document(golden)
    return _lines({"format": FORMAT, "digest": digest_of(document), **document}) + "\n"


def _document(golden: Golden) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(json.dumps(asdict(golden), allow_nan=False))
    return raw


def digest_of(document: Mapping[str, Any]) -> str:
    """The hash that a golden's file holds of everything else in it."""
    return hashlib.sha256(canonical_bytes(dict(document))).hexdigest()


def _lines(node: Any, depth: int = 0) -> str:
    """JSON that reads well in a diff: what has no inner structure is one line."""
    flat = json.dumps(node, sort_keys=True, ensure_ascii=False)
    inner = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
    if not any(isinstance(item, (dict, list)) and item for item in inner) and len(flat) < 400:
        return flat
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(node, dict):
        rows = [f"{json.dumps(key, ensure_ascii=False)}: {_lines(node[key], depth + 1)}" for key in sorted(node)]
        return "{\n" + ",\n".join(pad + row for row in rows) + f"\n{end}}}"
    if isinstance(node, list):
        return "[\n" + ",\n".join(pad + _lines(item, depth + 1) for item in node) + f"\n{end}]"
    return flat


def _parse(path: Path) -> Golden:
    advice = f"restore it (git checkout -- {path}), or record it again (parity golden accept)"
    try:
        text = path.read_text()
        if any(line.startswith(("<<<<<<< ", ">>>>>>> ")) for line in text.splitlines()):
            raise GoldenError(f"{path} holds merge conflict marks; take one side, or record it again")
        document = json.loads(text)
        version = document.pop("format")
        if version != FORMAT:
            raise GoldenError(f"{path} has format {version}, this harness reads {FORMAT}: update the harness")
        digest = document.pop("digest")
        if digest != digest_of(document):
            raise GoldenError(f"{path} was edited by hand: its digest does not fit; {advice}")
        golden: Golden = shaped(Golden, document)
        shaped(dict[str, str], golden.provenance["versions"])
        shaped(str, golden.provenance["stack"])
        return golden
    except GoldenError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GoldenError(f"{path} cannot be read ({type(error).__name__}: {error}); {advice}") from error


__all__ = [
    "Golden",
    "GoldenError",
    "GoldenStore",
    "digest_of",
    "golden_differences",
    "golden_of",
    "host_class",
    "observed_differences",
    "with_golden",
]
