"""Every fault seeded into a copy of verl's serialiser is found by what the profile ci draws, and by its property."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import reproductions
import serialiser_faults
from conversation import Conversation, Stacks
from descriptions import CONFIG_OBJECTS_AND_DICTS, batches
from finding import Unexplained
from fuzzing import Fuzz
from jury import Jury
from serialiser_faults import FAULTS
from test_serialiser import interruptions

STACK = "verl-0.8.0"
INTERRUPTED = "dicts taken apart and put together again"
Record = Callable[[str, Any], None]

PROPERTIES = {
    "the conversion does not raise": ("the conversion raises", "keys compared"),
    "JSON takes what it makes": ("JSON refuses|not JSON|a key twice", "dtypes left as they are"),
    "it ends": (r"raises TimeoutError: did not end|the conversion raises TimeoutError", "cycles waited for"),
    "the config stays as it was": ("changed its input: ", "dicts emptied"),
    "a second conversion changes nothing": ("not idempotent", "keys made text twice"),
    "nothing is left out without a reason": ("lost: ", "the last item lost"),
    "equal configs have equal dumps": ("another text of an equal config", "identities written"),
    "a dump that is loaded is dumped alike": ("another text after a load", "keys made text twice"),
}
"""What holds for a dump → how an answer says that it does not, and a fault that breaks it."""


@pytest.fixture(scope="session")
def sound(stacks: Stacks) -> Jury:
    """The stack as it is."""
    return Jury([stacks.talk(STACK, "config_dumps", through="functions")], "functions")


@pytest.mark.parametrize(
    "fault", [name for name in FAULTS if name != INTERRUPTED], ids=lambda name: name.replace(" ", "-")
)
def test_a_fault_is_found(quick: Fuzz, stacks: Stacks, sound: Jury, fault: str, record_property: Record) -> None:
    with pytest.raises(Unexplained) as found:
        look(quick, Jury([sound.talks[0], faulty(stacks, fault)], "functions", like=sound))
    record_property("faults", (1, 1))
    record_property("told", "; ".join(found.value.told))


@pytest.mark.parametrize("statement", PROPERTIES, ids=lambda name: name.replace(" ", "-"))
def test_a_property_finds_the_fault_that_breaks_it(quick: Fuzz, stacks: Stacks, sound: Jury, statement: str) -> None:
    told, fault = PROPERTIES[statement]
    with pytest.raises(Unexplained):
        look(quick, Jury([faulty(stacks, fault)], "functions", like=sound, about=told))


def test_what_is_found_is_made_smaller(quick: Fuzz, stacks: Stacks, sound: Jury) -> None:
    with pytest.raises(Unexplained) as found:
        look(replace(quick, shrink=True), Jury([faulty(stacks, "the last item lost")], "functions", like=sound))
    assert len(json.dumps(found.value.config)) < 50


def test_a_fault_that_shows_when_interrupted_is_found(quick: Fuzz, stacks: Stacks, record_property: Record) -> None:
    talk = faulty(stacks, INTERRUPTED)

    def check(questions: list[Any]) -> None:
        assert not [told for answer in talk.ask(questions) for told in answer["broken"]]

    with pytest.raises(AssertionError, match=r"changed its input, interrupted: (dict|OrderedDict|Table)"):
        quick(batches(interruptions(lines=40), 20), 20, check)
    record_property("faults", (1, 1))


def test_a_resume_that_reads_the_dump_is_found(stacks: Stacks) -> None:
    assert stacks.observe(STACK, f"{reproductions.__file__}::resume", reads=True)["reads_dump"] is True


def test_without_a_fault_nothing_is_found(quick: Fuzz, sound: Jury) -> None:
    look(quick, Jury(sound.talks, "functions", like=sound))


def faulty(stacks: Stacks, fault: str) -> Conversation:
    """A conversation with a copy of the stack's functions that has a fault."""
    talk = stacks.talk(STACK, f"{serialiser_faults.__file__}::faulty_dumps")
    talk.ask([{"fault": fault}])
    return talk


def look(quick: Fuzz, jury: Jury) -> None:
    """Let a jury hear what the profile ci draws for the functions."""
    quick(batches(CONFIG_OBJECTS_AND_DICTS, 50), 100, jury.hear)
