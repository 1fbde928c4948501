"""Stacks that read the same configs: in what they are known to differ, and whether a config shows anything else.

What is known lies in examples/known/, a file for each reader: every class of difference between two stacks in a row,
and every property that a stack breaks, with its smallest example and what each stack makes of that.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from conversation import Conversation
from finding import EXAMPLES, Unexplained

from harness.probes._values import Description

KNOWN = EXAMPLES / "known"

Answer = Mapping[str, Any]
"""What `harness.probes._readings.attempt` says of one config in one stack."""

_VALUES = re.compile(
    r"(?<=mandatory value: )\S+|(?<=unexpected precision: ).*"
    r"|\{[^}]*\}|\[[^\]]*\]|<[^>]*>|'[^']*'|\"[^\"]*\"|(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\b(?:None|True|False)\b"
)
"""What may be a value in a message."""
_OF_VALUES = {
    *vars(builtins),
    "NoneType",
    "function",
    "dtype",
    "Section",
    "SimpleNamespace",
    "ListConfig",
    "DictConfig",
}
_OF_VALUES |= {"[]", "{}"}
"""Types of values, and the texts of those that are empty."""
_LONGEST = 110
"""Characters of an exception in the name of a class."""


@dataclass(frozen=True)
class Reading:
    """Conversations with stacks that read configs in the same way, the older stack first.

    Attributes:
        through: the reader: name of its file of known classes, and of the way to show an example.
        fields: those in which stacks are compared; all if there are none.
        otherwise: the fate of a field of which nothing is told.
        faults: name of a stack → the fault that its reader is given.
    """

    through: str
    talks: Sequence[Conversation]
    fields: Collection[str] = ()
    otherwise: str = "absent"
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Where the known classes are."""
        return KNOWN / f"{self.through}.json"

    @property
    def known(self) -> list[dict[str, Any]]:
        """The known classes: examples with `told`, `config` and `shows`."""
        examples: list[dict[str, Any]] = json.loads(self.file.read_text())
        return examples

    def ask(self, configs: Sequence[Description]) -> list[dict[str, Answer]]:
        """What each stack answers to each config, by the name of the stack."""
        for talk in self.talks:
            fault = self.faults.get(talk.stack.name)
            talk.put([{"config": config, "fault": fault} for config in configs])
        answers = {talk.stack.name: talk.take() for talk in self.talks}
        return [dict(zip(answers, each, strict=True)) for each in zip(*answers.values(), strict=True)]

    def told(self, config: Description, answers: Mapping[str, Answer]) -> set[str]:
        """Every class of difference, and every broken property, that the answers to a config show."""
        found = {f"{name}: {each}" for name, answer in answers.items() for each in answer["broken"]}
        for (old, before), (new, after) in pairwise(answers.items()):
            found |= {f"{old} → {new}: {each}" for each in self._differences(config, before, after)}
        return found

    def hear(self, configs: Sequence[Description]) -> None:
        """Let every stack read the configs.

        Raises:
            Unexplained: a class of difference, or a broken property, that no known example shows.
        """
        known = {told for example in self.known for told in example["told"]}
        for config, answers in zip(configs, self.ask(configs), strict=True):
            if told := sorted(each for each in self.told(config, answers) if not _explained(each, known)):
                raise Unexplained(told, config, self.through, self._stack_of(told[0]))

    def replay(self) -> None:
        """Let every stack read the known examples.

        Raises:
            Unexplained: one no longer shows the classes that it did.
        """
        examples = [(example["config"], example["told"]) for example in self.known]
        for (config, expected), answers in zip(examples, self.ask([config for config, _ in examples]), strict=True):
            heard = {f"{name}: " for name in answers} | {f"{old} → {new}: " for old, new in pairwise(answers)}
            told = self.told(config, answers) ^ {each for each in expected if each.startswith(tuple(heard))}
            if told:
                raise Unexplained(sorted(told), config, self.through, self._stack_of(min(told)))

    def examples(self, configs: Sequence[Description]) -> list[dict[str, Any]]:
        """Configs with every class that each shows, and what each stack makes of it where they differ."""
        return [
            {"told": sorted(self.told(config, answers)), "config": config, "shows": _shown(answers)}
            for config, answers in zip(configs, self.ask(configs), strict=True)
        ]

    def smallest(self, configs: Sequence[Description]) -> list[dict[str, Any]]:
        """Every class that the configs show, with the smallest example that can be made of them."""
        found: dict[str, Description] = {}
        ordered = sorted(configs, key=_size)
        for config, answers in zip(ordered, self.ask(ordered), strict=True):
            for told in sorted(self.told(config, answers)):
                if not _explained(told, found.keys()):
                    found[told] = self._smaller(config, told)
        # What explains a class may have been found after it.
        needed = {json.dumps(each) for told, each in found.items() if not _explained(told, found.keys() - {told})}
        return sorted(self.examples([json.loads(each) for each in needed]), key=lambda example: example["told"])

    def _smaller(self, config: Description, told: str) -> Description:
        for candidate in _simpler(config):
            if told in self.told(candidate, self.ask([candidate])[0]):
                return self._smaller(candidate, told)
        return config

    def _differences(self, config: Description, old: Answer, new: Answer) -> set[str]:
        if old["raised"] != new["raised"]:
            raised = {"old": old["raised"], "new": new["raised"]}
            return {"; ".join(f"{side} raises {general(each, config)}" for side, each in raised.items() if each)}
        before, after = old["fates"], new["fates"]
        if before.get("class") != after.get("class"):
            return {f"class: {before['class']} → {after['class']}"}
        names = {name for name in before.keys() | after.keys() if not self.fields or name in self.fields}
        fates = {name: (before.get(name, self.otherwise), after.get(name, self.otherwise)) for name in names}
        return {f"{name}: {_kind(old)} → {_kind(new)}" for name, (old, new) in fates.items() if old != new}

    def _stack_of(self, told: str) -> Any:
        name = told.partition(": ")[0].rpartition(" → ")[2]
        return next(talk.stack for talk in self.talks if talk.stack.name == name)


