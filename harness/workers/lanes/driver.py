"""Whether this process has initialised the CUDA driver: a process that has cannot fork ranks that use a GPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from types import ModuleType
from typing import Any

_NOT_INITIALISED = 3
"""`CUDA_ERROR_NOT_INITIALIZED` of `cuda.h`."""


def initialised() -> bool:
    """Whether `cuInit` ran in this process, by us or anyone; False on a host without a driver."""
    driver = _driver()
    count = ctypes.c_int()
    return driver is not None and driver.cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALISED


@contextmanager
def first_initialiser(found: list[str]) -> Iterator[None]:
    """Within the context, put into `found` the name of the module whose import initialises the driver.

    An import ends after those within it, so the first one that ends with an initialised driver is the one.
    """
    loaders: tuple[Any, ...] = (SourceFileLoader, ExtensionFileLoader)
    originals = [loader.exec_module for loader in loaders]
    for loader, original in zip(loaders, originals, strict=True):
        loader.exec_module = _watched(original, found)
    try:
        yield
    finally:
        for loader, original in zip(loaders, originals, strict=True):
            loader.exec_module = original


def _watched(original: Any, found: list[str]) -> Any:
    def exec_module(self: Any, module: ModuleType) -> None:
        __tracebackhide__ = True
        try:
            original(self, module)
        finally:
            if not found and initialised():
                found.append(module.__name__)

    return exec_module


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
