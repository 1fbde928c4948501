"""Drafts of ledger entries from the undeclared differences of a run, for a human to give reasons to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.compare.ledger import commit_of
from harness.observe.globs import matches


def draft_ledger(cases: Sequence[Mapping[str, Any]], only: Sequence[str] | None = None) -> str:
    """TOML with every undeclared difference of a run's case records, or of some of them.

    Differences of two sides make one transition, violations of each stack one consistency table.

    `reason` is left empty, which the ledger refuses: somebody has to say why a difference is accepted.
    """
    concerned = [case for case in cases if case.get("undeclared") and (not only or case["case"] in only)]
    if not concerned:
        return ""
    tables = []
    for stack in sorted({case.get("stack", "") for case in concerned}):
        alike, others = ([case for case in of if case.get("stack", "") == stack] for of in (concerned, cases))
        tables += _consistency(alike, others) if stack else _transition(alike, others)
    return "\n".join(tables) + "\n"


def _transition(concerned: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]]) -> list[str]:
    old, new = (concerned[0]["sides"][index]["versions"] for index in (0, 1))
    moved = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)] or sorted(old)
    entries = _entries("transition.change", ("old", "new"), concerned, cases)
    return ["[[transition]]", f"old = {_pins(old, moved)}", f"new = {_pins(new, moved)}", *entries]


def _consistency(concerned: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]]) -> list[str]:
    versions = concerned[0]["sides"][0]["versions"]
    entries = _entries("consistency.violation", ("expected", "actual"), concerned, cases)
    return ["[[consistency]]", f"stack = {_pins(versions, sorted(versions))}", *entries]


def _entries(
    table: str, sides: tuple[str, str], concerned: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]]
) -> list[str]:
    lines = []
    for (path, kind, before, after), ids in _by_difference(concerned).items():
        patterns = covering_globs(ids, [_id(case) for case in cases if _id(case) not in ids and _compared(case)])
        lines += [
            "",
            f"[[{table}]]",
            f"case = {_text(patterns[0]) if len(patterns) == 1 else json.dumps(patterns, ensure_ascii=False)}",
            f"path = {_text(path)}",
            *([f"{sides[0]} = {_text(before)}"] if kind != "added" else []),
            *([f"{sides[1]} = {_text(after)}"] if kind != "removed" else []),
            *([f"kind = {_text(kind)}"] if kind != "changed" else []),
            'class = "unexplained"',
            'reason = ""',
        ]
    return lines


def covering_globs(wanted: Iterable[str], others: Iterable[str]) -> list[str]:
    """Few globs that match every wanted case id and none of the others, broadest first.

    Candidates are a whole probe (`probe*`), one word of the brackets (`probe[*word*]`), and the id itself.
    """
    remaining, avoided = set(wanted), set(others)
    candidates = {glob for case in remaining for glob in _candidates(case)}
    usable = {glob for glob in candidates if not any(matches(glob, other) for other in avoided)}
    chosen = []
    while remaining:
        best = max(sorted(usable), key=lambda glob: sum(matches(glob, case) for case in remaining))
        chosen.append(best)
        remaining = {case for case in remaining if not matches(best, case)}
    return chosen


def _candidates(case: str) -> list[str]:
    probe, _, inside = case.partition("[")
    words = [word for word in inside.rstrip("]").split(",") if word]
    return [f"{probe}*", *(f"{probe}[*{word}*]" for word in words), case]


def _by_difference(cases: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str, str], list[str]]:
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for case in cases:
        for difference in case["undeclared"]:
            key = (difference["path"], difference["kind"], difference["old"], difference["new"])
            found.setdefault(key, []).append(_id(case))
    return dict(sorted(found.items()))


def _id(case: Mapping[str, Any]) -> str:
    """The id that the ledger knows: without the stack that a check was of."""
    return str(case["case"]).removesuffix(f"@{case.get('stack')}")


def _compared(case: Mapping[str, Any]) -> bool:
    """Whether nothing cut the comparison of a case short."""
    return all(not side["fault"] and not side["exception"] for side in case.get("sides", ())) and "sides" in case


def _pins(versions: Mapping[str, str], names: Iterable[str]) -> str:
    pins = [f"{name} = {_text(_pin(versions[name]))}" for name in names if name in versions]
    return "{ " + ", ".join(pins) + " }"


def _pin(version: str) -> str:
    commit = commit_of(version)
    return f"commit {commit}" if commit else f"=={version}"


def _text(value: str) -> str:
    """A TOML basic string; JSON's escapes are among TOML's."""
    return json.dumps(value, ensure_ascii=False)
