"""Lossless encoding of what upstream code produces into JSON trees and named tensors.

Plain JSON values stand for themselves; everything else is an object with one `$tag` (see `encode`). Two values are
equal exactly when `canonical_bytes` of their encodings are: float bits, types and the sign of zero count, NaN equals
NaN, the order of a mapping or set does not count.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import functools
import hashlib
import json
import logging
import math
import pathlib
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

Encoded = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""

_LARGEST_PLAIN_INT = 2**63
_HEAP_TYPE = 1 << 9
"""Flag of a class that was made by a `class` statement (`Py_TPFLAGS_HEAPTYPE`)."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_TENSOR_DTYPES = frozenset(
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
        "complex64",
    ]
)
"""The dtypes that safetensors holds."""


class EncodingError(ValueError):
    """A value the codec has no lossless form for; the message names its path and type."""


@dataclass(frozen=True)
class Encoding:
    """A tree of JSON values, and the tensors its `$tensor` nodes name.

    Attributes:
        tensors: dense, contiguous torch tensors or numpy arrays in host memory, by tree path (`/` between steps).
    """

    tree: Encoded
    tensors: Mapping[str, Any]


def encode(value: Any) -> Encoding:
    """Encode any value.

    Tags: `$float` (NaN, infinities), `$int` (beyond 64 bits, hexadecimal), `$complex`, `$bytes`, `$path`, `$enum`,
    `$dtype`, `$device`, `$size`, `$tensor`, `$numpy`, `$function`, `$method`, `$partial`, `$class`, `$module`,
    `$logger`, `$process_group`, `$tuple`, `$set`, `$frozenset`, `$dict` (keys that are not strings), `$dataclass`,
    `$object`, `$subclass` (of a built-in type), `$ref` (a cycle: the path of the ancestor).

    Raises:
        EncodingError: a value without a lossless form (a lock, a generator, a module with parameters, …), or nesting
            deeper than the interpreter's recursion limit.
    """
    encoder = _Encoder()
    try:
        tree = encoder.any(value, "")
    except RecursionError:
        raise EncodingError("the value nests deeper than the recursion limit") from None
    return Encoding(tree, encoder.tensors)


