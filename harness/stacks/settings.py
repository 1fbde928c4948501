"""The `[tool.parity]` table of a pyproject.toml: stacks, sides, base, package folders, clones."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from harness.stacks.errors import StackUsageError
from harness.stacks.git import is_at_hand
from harness.stacks.pins import GitPin, Pin, canonical_name, parse_override, parse_pin

CACHE_VARIABLE = "PARITY_CACHE"
CLONES_VARIABLE = "PARITY_CLONES"


@dataclass(frozen=True)
class Stack:
    """A named set of pins that can run, with everything it inherits and every override already applied."""

    name: str
    pins: Mapping[str, Pin]
    extends: tuple[str, ...] = ()


@dataclass(frozen=True)
class StackTable:
    """One `[tool.parity.stacks.NAME]` table as it is written."""

    extends: str | None
    pins: Mapping[str, Pin]


@dataclass(frozen=True)
class Source:
    """Where a distribution is developed: the page of its repository, and how it names the tag of a release."""

    repository: str
    tag: str


@dataclass(frozen=True)
class Settings:
    """Everything `[tool.parity]` says, plus what the environment adds.

    `old` and `new` name the stacks of the two sides; `base` is "locked", "current", the path of an interpreter or of a
    requirement file; `packages` maps a distribution to its package folders, `sources` to where it is developed, and
    `clones` to a local clone used in place of the URL of its git pins; `cache` holds bases, overlays and fetched
    repositories.
    """

    root: Path
    old: str
    new: str
    base: str
    stacks: Mapping[str, StackTable]
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    clones: Mapping[str, Path] = field(default_factory=dict)
    cache: Path = field(default_factory=lambda: cache_folder())

    def stack(self, name: str, overrides: Iterable[str | Pin] = ()) -> Stack:
        """Return the stack `name` with `overrides` applied in their order; the last one of a distribution wins.

        Raises StackUsageError for an unknown stack, a circular `extends` or a malformed override.
        """
        chain = self._chain(name)
        pins: dict[str, Pin] = {}
        for ancestor in reversed(chain):
            pins |= self.stacks[ancestor].pins
        for override in overrides:
            pin = parse_override(override) if isinstance(override, str) else override
            pins[pin.distribution] = pin
        return Stack(name, dict(sorted(pins.items())), tuple(chain[1:]))

    def package_folders(self, distribution: str) -> tuple[str, ...]:
        """Return the folders of a distribution's packages, as they lie in a source tree, `src/` left out.

        The first one must be there; the others are taken where the tree has them.
        """
        return self.packages.get(distribution, (distribution.replace("-", "_"),))

    def not_at_hand(self, stack: Stack) -> list[GitPin]:
        """The git pins of a stack that only the network could give."""
        pins = [pin for pin in stack.pins.values() if isinstance(pin, GitPin)]
        return [pin for pin in pins if not is_at_hand(pin, self.clones.get(pin.distribution), self.cache)]

    def with_clones(self, clones: Mapping[str, Path]) -> Settings:
        """Return a copy in which `clones` come before those already known."""
        return replace(self, clones={**self.clones, **clones})

    def with_stack(self, stack: Stack) -> Settings:
        """Return a copy that has `stack`, whatever a table of its name says."""
        return replace(self, stacks={**self.stacks, stack.name: StackTable(None, stack.pins)})

    def _chain(self, name: str) -> list[str]:
        chain: list[str] = []
        wanted: str | None = name
        while wanted is not None:
            if wanted in chain:
                raise StackUsageError(
                    f"stack '{name}': circular extends: {' -> '.join([*chain, wanted])}. "
                    f"Remove one of them in {self.root / 'pyproject.toml'}."
                )
            if wanted not in self.stacks:
                raise StackUsageError(self._unknown(wanted, by=chain[-1] if chain else None))
            chain.append(wanted)
            wanted = self.stacks[wanted].extends
        return chain

    def _unknown(self, name: str, by: str | None) -> str:
        named = f"stack '{by}' extends '{name}', which is unknown" if by else f"unknown stack '{name}'"
        close = difflib.get_close_matches(name, self.stacks, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        return f"{named}.{hint} `parity stacks list` shows them all."


def cache_folder() -> Path:
    """Return the folder of everything that is built: PARITY_CACHE, else `parity` in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else user_cache_path("parity")


def load_settings(root: Path | None = None) -> Settings:
    """Read `[tool.parity]` from `root`/pyproject.toml.

    Without `root`: the nearest folder above the current one whose pyproject.toml has the table, else the checkout this
    package lies in. Raises StackUsageError where there is none, or where the table is not well formed.
    """
    folder, table = (root, _table(root)) if root is not None else _nearest()
    if table is None:
        raise StackUsageError(f"{folder / 'pyproject.toml'} has no [tool.parity] table; it names stacks and sides.")
    return _settings(table, folder.absolute())


def parse_settings(text: str, root: Path, name: str) -> Settings:
    """Read `[tool.parity]` from the text of a pyproject.toml, as if it lay in `root`; `name` is what messages call it.

    Raises StackUsageError.
    """
    table = _parsed(text, name)
    if table is None:
        raise StackUsageError(f"{name} has no [tool.parity] table; it names stacks and sides.")
    try:
        return _settings(table, root.absolute())
    except StackUsageError as error:
        raise StackUsageError(f"{name}: {error}") from None


