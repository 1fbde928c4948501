"""Several stacks that dump the same configs, and what is to be said of their answers.

What is known of a stack is what it does with the catalogue of `harness.probes._kinds`: every kind of value alone, at
every kind of place. `config_values` in suites/parity pins that, and the ledger explains how it differs between stacks.
A fuzzed config may show nothing else, however its values are put together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

from conversation import Conversation, ask_all
from finding import Unexplained

from harness.probes import _kinds
from harness.probes._fates import Fate
from harness.probes._values import Description

Answer = Mapping[str, Any]
"""What `harness.probes._dumps.answer` says of one config in one stack."""


@dataclass(frozen=True)
class Known:
    """What a stack is known to do.

    Attributes:
        fates: of every kind of value at every kind of place.
        raised: exceptions, but for the names of types in them.
        broken: properties of a dump that do not hold.
    """

    fates: frozenset[Fate]
    raised: frozenset[str]
    broken: frozenset[str]

    @classmethod
    def of(cls, answers: Iterable[Answer]) -> Known:
        """What answers show."""
        whole = list(answers)
        return cls(
            frozenset(Fate(*fate) for answer in whole for fate in answer["fates"]),
            frozenset(without_names(answer["raised"]) for answer in whole if answer["raised"]),
            frozenset(told for answer in whole for told in broken(answer)),
        )

    def unknown(self, answer: Answer) -> list[str]:
        """What an answer shows beyond that, in words."""
        raised = answer["raised"]
        fates = [Fate(*fate) for fate in answer["fates"] if tuple(fate) not in self.fates]
        return [
            *([f"raises {raised}"] if raised and without_names(raised) not in self.raised else []),
            *(told for told in broken(answer) if told not in self.broken),
            *(f"{fate.kind} as {fate.place}: {fate.fate}" for fate in fates if not self._explains(fate)),
        ]

    def _explains(self, fate: Fate) -> bool:
        """Whether what is known explains a fate that is not known itself."""
        if fate.fate == "merged":
            # Which two keys read alike is not a matter of their kinds.
            return any((known.place, known.fate) == (fate.place, "merged") for known in self.fates)
        if fate.place != "pair":
            return False
        key, _, value = fate.kind.partition(": ")
        return fate.fate == "dropped" and bool(
            {Fate("key", key, "dropped"), Fate("inside", value, "dropped")} & self.fates
        )


def broken(answer: Answer) -> list[str]:
    """The properties that an answer breaks; a dump that has a key twice cannot be loaded and dumped alike."""
    told = [re.sub(r"(changed its input): \w+(Config|Provider)$", r"\1: a config", each) for each in answer["broken"]]
    return [each for each in told if each != "another text after a load"] if "a key twice" in told else told


def without_names(raised: str) -> str:
    """An exception without the names of types that are not JSON, not keys, cannot be copied, or lack a field."""
    raised = re.sub(r"'\w+' object has no attribute '\w+'", "a field is not set", raised)
    return re.sub(r"(Object of type|bool or None, not|cannot pickle) (?:'.*?'|[\w.]+)", r"\1 …", raised)


def differences(old: Answer, new: Answer) -> set[str]:
    """How two stacks differ in one config, in words; empty exactly if both texts and exceptions are equal."""
    sides = {"old": old, "new": new}
    if (old["text"], old["raised"]) == (new["text"], new["raised"]):
        return set()
    if old["raised"] and new["raised"]:
        return {"both raise, each in its own way"}
    if old["raised"] or new["raised"]:
        return {f"{side} raises: {without_names(each['raised'])}" for side, each in sides.items() if each["raised"]}
    before, after = ({(place, kind): fate for place, kind, fate in side["fates"]} for side in (old, new))
    changed = {_class_of(at, before[at], after[at]) for at in before.keys() & after.keys() if before[at] != after[at]}
    return changed or {"another text of the same"}


def _class_of(at: tuple[str, str], old: str, new: str) -> str:
    name = "new drops" if new == "dropped" else "new keeps more" if old == "dropped" else "representation changed"
    return f"{name}: {at[1]} as {at[0]}, {old} before, now {new}"


def class_of(difference: str) -> str:
    """A difference without the kind of value that shows it."""
    return re.sub(r": .* as (\w+), (\w+) before, now (\w+)$", r": a value as \1, \2 before, now \3", difference)


class Jury:
    """Conversations with stacks that dump configs in the same way."""

    def __init__(
        self, conversations: Sequence[Conversation], through: str, *, like: Jury | None = None, about: str = ""
    ) -> None:
        """A jury; with `like` each of its stacks may do only what the stack of that jury does.

        With `about`, a regular expression, it hears of nothing but what begins like that.
        """
        self.talks = conversations
        self._like = like
        self._about = about
        self.through = through

    @cached_property
    def catalogue(self) -> list[tuple[Description, list[Answer]]]:
        """Every config of the catalogue, and what each stack answers."""
        configs = [config for place in _kinds.catalogue().values() for _, config in place]
        if self.through == "functions":
            configs += _kinds.TOP_LEVEL_KEYS
        return list(zip(configs, map(list, zip(*ask_all(self.talks, configs), strict=True)), strict=True))

    @cached_property
    def known(self) -> list[Known]:
        """What each stack is known to do."""
        if self._like:
            return self._like.known * len(self.talks)
        return [Known.of(answers) for answers in zip(*(answers for _, answers in self.catalogue), strict=True)]

    @cached_property
    def classes(self) -> dict[str, Description]:
        """How each two stacks in a row differ, in words → the smallest config of the catalogue that shows it."""
        found: dict[str, Description] = {}
        if self._like:
            return found
        for config, answers in sorted(self.catalogue, key=lambda pair: len(str(pair[0]))):
            for old, new in combinations(answers, 2):
                for told in differences(old, new):
                    found.setdefault(told, config)
        return found

    @cached_property
    def smallest(self) -> dict[str, Description]:
        """Every class of difference of each two stacks in a row, and every property that a stack breaks, in words.

        Each goes with the smallest config of the catalogue that shows it.
        """
        found: dict[str, Description] = {}
        names = [conversation.stack.name for conversation in self.talks]
        for config, answers in sorted(self.catalogue, key=lambda pair: (len(json.dumps(pair[0])), json.dumps(pair[0]))):
            for (old, new), sides in zip(pairwise(answers), pairwise(names), strict=True):
                for told in differences(old, new):
                    found.setdefault(f"{' → '.join(sides)}: {class_of(told)}", config)
            for name, answer in zip(names, answers, strict=True):
                for told in answer["broken"]:
                    found.setdefault(f"{name}: {without_names(told)}", config)
        return found

    def ask(self, questions: Sequence[Any]) -> dict[str, list[Answer]]:
        """What each stack answers, by its name."""
        names = [conversation.stack.name for conversation in self.talks]
        return dict(zip(names, ask_all(self.talks, questions), strict=True))

    def hear(self, configs: Sequence[Description]) -> None:
        """Let every stack dump the configs.

        Raises:
            Unexplained: an answer, or a difference between two, that nothing in the catalogue shows.
        """
        verdicts = zip(configs, *ask_all(self.talks, configs), strict=True)
        for config, *answers in verdicts:
            for conversation, known, answer in zip(self.talks, self.known, answers, strict=True):
                if told := [each for each in known.unknown(answer) if re.match(self._about, each)]:
                    raise Unexplained(told, config, self.through, conversation.stack)
            for old, new in combinations(answers, 2):
                told = sorted(differences(old, new) - self.classes.keys())
                if told and not self._about:
                    raise Unexplained(told, config, self.through, self.talks[-1].stack)
