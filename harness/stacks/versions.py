"""Reading a distribution's version out of its source tree, without running any of it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from typing import Any

from packaging.version import InvalidVersion, Version

from harness.stacks.trees import SourceTree

UNKNOWN = "0+unknown"
_MODULES = ("package_info.py", "_version.py", "version.py", "__version__.py", "__init__.py")


def version_of(tree: SourceTree, prefix: str, package: str) -> str:
    """Return the version a tree declares, or "0+unknown".

    Looked at in turn: pyproject.toml (static, then the file or attribute setuptools reads it from), `version/version`
    in the package, and the usual modules. `prefix` is "" or "src/"; `package` the main package's folder.
    """
    for text in _candidates(tree, prefix, package):
        try:
            return str(Version(text.strip()))
        except InvalidVersion:
            continue
    return UNKNOWN


def with_local(version: str, label: str) -> str:
    """Return `version` with `label` added to its local part: `0.8.0` and `gabc` make `0.8.0+gabc`."""
    return f"{version}.{label}" if "+" in version else f"{version}+{label}"


def _candidates(tree: SourceTree, prefix: str, package: str) -> Iterator[str]:
    yield from _declared(tree, prefix)
    yield tree.read(f"{prefix}{package}/version/version") or ""
    for module in _MODULES:
        yield _assigned(tree.read(f"{prefix}{package}/{module}"), "__version__")


def _declared(tree: SourceTree, prefix: str) -> Iterator[str]:
    try:
        document: dict[str, Any] = tomllib.loads(tree.read("pyproject.toml") or "")
    except tomllib.TOMLDecodeError:
        return
    static = document.get("project", {}).get("version")
    if isinstance(static, str):
        yield static
    dynamic = document.get("tool", {}).get("setuptools", {}).get("dynamic", {}).get("version", {})
    if not isinstance(dynamic, dict):
        return
    files = dynamic.get("file", [])
    for file in [files] if isinstance(files, str) else files:
        yield tree.read(str(file)) or ""
    module, _, name = str(dynamic.get("attr", "")).rpartition(".")
    if module:
        path = prefix + module.replace(".", "/")
        yield _assigned(tree.read(f"{path}.py") or tree.read(f"{path}/__init__.py"), name)


def _assigned(source: str | None, name: str) -> str:
    """Return what `name` is set to in a module: a literal, or what MAJOR, MINOR, PATCH and PRE_RELEASE make."""
    try:
        module = ast.parse(source or "")
    except (SyntaxError, ValueError):
        return ""
    literals = {
        target.id: str(node.value.value)
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if name in literals:
        return literals[name]
    numbers = [literals.get(part, "") for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(numbers) + literals.get("PRE_RELEASE", "") if all(numbers) else ""
