"""A run as Markdown: the summary of a CI step, or the one comment on a pull request that is written again each time.

What GitHub refuses is never written: a page has a limit, the gravest comes first, and what was cut is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from harness.compare import Verdict
from harness.compare.ledger import CLASSES
from harness.report.findings import Finding
from harness.report.pins import MovedPin, counted
from harness.report.run_view import CaseRecord, RunView

COMMENT = 65_536
"""Characters that a comment on GitHub may have."""
SUMMARY = 1 << 20
"""Bytes that the summary of a step may have."""
STICKY = "<!-- parity report -->"
"""First line, by which a workflow finds its own comment again."""

_VALUE = 240
_ROWS = 12
_TENSORS = 4
_IDS = 200
_NOTE = 600
"""Characters kept free for the note of what was cut."""


def markdown_report(run: RunView, limit: int = SUMMARY) -> str:
    """The page, at most `limit` characters and 1 MiB.

    Args:
        limit: `COMMENT` or `SUMMARY`.
    """
    page = _Page(min(limit, SUMMARY) - _NOTE)
    page.must("head", _head(run))
    page.must("pins", _pins(run.moved))
    page.take("areas", _areas(run), "the table of areas")
    blocks = [_finding(number, found) for number, found in enumerate(run.findings, 1)]
    lines = [_finding_line(number, found) for number, found in enumerate(run.findings, 1)]
    told = page.as_many("findings", lines, "finding")
    for number, block in enumerate(blocks[:told]):
        if not page.swap("findings", number, block):
            page.cut.append(f"the details of {counted(len(blocks) - number, 'finding')}")
            break
    details = _details(run)
    for name, block in details.items():
        page.take(name, block, name)
    return page.text(["head", "pins", "findings", "areas", *details])


@dataclass
class _Page:
    """Blocks of text within a budget."""

    budget: int
    blocks: dict[str, list[str]] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)

    def must(self, name: str, block: str) -> None:
        """A block without which a page says nothing; shortened where it alone is too long."""
        self._add(name, block if _size(block) <= self.budget else block[: self.budget // 4])

    def take(self, name: str, block: str, called: str) -> None:
        """A block if there is room for it."""
        if block and not self._add(name, block):
            self.cut.append(called)

    def as_many(self, name: str, lines: Sequence[str], noun: str) -> int:
        """As many lines as there is room for; returns how many."""
        kept = 0
        for line in lines:
            if not self._add(name, line):
                self.cut.append(f"{counted(len(lines) - kept, noun)} of {len(lines)}")
                break
            kept += 1
        return kept

    def swap(self, name: str, number: int, block: str) -> bool:
        """Put a longer block in the place of a line, if there is room for it."""
        more = _size(block) - _size(self.blocks[name][number])
        if more > self.budget:
            return False
        self.budget -= more
        self.blocks[name][number] = block
        return True

    def text(self, order: Iterable[str]) -> str:
        """The page."""
        parts = ["\n\n".join(self.blocks[name]) for name in order if self.blocks.get(name)]
        if self.cut:
            parts.append(
                f"> Cut, because GitHub shows no more: {'; '.join(self.cut)[: _NOTE - 200]}. "
                "The whole is in the HTML report and in the records of the run."
            )
        return "\n\n".join(parts) + "\n"

    def _add(self, name: str, block: str) -> bool:
        size = _size(block) + 2
        if size > self.budget:
            return False
        self.budget -= size
        self.blocks.setdefault(name, []).append(block)
        return True


def _size(block: str) -> int:
    """Bytes, of which there are no fewer than characters."""
    return len(block.encode())


def _head(run: RunView) -> str:
    mark = "❌" if run.fails else "✅"
    facts = [
        f"**{_plain(run.title)}**",
        f"{run.lane} lane",
        run.took or "not finished",
        f"run {run.name}",
    ]
    lines = [STICKY, f"## {mark} parity {_plain(run.verdict_line)}", "", " · ".join(facts), "", run.summary]
    if run.triage:
        lines += ["", run.triage]
    if run.golden:
        lines += ["", _plain(run.golden)]
    return "\n".join(lines)


def _pins(moved: Sequence[MovedPin]) -> str:
    if not moved:
        return "No pin differs between the sides."
    return table(["pin", "old", "new", "between"], [_pin_row(pin) for pin in moved])


def _pin_row(pin: MovedPin) -> list[str]:
    between = f"[{pin.between or 'compare'}]({pin.link})" if pin.link else pin.between
    return [pin.distribution, code(pin.old), code(pin.new), between]


def _areas(run: RunView) -> str:
    rows = [[_plain(area), *(str(found[name] or "") for name in run.columns)] for area, found in run.areas.items()]
    total = ["**all**", *(f"**{run.counts[name]}**" for name in run.columns)]
    return f"### Areas\n\n{table(['area', *run.columns], [*rows, total], right=True)}"


def _finding_line(number: int, found: Finding) -> str:
    return f"**{number}. {found.label}** {code(found.case['case'])}{_more(found)}: {code(found.case['why'])}"


def _finding(number: int, found: Finding) -> str:
    parts = [f"### {number}. {found.label}: {code(found.case['case'])}{_more(found)}"]
    if found.divergence.get("why"):
        parts.append(f"{_capital(_plain(found.divergence['why']))}.")
    if found.differences:
        lines = [line for item in found.differences[:_ROWS] for line in _diff(item)]
        parts.append(_block("\n".join(lines), "diff") + _and_more(found.differences, _ROWS))
    if found.distances:
        listed = "\n".join(f"- {code(line)}" for line in found.distances[:_TENSORS])
        parts.append(listed + _and_more(found.distances, _TENSORS, "\n- "))
    if not found.differences and not found.distances:
        parts.append(code(found.case["why"]))
    parts.append(_config_rows(found))
    parts += [folded(f"last output of {side}", _block(text)) for side, text in found.output]
    parts.append(_block("\n".join(found.commands.values())))
    if found.alike:
        ids = ", ".join(code(case) for case in found.alike[:_IDS]) + _and_more(found.alike, _IDS, " ")
        parts.append(folded(counted(len(found.alike), "more case") + " alike", ids))
    return "\n\n".join(part for part in parts if part)


def _diff(difference: Mapping[str, str]) -> list[str]:
    """One difference as a hunk: GitHub colours both values."""
    path, old, new = (_short(" ⏎ ".join(str(difference[key]).splitlines())) for key in ("path", "old", "new"))
    return [f"@@ {path} @@", f"- {old}", f"+ {new}"]


def _config_rows(found: Finding) -> str:
    near, far = found.config_rows
    shown = near or far
    if not shown:
        return ""
    about = f"Config fields that touch {code(found.divergence['module'])}" if near else "Config fields that differ"
    rows = [[code(row["field"]), code(row["old"]), code(row["new"])] for row in shown[:_ROWS]]
    return folded(f"{about} ({len(shown)})", table(["field", "old", "new"], rows) + _and_more(shown, _ROWS))


def _details(run: RunView) -> dict[str, str]:
    """What nobody has to act on, folded, by its name."""
    declared = Counter(
        (change["class_"], change["reason"], change["link"]) for case in run.cases for change in _changes(case)
    )
    ranked = sorted(declared.items(), key=lambda item: (CLASSES.index(item[0][0]), -item[1], item[0]))
    changes = [[class_, f"{_plain(reason)} {link}".strip(), str(count)] for (class_, reason, link), count in ranked]
    not_run = Counter(str(case["why"]) for case in run.cases if case["verdict"] == Verdict.NOT_RUN)
    reasons = [[_plain(why), str(count)] for why, count in not_run.most_common()]
    other = [
        [code(case["case"]), str(case["verdict"]), _plain(_short(case["why"]))]
        for case in run.cases
        if case["verdict"] in (Verdict.DRIFT, Verdict.MASKED, Verdict.WITHIN_NOISE)
    ]
    tables = [
        ("declared changes", ["class", "reason", "differences"], changes),
        ("cases within noise, masked, or with a drifted golden", ["case", "verdict", "why"], other),
        ("cases that did not run", ["reason", "cases"], reasons),
    ]
    return {name: folded(f"{_capital(name)} ({len(rows)})", table(head, rows)) for name, head, rows in tables if rows}


def _changes(case: CaseRecord) -> Sequence[Mapping[str, Any]]:
    return case.get("declared_by", ())


def _more(found: Finding) -> str:
    return f" and {counted(len(found.alike), 'more case')}" if found.alike else ""


def _and_more(items: Sequence[object], shown: int, before: str = "\n\n") -> str:
    return f"{before}… and {len(items) - shown} more" if len(items) > shown else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> str:
    """A table; cells are Markdown already."""
    rule = ["---", *("---:" if right else "---" for _ in head[1:])]
    escaped = [[cell.replace("|", "\\|") for cell in cells] for cells in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *escaped])


def folded(summary: str, body: str) -> str:
    """A block that opens on a click; GitHub reads Markdown inside only after an empty line."""
    shown = re.sub(r"(`+) ?(.*?) ?\1", lambda span: f"<code>{escape(span[2])}</code>", summary)
    return f"<details><summary>{shown}</summary>\n\n{body}\n\n</details>"


def _block(text: str, language: str = "") -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def code(text: str) -> str:
    """A code span on one line that holds any text."""
    line = _short(" ⏎ ".join(str(text).splitlines()))
    if not line:
        return ""
    ticks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _plain(text: str) -> str:
    """Words that are read as they stand: neither markup nor a mention is made of them."""
    return re.sub(r"([\\`*_\[\]<>#~])", r"\\\1", " ".join(str(text).split())).replace("@", "@\u200b")


def _short(text: str) -> str:
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}…"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
