"""The end of a bisection as a block of Markdown that can be pasted into an issue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.bisect.bisection import Bisected
from harness.bisect.candidates import Candidate
from harness.bisect.search import Answer
from harness.bisect.walk import Walk

_MOST_FILES = 10
_MOST_NAMED = 3


def bisected_markdown(case: str, walk: Walk, files: Sequence[str], command: str, environment: Mapping[str, str]) -> str:
    """Range, culprit, how it was found, how to see it, and where.

    Args:
        files: what the culprit commit changes; empty where it is no single commit.
        command: shows the difference between the last good candidate and the culprit.
        environment: what the host and the other pins were.
    """
    result = walk.result
    lines = [f"### `{case}`: {_headline(result)}", "", f"`{result.focus.difference}`", ""]
    lines += _culprit(result.culprits, files)
    if walk.note:
        lines += ["", f"Not narrower: {walk.note}."]
    lines += ["", *(f"- {step.what}: {_how(step.result)}" for step in walk.steps)]
    lines += ["", "```", command, "```", "", ", ".join(f"{name} {value}" for name, value in environment.items())]
    return "\n".join(lines) + "\n"


def culprit_line(walk: Walk, files: Sequence[str]) -> str:
    """The culprit in one line: commit, subject, author, date, files; the range where some could not run."""
    result = walk.result
    first, last = result.culprits[0], result.culprits[-1]
    sure = "" if result.found.confidence >= 1.0 else f", {result.found.confidence:.1%} sure"
    if len(result.culprits) > 1:
        return f"one of {len(result.culprits)} from {first.label} to {last.label}, the others could not run{sure}"
    changed = f", changes {', '.join(files[:_MOST_NAMED])}" if files else ""
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    note = f" ({walk.note})" if walk.note else ""
    return f"{_line(last).removeprefix('- ')}{changed}{more}{sure}{note}"


def _headline(result: Bisected) -> str:
    last_good = result.candidates[result.found.first - 1]
    sure = "" if result.found.confidence >= 1.0 else f", {result.found.confidence:.1%} sure"
    return f"good until {last_good.label}, bad from {result.culprits[-1].label}{sure}"


def _culprit(culprits: Sequence[Candidate], files: Sequence[str]) -> list[str]:
    if len(culprits) > 1:
        return [f"One of {len(culprits)}; the others before the last could not run:", "", *map(_line, culprits)]
    lines = [_line(culprits[0])]
    shown = [f"`{name}`" for name in files[:_MOST_FILES]]
    more = f" and {len(files) - _MOST_FILES} more" if len(files) > _MOST_FILES else ""
    return [*lines, f"  changes {', '.join(shown)}{more}"] if files else lines


def _line(candidate: Candidate) -> str:
    commit = candidate.commit
    return f"- {candidate.label}" + (f": {commit.subject} ({commit.author}, {commit.date})" if commit else "")


def _how(result: Bisected) -> str:
    counts = {answer: sum(trial.answer is answer for trial in result.trials) for answer in Answer}
    told = ", ".join(f"{count} {answer}" for answer, count in counts.items() if count)
    each = sum(trial.seconds for trial in result.trials) / max(len(result.trials), 1)
    return (
        f"{len(result.trials)} evaluations ({told or 'none needed'}), {each:.1f} s each, {result.seconds:.0f} s in all"
    )