def _settings(table: dict[str, Any], folder: Path) -> Settings:
    stacks = _mapping(table, "stacks")
    distributions = _mapping(table, "distributions")
    tables = {name: _distribution(name, distributions[name]) for name in distributions}
    return Settings(
        root=folder,
        old=_text(table, "old", ""),
        new=_text(table, "new", ""),
        base=_text(table, "base", "locked"),
        stacks={name: _stack_table(name, stacks[name], folder) for name in stacks},
        packages={_name(name): found for name, table in tables.items() if (found := _folders(name, table))},
        sources={_name(name): source for name, table in tables.items() if (source := _source(name, table))},
        clones={
            **{_name(name): _clone(name, value, folder) for name, value in _mapping(table, "clones").items()},
            **_clones_of_environment(),
        },
    )


def parse_clone(text: str) -> tuple[str, Path]:
    """Parse `NAME=PATH`: a local clone to use in place of the URL of a distribution's git pins.

    Raises StackUsageError.
    """
    name, _, path = text.partition("=")
    if not name.strip() or not path.strip():
        raise StackUsageError(f"'{text}' is not a clone. Write NAME=PATH, for example verl=../verl.")
    return _name(name.strip()), Path(path.strip()).expanduser().absolute()


def _clones_of_environment() -> dict[str, Path]:
    listed = os.environ.get(CLONES_VARIABLE, "")
    return dict(parse_clone(entry) for entry in listed.split(os.pathsep) if entry.strip())


def _nearest() -> tuple[Path, dict[str, Any] | None]:
    here = Path.cwd()
    checkout = Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, checkout):
        table = _table(folder) if (folder / "pyproject.toml").is_file() else None
        if table is not None:
            return folder, table
    return here, None


def _table(folder: Path) -> dict[str, Any] | None:
    file = folder / "pyproject.toml"
    try:
        return _parsed(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise StackUsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}.") from None


def _parsed(text: str, name: str) -> dict[str, Any] | None:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StackUsageError(f"{name} is not valid TOML: {error}.") from None
    tools = document.get("tool", {})
    table = tools.get("parity") if isinstance(tools, dict) else None
    return table if isinstance(table, dict) else None


def _stack_table(name: str, table: Any, folder: Path) -> StackTable:
    where = f"[tool.parity.stacks.{name}]"
    if not isinstance(table, dict) or not set(table) <= {"extends", "pins"}:
        raise StackUsageError(f"{where} takes `extends` and `pins` only.")
    extends = table.get("extends")
    if extends is not None and not isinstance(extends, str):
        raise StackUsageError(f"{where}: `extends` is the name of one stack, not {extends!r}.")
    pins = table.get("pins", {})
    if not isinstance(pins, dict):
        raise StackUsageError(f"{where}: `pins` is a table of NAME = PIN, not {pins!r}.")
    parsed = [parse_pin(pin, value, relative_to=folder, where=where) for pin, value in pins.items()]
    return StackTable(extends, {pin.distribution: pin for pin in parsed})


def _distribution(name: str, table: Any) -> dict[str, Any]:
    known = {"packages", "repository", "tag"}
    if not isinstance(table, dict) or not table or not set(table) <= known:
        raise StackUsageError(f"[tool.parity.distributions.{name}] takes {', '.join(sorted(known))} only.")
    return table


def _folders(name: str, table: dict[str, Any]) -> tuple[str, ...]:
    folders = table.get("packages", ())
    good = isinstance(folders, list) and folders and all(isinstance(item, str) and item for item in folders)
    if "packages" not in table:
        return ()
    if not good or any(Path(item).is_absolute() or ".." in Path(item).parts for item in folders):
        raise StackUsageError(
            f'[tool.parity.distributions.{name}] needs packages = ["folder", …], relative to the tree.'
        )
    return tuple(item.strip("/") for item in folders)


def _source(name: str, table: dict[str, Any]) -> Source | None:
    if "repository" not in table and "tag" not in table:
        return None
    repository, tag = (table.get(key) for key in ("repository", "tag"))
    if not isinstance(repository, str) or not repository.startswith("https://"):
        raise StackUsageError(f'[tool.parity.distributions.{name}] needs repository = "https://…".')
    if not isinstance(tag, str) or tag.replace("{version}", "").count("{") or "{version}" not in tag:
        raise StackUsageError(f'[tool.parity.distributions.{name}] needs tag = "…{{version}}".')
    return Source(repository.rstrip("/"), tag)


def _clone(name: str, value: Any, folder: Path) -> Path:
    if not isinstance(value, str) or not value:
        raise StackUsageError(f"[tool.parity.clones] {name} is the path of a clone, not {value!r}.")
    return (folder / Path(value).expanduser()).absolute()


def _mapping(table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise StackUsageError(f"[tool.parity.{key}] is a table, not {value!r}.")
    return value


def _text(table: dict[str, Any], key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise StackUsageError(f"[tool.parity] {key} is a text, not {value!r}.")
    return value


def _name(name: str) -> str:
    canonical = canonical_name(name)
    if canonical is None:
        raise StackUsageError(f"[tool.parity]: {name!r} is not the name of a distribution.")
    return canonical
