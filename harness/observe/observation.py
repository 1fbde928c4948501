"""An observation on disk: `observation.json` beside `tensors.safetensors`, one folder per rank."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy

from harness.observe.codec import Encoded, Encoding, encode
from harness.observe.evidence import Entered
from harness.observe.exceptions import ObservedException
from harness.observe.placement import Placement
from harness.observe.run import Run
from harness.observe.shapes import shaped
from harness.observe.trace import Step

FORMAT = 1
_TREE_FILE = "observation.json"
_TENSOR_FILE = "tensors.safetensors"

_DTYPE_OF_CODE = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


class ObservationError(ValueError):
    """An observation folder that is missing, truncated or of another format."""


@dataclass(frozen=True)
class TensorData:
    """The elements of one tensor.

    Attributes:
        dtype: torch's name, e.g. `bfloat16`.
        shape: sizes, outermost first.
        data: the elements, row-major, without strides, in the machine's byte order.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class TensorEntry:
    """What a tree says of one tensor; its elements are in the safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class EncodedMask:
    """A config field the lane forced, with the value the stack had chosen and the one that ran."""

    field: str
    own: Encoded
    forced: Encoded


@dataclass(frozen=True)
class Observation:
    """What one rank of one case saw.

    Attributes:
        tree: the encoded tree, None if the probe raised.
        exception: the exception the probe raised, if it did.
        entered: the functions of the probe's evidence that ran.
        missing: what the probe's evidence lacks, in words; not empty makes the case `broken`.
        environment: stand-ins, attributes set by hand, versions.
        provenance: name of a hook or function → `module:qualified.name` it really is.
        seconds: time the probe itself took.
        imported: modules the rank had to import itself; none of a probe that scans packages.
        trace: what passed each module, in the order of execution; it makes no difference by itself.
        placement: tensor → what part of it this rank holds, where the probe says so.
    """

    tree: Encoded
    tensors: Mapping[str, TensorEntry]
    exception: ObservedException | None
    entered: tuple[Entered, ...]
    missing: tuple[str, ...]
    masks: tuple[EncodedMask, ...]
    environment: Mapping[str, Any]
    provenance: Mapping[str, str]
    seconds: float
    imported: tuple[str, ...] = ()
    trace: tuple[Step, ...] = ()
    placement: Mapping[str, Placement] = field(default_factory=dict)
    folder: Path | None = field(default=None, compare=False, metadata={"json": False})

    def tensor_data(self) -> dict[str, TensorData]:
        """The tensors' elements, read from the safetensors file.

        Raises:
            ObservationError: the file is missing or damaged.
        """
        if not self.tensors or self.folder is None:
            return {}
        path = self.folder / _TENSOR_FILE
        try:
            entries: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        except (OSError, safetensors.SafetensorError) as error:
            raise ObservationError(f"{path}: {error}") from error
        return {
            name: TensorData(_DTYPE_OF_CODE[entry["dtype"]], tuple(entry["shape"]), bytes(entry["data"]))
            for name, entry in entries
        }


def masks_of(run: Run) -> tuple[EncodedMask, ...]:
    """The run's masks with their values encoded."""
    return tuple(EncodedMask(mask.field, encode(mask.own).tree, encode(mask.forced).tree) for mask in run.masks)


def entries_of(encoding: Encoding) -> dict[str, TensorEntry]:
    """dtype, shape and SHA-256 of the elements of every tensor of an encoding."""
    return {
        name: TensorEntry(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            sha256=hashlib.sha256(_elements(tensor)).hexdigest(),
        )
        for name, tensor in encoding.tensors.items()
    }


def _elements(tensor: Any) -> memoryview:
    if type(tensor).__module__ == "numpy":
        return memoryview(tensor.reshape(-1).view("uint8")) if tensor.size else memoryview(b"")
    return memoryview(tensor.reshape(-1).view(sys.modules["torch"].uint8).numpy())


def _save_tensors(tensors: Mapping[str, Any], path: Path) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        safetensors.numpy.save_file(dict(tensors), path)
        return
    from safetensors.torch import save_file

    save_file({name: torch.as_tensor(tensor) for name, tensor in tensors.items()}, path)


def save(observation: Observation, tensors: Mapping[str, Any], folder: Path) -> None:
    """Write an observation and the tensors of its encoding; the JSON file appears last, whole, by a rename."""
    folder.mkdir(parents=True, exist_ok=True)
    if tensors:
        _save_tensors(tensors, folder / _TENSOR_FILE)
    document = {key: value for key, value in asdict(observation).items() if key != "folder"}
    partial = folder / f"{_TREE_FILE}.partial"
    partial.write_text(json.dumps({"format": FORMAT, **document}, allow_nan=False))
    partial.replace(folder / _TREE_FILE)


def load(folder: Path) -> Observation:
    """Read the observation in `folder`.

    Raises:
        ObservationError: it is missing, damaged or of another format.
    """
    path = folder / _TREE_FILE
    try:
        document = json.loads(path.read_text())
        if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
            raise ObservationError(f"{path} has another format than {FORMAT}")
        return replace(shaped(Observation, document), folder=folder)
    except (OSError, ValueError, RecursionError) as error:
        raise ObservationError(f"{path} cannot be read: {error}") from error
