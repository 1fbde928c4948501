"""One run against an earlier one: which cases fail now, which no longer, what else changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.text import Text

from harness.compare import Verdict
from harness.report.markdown import code, folded, table
from harness.report.records import without_controls
from harness.report.run_view import CaseRecord, RunView

KINDS = {
    "worse": "fail now, and did not",
    "better": "no longer fail",
    "otherwise": "fail otherwise than before",
    "moved": "have another verdict",
    "gone": "are gone",
    "added": "are new",
}
"""Attributes of `Against`, and what a reader calls them."""

_FEW = 40


@dataclass(frozen=True)
class Change:
    """A case that came to something else.

    Attributes:
        before: its verdict in the earlier run, `(absent)` where that lacks it; likewise `after`.
        why: the reason now, or then where the case is gone.
    """

    case: str
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class Against:
    """What is different in the later of two runs.

    Attributes:
        worse: cases that fail, and did not or were not there.
        better: cases that do not fail, and did.
        otherwise: cases that fail in both, for other differences or reasons.
        moved: cases with another verdict, failing in neither.
        gone: cases that the later run lacks.
        added: cases that the earlier run lacks, without those that fail.
    """

    before: RunView
    after: RunView
    worse: tuple[Change, ...]
    better: tuple[Change, ...]
    otherwise: tuple[Change, ...]
    moved: tuple[Change, ...]
    gone: tuple[Change, ...]
    added: tuple[Change, ...]

    @property
    def parts(self) -> dict[str, tuple[Change, ...]]:
        """The changes under what a reader calls them, without those there are none of."""
        return {name: changes for kind, name in KINDS.items() if (changes := getattr(self, kind))}

    @property
    def line(self) -> str:
        """The outcome in one line."""
        told = ", ".join(f"{len(changes)} {name}" for name, changes in self.parts.items())
        return f"{'WORSE' if self.worse else 'NOT WORSE'}: {told or 'every case came to the same'}"


def against(after: RunView, before: RunView) -> Against:
    """Compare a run with an earlier one, case by case."""
    then, now = ({str(case["case"]): case for case in run.cases} for run in (before, after))
    pairs = [(then.get(name), now.get(name)) for name in sorted(then.keys() | now.keys())]
    kinds: dict[str, list[Change]] = {}
    for old, new in pairs:
        kinds.setdefault(_kind(old, new), []).append(_change(old, new))
    return Against(before, after, **{kind: tuple(kinds.get(kind, ())) for kind in KINDS})


def _kind(old: CaseRecord | None, new: CaseRecord | None) -> str:
    """The attribute of `Against` that a case belongs to, empty where nothing changed."""
    if new is None:
        return "gone"
    if _fails(new):
        return "worse" if not _fails(old) else "" if _reason(old) == _reason(new) else "otherwise"
    if old is None:
        return "added"
    return "better" if _fails(old) else "moved" if old["verdict"] != new["verdict"] else ""


def print_against(found: Against, console: Console) -> None:
    """Print the outcome, then the cases of each kind, few of each."""
    console.print(Text(found.line, "bold red" if found.worse else "bold green"), soft_wrap=True)
    for name, run in (("now ", found.after), ("then", found.before)):
        console.print(Text(f"{name} {run.name}: {run.title} · {run.summary}"), soft_wrap=True)
    for name, changes in found.parts.items():
        console.print()
        console.print(Text(f"{len(changes)} {name}:", "bold"))
        for change in changes[:_FEW]:
            told = f"  {change.case}: {change.before} → {change.after}" + (f"  {change.why}" if change.why else "")
            console.print(Text(without_controls(told)), no_wrap=True, overflow="ellipsis")
        if len(changes) > _FEW:
            console.print(Text(f"  … and {len(changes) - _FEW} more"))


def against_markdown(found: Against) -> str:
    """The same as Markdown, folded but for what fails now."""
    blocks = [f"## {'❌' if found.worse else '✅'} parity {found.line}"]
    runs = [[name, code(run.name), code(run.title), run.summary] for name, run in _runs(found)]
    blocks.append(table(["", "run", "sides", "cases"], runs))
    for name, changes in found.parts.items():
        rows = [[code(change.case), change.before, change.after, code(change.why)] for change in changes[:_FEW]]
        more = f"\n\n… and {len(changes) - _FEW} more" if len(changes) > _FEW else ""
        listed = table(["case", "then", "now", "why"], rows) + more
        about = f"{len(changes)} {name}"
        blocks.append(f"### {about}\n\n{listed}" if changes is found.worse else folded(about, listed))
    return "\n\n".join(blocks) + "\n"


def against_json(found: Against) -> str:
    """The same as JSON."""
    changes = {kind: [asdict(change) for change in getattr(found, kind)] for kind in KINDS}
    runs = {name: {"run": run.name, "sides": run.sides, "counts": run.counts} for name, run in _runs(found)}
    return json.dumps({"format": 1, **runs, **changes}, ensure_ascii=False, indent=1) + "\n"


def _runs(found: Against) -> Sequence[tuple[str, RunView]]:
    return (("now", found.after), ("then", found.before))


def _change(before: CaseRecord | None, after: CaseRecord | None) -> Change:
    case = after or before or {}
    verdicts = [str(record["verdict"]) if record else "(absent)" for record in (before, after)]
    return Change(str(case["case"]), verdicts[0], verdicts[1], next(iter(str(case["why"]).splitlines()), ""))


def _fails(case: CaseRecord | None) -> bool:
    return case is not None and Verdict(case["verdict"]).fails


def _reason(case: CaseRecord | None) -> object:
    """What a failing case fails for, without how far off a tensor is, which no two runs need to share."""
    if case is None:
        return None
    found: Sequence[Mapping[str, str]] = case.get("undeclared", ())
    return case["verdict"], frozenset((item["path"], item["kind"]) for item in found) or case["why"]