def general(raised: str, config: Description) -> str:
    """An exception without the values and types that its message has from a config, nor where OmegaConf found one."""
    drawn = {
        text for each in _scalars(config) for text in (str(each), str(each).lower(), repr(each)[1:-1])
    } | _OF_VALUES
    words, _, _ = " ".join(raised.replace(";", ",").split()).partition(" full_key:")
    words = _VALUES.sub(lambda found: found[0] if _is_upstreams(found[0], drawn) else "…", words)
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"


def _is_upstreams(word: str, drawn: Collection[str]) -> bool:
    return word[0] in "'\"" and word[1:-1] not in drawn


def _scalars(node: Description) -> Iterator[Any]:
    if isinstance(node, list):
        for part in node:
            yield from _scalars(part)
    else:
        yield node


def write(file: Path, examples: Sequence[Mapping[str, Any]]) -> None:
    """Keep the known classes of a reader."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(examples, indent=1, ensure_ascii=False) + "\n")


def _explained(told: str, known: Collection[str]) -> bool:
    """Whether what is told is known; where both raise, one of the two is enough: it hides what else there is."""
    pair, _, what = told.partition(": ")
    both = what.split("; ") if what.startswith("old raises ") else []
    return told in known or any(f"{pair}: {each}" in known for each in both)


def _kind(fate: str) -> str:
    """A fate without the value that a field has because of others, nor which dtype it is."""
    return re.sub(r"^torch\.\w+$", "a dtype", re.sub(r"^(another|changed): .*", r"\1", fate))


def _shown(answers: Mapping[str, Answer]) -> dict[str, str]:
    """What each stack makes of a config, in a line: an exception, or the fates that are not the same in all."""
    fates = [answer["fates"] for answer in answers.values() if answer["raised"] is None]
    names = sorted({name for each in fates for name in each if len({str(other.get(name)) for other in fates}) > 1})
    return {name: _line(answer, names) for name, answer in answers.items()}


def _line(answer: Answer, names: Sequence[str]) -> str:
    if answer["raised"] is not None:
        return f"raises {answer['raised']}"
    told = [f"{name}: {answer['fates'][name]}" for name in names if name in answer["fates"]]
    return ", ".join(dict.fromkeys([*told, *answer["broken"]])) or "works"


def _size(config: Description) -> tuple[int, str]:
    text = json.dumps(config)
    return len(text), text


def _simpler(node: Description) -> Iterator[Description]:
    """The same with one key or field less, or with what a function was given in the place of what it returned."""
    if not isinstance(node, list):
        return
    if node and node[0] == "call":
        yield node[2]
    if node and node[0] in ("dict", "of"):
        for at in range(1 if node[0] == "dict" else 2, len(node), 2):
            yield node[:at] + node[at + 2 :]
    for at, part in enumerate(node):
        for simpler in _simpler(part):
            yield [*node[:at], simpler, *node[at + 1 :]]