def canonical_bytes(tree: Encoded) -> bytes:
    """The bytes that decide equality of two encoded trees."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self._ancestors: dict[int, str] = {}

    def any(self, value: Any, path: str) -> Encoded:
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int:
            return value if abs(value) < _LARGEST_PLAIN_INT else {"$int": hex(value)}
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        leaf = self._leaf(value, path)
        return leaf if leaf is not None else self._container(value, path)

    def _leaf(self, value: Any, path: str) -> Encoded:
        match value:
            case enum.Enum():
                return self._enum(value, path)
            case complex():
                return {"$complex": [self.any(value.real, path), self.any(value.imag, path)]}
            case bytes() | bytearray():
                return {"$bytes": base64.b64encode(value).decode("ascii"), "type": _qualified(type(value))}
            case pathlib.PurePath():
                return {"$path": str(value)}
            case type() | types.ModuleType():
                return _named(value)
            case types.MethodType():
                return {"$method": _qualified(value.__func__), "self": _qualified(type(value.__self__))}
            case types.FunctionType():
                return _function(value)
            case types.BuiltinFunctionType():
                return {"$function": _qualified(value)}
            case logging.Logger():
                return {"$logger": value.name}
        return self._numpy(value, path) or self._torch(value, path)

    def _enum(self, value: enum.Enum, path: str) -> Encoded:
        return {"$enum": f"{_qualified(type(value))}.{value.name}", "value": self.any(value.value, path)}

    def _numpy(self, value: Any, path: str) -> Encoded:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        if isinstance(value, numpy.generic):
            return {"$numpy": str(value.dtype), "bytes": value.tobytes().hex()}
        if isinstance(value, numpy.ndarray):
            return self._tensor(path, str(value.dtype), numpy.ascontiguousarray(value))
        return None

    def _torch(self, value: Any, path: str) -> Encoded:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor"):
            return None
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value)}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        if isinstance(value, torch.nn.Module):
            raise EncodingError(
                f"{path or 'the value'} is a module ({_qualified(type(value))}); return its parameters instead"
            )
        if isinstance(value, torch.Tensor):
            dense = value.detach().cpu().contiguous().clone()
            return self._tensor(path, str(value.dtype).removeprefix("torch."), dense)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and isinstance(value, distributed.ProcessGroup):
            return {"$process_group": distributed.get_process_group_ranks(value)}
        return None

    def _tensor(self, path: str, dtype: str, dense: Any) -> Encoded:
        name = path or "value"
        if dtype not in _TENSOR_DTYPES:
            raise EncodingError(f"{name} has dtype {dtype}, which safetensors cannot hold")
        if not name.isascii() and name.encode(errors="replace").decode() != name:
            raise EncodingError(f"a tensor is called {name!a}, which is no UTF-8: safetensors cannot hold it")
        if name in self.tensors:
            raise EncodingError(f"two tensors are called {name}: two keys read alike")
        self.tensors[name] = dense
        return {"$tensor": name}

    def _container(self, value: Any, path: str) -> Encoded:
        if id(value) in self._ancestors:
            return {"$ref": self._ancestors[id(value)]}
        self._ancestors[id(value)] = path
        try:
            return self._inside(value, path)
        finally:
            del self._ancestors[id(value)]

    def _inside(self, value: Any, path: str) -> Encoded:
        if type(value) is list:
            return self._items(value, path)
        if type(value) is tuple:
            return {"$tuple": self._items(value, path)}
        if type(value) in (set, frozenset):
            return {f"${type(value).__name__}": self._unordered(value, path)}
        if type(value) is dict:
            return self._mapping(value, path)
        if isinstance(value, functools.partial):
            parts = {"args": list(value.args), "keywords": value.keywords}
            return {"$partial": self.any(value.func, path), "with": self._mapping(parts, path)}
        if dataclasses.is_dataclass(value):
            fields = _attributes(value, [field.name for field in dataclasses.fields(value)], path)
            extra = {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in fields}
            return {
                "$dataclass": _qualified(type(value)),
                "fields": self._mapping(fields, path),
                **({"extra": self._mapping(extra, path)} if extra else {}),
            }
        return self._subclass(value, path)

    def _subclass(self, value: Any, path: str) -> Encoded:
        kind = _qualified(type(value))
        inner = self._as_built_in(value, kind, path)
        if inner is None:
            return self._object(value, kind, path)
        extra = {} if kind.startswith("omegaconf.") else dict(getattr(value, "__dict__", {}))
        if isinstance(value, collections.defaultdict):
            extra["default_factory"] = value.default_factory
        return {"$subclass": kind, "value": inner[0], **({"extra": self._mapping(extra, path)} if extra else {})}

    def _as_built_in(self, value: Any, kind: str, path: str) -> tuple[Encoded] | None:
        """The value of a subclass of a built-in type, or of a mapping, as that type; None if it is neither."""
        if isinstance(value, Mapping):
            return (self._mapping(dict(value.items()), path),)
        if isinstance(value, (list, tuple)) or kind == "omegaconf.listconfig:ListConfig":
            return (self._items(value, path),)
        if isinstance(value, AbstractSet):
            return (self._unordered(value, path),)
        for base in (str, int, float):
            if isinstance(value, base):
                return (self.any(base(value), path),)
        return None

    def _object(self, value: Any, kind: str, path: str) -> Encoded:
        if isinstance(value, Iterator):
            raise EncodingError(f"{path or 'the value'} is a {kind}: reading it would use it up")
        if not all(base is object or base.__flags__ & _HEAP_TYPE for base in type(value).__mro__):
            return self._reduced(value, kind, path)
        slots = _attributes(value, _slots(type(value)), path)
        if not slots and not hasattr(value, "__dict__"):
            return self._reduced(value, kind, path)
        return {"$object": kind, "state": self._mapping({**slots, **getattr(value, "__dict__", {})}, path)}

    def _reduced(self, value: Any, kind: str, path: str) -> Encoded:
        """An object whose class is written in C, as it would be copied: what to call with what, and its state."""
        try:
            _, arguments, *rest = value.__reduce_ex__(2)
        except (TypeError, ValueError) as error:
            raise EncodingError(f"{path or 'the value'} is a {kind}, which has no lossless form") from error
        parts = [list(part) if isinstance(part, Iterator) else part for part in rest]
        return {"$object": kind, "state": self._mapping({"arguments": arguments, "state": parts}, path)}

    def _items(self, values: Iterable[Any], path: str) -> list[Encoded]:
        return [self.any(value, f"{path}/{index}" if path else str(index)) for index, value in enumerate(values)]

    def _unordered(self, values: Iterable[Any], path: str) -> list[Encoded]:
        return sorted((self.any(value, path) for value in values), key=canonical_bytes)

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Encoded:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.any(item, f"{path}/{key}" if path else key) for key, item in value.items()}
        pairs = [
            [self.any(key, path), self.any(item, f"{path}/{key}" if path else str(key))] for key, item in value.items()
        ]
        return {"$dict": sorted(pairs, key=lambda pair: canonical_bytes(pair[0]))}


def _qualified(value: Any) -> str:
    return (
        f"{getattr(value, '__module__', None) or 'builtins'}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    )


def _named(value: type | types.ModuleType) -> Encoded:
    return {"$class": _qualified(value)} if isinstance(value, type) else {"$module": value.__name__}


def _function(value: types.MethodType | types.FunctionType | types.BuiltinFunctionType) -> Encoded:
    if isinstance(value, types.MethodType):
        return {"$method": _qualified(value.__func__), "self": _qualified(type(value.__self__))}
    name = _qualified(value)
    if isinstance(value, types.BuiltinFunctionType) or "<lambda>" not in name:
        return {"$function": name}
    return {"$function": name, "code": _code_hash(value)}


def _code_hash(value: types.FunctionType) -> str:
    """Hash of what a function without a name of its own does: code, constants, defaults, captured values."""
    captured = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    parts = [_code_parts(value.__code__), value.__defaults__, value.__kwdefaults__, captured]
    return hashlib.sha256(_ADDRESS.sub("", repr(parts)).encode()).hexdigest()[:12]


def _code_parts(code: types.CodeType) -> list[Any]:
    constants = [_code_parts(item) if isinstance(item, types.CodeType) else item for item in code.co_consts]
    return [code.co_code, code.co_names, constants]


def _attributes(value: Any, names: Iterable[str], path: str) -> dict[str, Any]:
    """Those of the named attributes that are set."""
    found = {}
    for name in names:
        try:
            found[name] = getattr(value, name)
        except AttributeError:
            continue
        except Exception as error:
            raise EncodingError(f"{path or 'the value'} has no readable {name}: {error}") from error
    return found


def _slots(kind: type) -> list[str]:
    declared = (base.__dict__.get("__slots__", ()) for base in kind.__mro__)
    names = [name for slots in declared for name in ((slots,) if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]
