"""The ledger of declared changes: the TOML files of `golden/declared/`.

A transition says between which pins its changes are valid; a change names cases, a path, and what exactly changes.
A consistency table says the same of one stack that does not agree with itself: what is expected, and what is there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.compare.trees import Difference
from harness.observe.globs import matches

_CHANGE_KEYS = {"case", "path", "old", "new", "kind", "reason", "class", "link", "unsupported", "lane"}
CLASSES = ("unexplained", "upstream_bug", "intended", "new_field")
"""What a declared change can be, the one a reader should see first before the others."""
_COMMIT = re.compile(r"commit ([0-9a-f]{7,40})")
_LABEL = re.compile(r"g([0-9a-f]{9})")
"""How a version ends, in its local part, where the pin is a commit (see `harness.stacks.resolve`)."""


class LedgerError(ValueError):
    """The ledger cannot be used; the message names the file, the entry and what is wrong with it."""


@dataclass(frozen=True)
class Change:
    """One declared difference.

    Attributes:
        cases: globs over case ids.
        path: glob over difference paths.
        old: the old value's text (glob), None if any.
        new: the new value's text (glob), None if any.
        kind: `changed`, `added` or `removed`, None if any.
        reason: why this is accepted, for a reader.
        class_: `intended`, `upstream_bug`, `new_field` or `unexplained`.
        link: the upstream pull request or issue.
        unsupported: the difference says that the pin cannot run the case.
        lane: the only lane on which it is declared, `cpu` or `cuda`; None if on both.
    """

    cases: tuple[str, ...]
    path: str
    old: str | None
    new: str | None
    kind: str | None
    reason: str
    class_: str
    link: str
    unsupported: bool
    lane: str | None = None

    def covers(self, case: str) -> bool:
        """Whether this change is declared for a case."""
        return any(matches(pattern, case) for pattern in self.cases)

    def describes(self, difference: Difference) -> bool:
        """Whether a difference is exactly what this change says."""
        return (
            matches(self.path, difference.path)
            and (self.kind is None or self.kind == difference.kind)
            and (self.old is None or matches(self.old, difference.old))
            and (self.new is None or matches(self.new, difference.new))
        )


@dataclass(frozen=True)
class Transition:
    """Changes that are valid where both sides' pins fit.

    Attributes:
        pairs: of old and new side, each distribution → version specifier or commit, e.g. `{"verl": "==0.7.1"}` or
            `{"verl": "commit 8ebf167e3"}`; the changes are valid between any of them.
    """

    pairs: tuple[tuple[Mapping[str, str], Mapping[str, str]], ...]
    changes: tuple[Change, ...]

    def applies(self, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
        """Whether the versions of both sides fit one of the pairs."""
        return any(_fits(wanted_old, old) and _fits(wanted_new, new) for wanted_old, wanted_new in self.pairs)


@dataclass(frozen=True)
class Inconsistency:
    """Violations of self-consistency that are known of the stacks whose pins fit.

    Attributes:
        stacks: each distribution → version specifier or commit; the violations are known of any of them.
        violations: what is expected stands in `old`, what is there in `new`.
    """

    stacks: tuple[Mapping[str, str], ...]
    violations: tuple[Change, ...]


@dataclass(frozen=True)
class Ledger:
    """Every declared change, and every known violation of self-consistency."""

    transitions: tuple[Transition, ...] = ()
    inconsistencies: tuple[Inconsistency, ...] = ()

    def on(self, lane: str) -> Ledger:
        """What is declared on a lane."""

        def there(changes: tuple[Change, ...]) -> tuple[Change, ...]:
            return tuple(change for change in changes if change.lane in (None, lane))

        return Ledger(
            tuple(replace(table, changes=there(table.changes)) for table in self.transitions),
            tuple(replace(table, violations=there(table.violations)) for table in self.inconsistencies),
        )

    def changes_for(self, case: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
        """The changes declared for a case between the versions of two sides (distribution → version)."""
        return [
            change
            for transition in self.transitions
            if transition.applies(old, new)
            for change in transition.changes
            if change.covers(case)
        ]

    def violations_for(self, case: str, versions: Mapping[str, str]) -> list[Change]:
        """The violations known for a check of one stack, given its versions (distribution → version)."""
        return [violation for violation in self._violations(versions) if violation.covers(case)]

    def idle_violations(self, cases: Iterable[str], versions: Mapping[str, str]) -> list[Change]:
        """Violations that are valid for a stack and declared for none of its checks."""
        known = list(cases)
        return [found for found in self._violations(versions) if not any(found.covers(case) for case in known)]

    def _violations(self, versions: Mapping[str, str]) -> list[Change]:
        fitting = (table for table in self.inconsistencies if any(_fits(stack, versions) for stack in table.stacks))
        return [violation for table in fitting for violation in table.violations]

    def idle(self, cases: Iterable[str], old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
        """Changes that are valid between two sides and declared for none of the cases."""
        known = list(cases)
        return [
            change
            for transition in self.transitions
            if transition.applies(old, new)
            for change in transition.changes
            if not any(change.covers(case) for case in known)
        ]


def load_ledger(path: Path) -> Ledger:
    """Read a ledger: a file, or every TOML file of a folder; what does not exist is an empty one.

    Raises:
        LedgerError: a file is no TOML, or an entry is incomplete, unknown or too broad.
    """
    files = [file for file in (sorted(path.glob("*.toml")) if path.is_dir() else [path]) if file.exists()]
    documents = {file: _document(file) for file in files}
    return Ledger(
        tuple(
            _transition(table, where)
            for file, document in documents.items()
            for table, where in _tables(document, "transition", str(file))
        ),
        tuple(
            _inconsistency(table, where)
            for file, document in documents.items()
            for table, where in _tables(document, "consistency", str(file))
        ),
    )


def _document(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"{file}: {error}") from error
    unknown = sorted(set(document) - {"transition", "consistency"})
    if unknown:
        raise LedgerError(f"{file}: unknown table {unknown[0]!r}; known: [[consistency]], [[transition]]")
    return document


def _tables(table: Mapping[str, Any], name: str, where: str) -> list[tuple[Mapping[str, Any], str]]:
    """The tables of an array of tables, each with its place in words."""
    tables = table.get(name, [])
    if not isinstance(tables, list):
        raise LedgerError(f"{where}: write [[{name}]], with double brackets")
    return [(entry, f"{where}: {name} {number}") for number, entry in enumerate(tables, 1)]


def _transition(table: Mapping[str, Any], where: str) -> Transition:
    _only_keys(table, {"old", "new", "also", "change"}, where)
    pairs = [_pair(table, where)]
    for entry, place in _further(table, where):
        _only_keys(entry, {"old", "new"}, place)
        pairs.append(_pair(entry, place))
    changes = tuple(change for entry, place in _tables(table, "change", where) for change in _changes(entry, place))
    return Transition(tuple(pairs), changes)


def _pair(table: Mapping[str, Any], where: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return _specifiers(table.get("old"), f"{where}.old"), _specifiers(table.get("new"), f"{where}.new")


def _inconsistency(table: Mapping[str, Any], where: str) -> Inconsistency:
    _only_keys(table, {"stack", "also", "violation"}, where)
    stacks = [_specifiers(table.get("stack"), f"{where}.stack")]
    stacks += [_specifiers(entry, place) for entry, place in _further(table, where)]
    names = {"expected": "old", "actual": "new"}
    violations = []
    for entry, place in _tables(table, "violation", where):
        _only_keys(entry, _CHANGE_KEYS - {*names.values()} | {*names}, place)
        violations += _changes({names.get(key, key): value for key, value in entry.items()}, place)
    return Inconsistency(tuple(stacks), tuple(violations))


def _further(table: Mapping[str, Any], where: str) -> list[tuple[Any, str]]:
    """Further pins for which the same is declared."""
    also = table.get("also", [])
    if not isinstance(also, list):
        raise LedgerError(f"{where}.also must be a list of tables")
    return [(entry, f"{where}.also {number}") for number, entry in enumerate(also, 1)]


def _specifiers(table: Any, where: str) -> dict[str, str]:
    if not isinstance(table, dict) or not table:
        raise LedgerError(f'{where} must name at least one pin, e.g. {{ verl = "==0.7.1" }}')
    for text in table.values():
        if not isinstance(text, str) or not (_COMMIT.fullmatch(text) or _is_specifier(text)):
            raise LedgerError(
                f'{where}: {text!r} is neither a version specifier such as "==0.7.1" nor "commit " with at least '
                "seven digits of its hash, in lower case"
            )
    return dict(table)


def _is_specifier(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _changes(table: Mapping[str, Any], where: str) -> list[Change]:
    """One change for each of the paths that an entry lists."""
    _only_keys(table, _CHANGE_KEYS, where)
    paths = table.get("path")
    if not isinstance(paths, list) or not paths:
        return [_change(table, where)]
    return [_change(dict(table, path=path), where) for path in paths]


def _change(table: Mapping[str, Any], where: str) -> Change:
    _only_keys(table, _CHANGE_KEYS, where)
    _complete(table, where)
    _narrow(table, where)
    return Change(
        cases=tuple([table["case"]] if isinstance(table["case"], str) else table["case"]),
        path=table["path"],
        old=table.get("old"),
        new=table.get("new"),
        kind=table.get("kind"),
        reason=table["reason"],
        class_=table["class"],
        link=table.get("link", ""),
        unsupported=bool(table.get("unsupported", False)),
        lane=table.get("lane"),
    )


def _complete(table: Mapping[str, Any], where: str) -> None:
    """Every key that an entry needs is there, and of its type."""
    for key in ("case", "path", "reason"):
        if not table.get(key):
            raise LedgerError(f"{where} has no {key}")
    cases = [table["case"]] if isinstance(table["case"], str) else table["case"]
    if not isinstance(cases, list) or not all(isinstance(pattern, str) for pattern in cases):
        raise LedgerError(f"{where}: case must be text, or a list of texts")
    for key in ("path", "old", "new", "kind", "reason", "link"):
        if not isinstance(table.get(key, ""), str):
            raise LedgerError(f"{where}: {key} must be text, as the report shows it")
    if table.get("class") not in CLASSES:
        raise LedgerError(f"{where}: class must be one of {', '.join(CLASSES)}")
    if table.get("lane", "cpu") not in ("cpu", "cuda"):
        raise LedgerError(f"{where}: lane must be cpu or cuda")
    if table.get("kind", "changed") not in ("changed", "added", "removed"):
        raise LedgerError(f"{where}: kind must be changed, added or removed")


def _narrow(table: Mapping[str, Any], where: str) -> None:
    """An entry says what it accepts: not any path, not any exception."""
    if not {"old", "new", "kind"} & set(table):
        raise LedgerError(f"{where} says neither old, new nor kind: what would it accept?")
    if set(table["path"]) <= set("*?."):
        raise LedgerError(f"{where} is too broad: it accepts any path")
    said = [table[key] for key in ("old", "new") if key in table]
    if table["path"].startswith("exception") and not any(set(value) - set("*?") for value in said):
        raise LedgerError(f"{where} accepts any exception: say which, in old or new")


def _only_keys(table: Any, known: set[str], where: str) -> None:
    if not isinstance(table, dict):
        raise LedgerError(f"{where} must be a table")
    unknown = sorted(set(table) - known)
    if unknown:
        raise LedgerError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")


def _fits(specifiers: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    return all(_version_fits(text, versions.get(name)) for name, text in specifiers.items())


def _version_fits(wanted: str, version: str | None) -> bool:
    if version is None:
        return False
    commit = _COMMIT.fullmatch(wanted)
    if commit:
        return commit_of(version)[: len(commit[1])] == commit[1][:9]
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def commit_of(version: str) -> str:
    """The first nine digits of the commit that a version of a git pin ends with, `""` where there is none.

    The version of a tree that differs from its commit ends with a digest of the tree, and so names no commit.
    """
    label = _LABEL.fullmatch(version.partition("+")[2].rpartition(".")[2])
    return label[1] if label else ""
