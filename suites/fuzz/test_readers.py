"""Upstream readers of configs, old against new: `adapter_path`, PEFT sections, a user's overrides, Marlin scales."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import marlin_probes
import override_probes
import pytest
import reader_probes
import reproductions
import section_probes
from conversation import Conversation, Stacks, ask_all
from descriptions import VALUES, Descriptions, batches
from finding import Unexplained, example_file, kept, reproduction
from fuzzing import Fuzz
from hypothesis import strategies as st
from marlin import block_scales, single_scales
from overrides import overridable, provider_overrides, single_overrides
from reading import Reading, general, write
from sections import peft_sections, single_keys

from harness.probes._values import Description

ALL = ["verl-0.7.1", "verl-0.8.0", "verl-0.9.1"]
FORMS = ["dict", "dictconfig", "dataclass", "base_config", "object", "none"]


# adapter_path ---------------------------------------------------------------------------------------------------------

READS = {
    "verl-0.7.1": {"dict": "never", "dictconfig": "path", "dataclass": "path", "object": "path", "none": "never"},
    "verl-0.8.0": {"dict": "path", "dictconfig": "path", "dataclass": "raises", "object": "raises", "none": "raises"},
}
READS["verl-0.7.1"]["base_config"] = READS["verl-0.8.0"]["base_config"] = "path"
READS["verl-0.9.1"] = READS["verl-0.8.0"]
"""What a stack reads of `adapter_path`, by the form of the section: 0.7.1 asks for an attribute, others for a key."""


def test_adapter_path_is_read_as_its_form_allows(fuzz: Fuzz, stacks: Stacks) -> None:
    read_adapter_paths(fuzz, stacks, None)


@pytest.mark.parametrize("fault", reader_probes.FAULTS, ids=lambda name: name.replace(" ", "-"))
def test_a_fault_of_adapter_path_is_found(quick: Fuzz, stacks: Stacks, fault: str) -> None:
    with pytest.raises(AssertionError, match="another path than its form allows"):
        read_adapter_paths(quick, stacks, fault)


def read_adapter_paths(fuzz: Fuzz, stacks: Stacks, fault: str | None) -> None:
    talks = stacks.talks(ALL, f"{reader_probes.__file__}::adapter_paths")
    forms = st.sampled_from([*FORMS, "absent", "none_path", "empty"])
    paths = st.text(max_size=6)
    questions = st.builds(lambda given, path: {"given": given, "path": path, "fault": fault}, forms, paths)

    def check(asked: list[Any]) -> None:
        for name, answers in zip(ALL, ask_all(talks, asked), strict=True):
            for question, answer in zip(asked, answers, strict=True):
                told = f"another path than its form allows: {name}, {question}: {answer}"
                assert reading(answer) == expected_reading(name, question), told

    fuzz(batches(questions, 20), 20, check)


def reading(answer: Mapping[str, Any]) -> str | None:
    """The path that was loaded, None, or `raises` where there is nothing to ask for a key."""
    if answer["raised"]:
        assert re.fullmatch(r"AttributeError: .* has no attribute 'get'", answer["raised"]), answer
        return "raises"
    return answer["loaded"]


def expected_reading(name: str, question: Mapping[str, str]) -> str | None:
    if question["given"] in ("absent", "none_path", "empty"):
        return None
    reads = READS[name][question["given"]]
    return "raises" if reads == "raises" else (question["path"] or None) if reads == "path" else None


# Readers whose differences are pinned, in examples/known/ -------------------------------------------------------------


@dataclass(frozen=True)
class Examined:
    """A reader that is asked about drawn configs, and how much of it a push draws.

    Attributes:
        probe: who reads.
        stacks: whose, the oldest first.
        faults: what may be wrong with it.
        configs: from the fields that the classes of each stack have, what is drawn.
        singles: from the same, every value of every field alone, to find the smallest examples.
        compared: from the same, the names of the fields in which stacks are compared; none for all.
        otherwise: the fate of a field of which a stack says nothing.
        size: of a batch.
        batches: in the profile ci.
    """

    probe: str
    stacks: Sequence[str]
    faults: Mapping[str, Any]
    configs: Callable[[list[Any]], Descriptions]
    singles: Callable[[list[Any]], list[Description]]
    compared: Callable[[list[Any]], Collection[str]]
    otherwise: str
    size: int
    batches: int


READERS = {
    "peft_sections": Examined(
        f"{section_probes.__file__}::peft_sections",
        ALL,
        section_probes.FAULTS,
        peft_sections,
        single_keys,
        lambda _: (),
        "absent",
        size=40,
        batches=20,
    ),
    "provider_overrides": Examined(
        f"{override_probes.__file__}::provider_settings",
        ALL,
        override_probes.FAULTS,
        provider_overrides,
        single_overrides,
        overridable,
        "not changed",
        size=20,
        batches=25,
    ),
    "marlin_scales": Examined(
        f"{marlin_probes.__file__}::marlin_scales_drawn",
        ["verl-0.9.1-vllm-0.12", "verl-0.9.1-vllm-0.20"],
        marlin_probes.SCALE_FAULTS,
        block_scales,
        single_scales,
        lambda _: (),
        "absent",
        size=20,
        batches=20,
    ),
}
FAULTS = [(name, fault) for name, reader in READERS.items() for fault in reader.faults]
TAKES_A_DIFFERENCE_AWAY = {"unknown names are taken"}
"""A fault that makes the new stack do what the old one does: an example that is known to differ finds it."""


@pytest.mark.parametrize("name", READERS)
def test_drawn_configs_show_no_class_of_difference_but_the_known(
    fuzz: Fuzz, stacks: Stacks, name: str, pytestconfig: pytest.Config, changed_files: list[str]
) -> None:
    reading, configs = read_by(stacks, name, pytestconfig)
    if pytestconfig.getoption("write_examples", False):
        changed_files += _write_examples(fuzz, reading, configs)
        reading, configs = read_by(stacks, name, pytestconfig)
    unexplained = None
    try:
        reading.hear([example["config"] for example in kept(name)])
        draw(fuzz, name, configs, reading.hear)
    except Unexplained as found:
        unexplained = found
    if unexplained is not None:
        pytest.fail(unexplained.keep(), pytrace=False)


@pytest.mark.parametrize("name", READERS)
def test_known_examples_show_what_they_did(stacks: Stacks, name: str, pytestconfig: pytest.Config) -> None:
    reading, _ = read_by(stacks, name, pytestconfig)
    assert reading.known
    found = reading.examples([example["config"] for example in reading.known])
    assert found == reading.known, "after a look at the difference: pytest suites/fuzz --write-examples"


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.stacks is ALL])
def test_a_reproduction_shows_what_is_known(stacks: Stacks, name: str, pytestconfig: pytest.Config) -> None:
    reading, _ = read_by(stacks, name, pytestconfig)
    for stack in ALL:
        talk = stacks.talk(stack, f"{reproductions.__file__}::reproductions")
        answers = talk.ask([reproduction(example["config"], name) for example in reading.known])
        for example, answer in zip(reading.known, answers, strict=True):
            shows = example["shows"][stack]
            if answer["raised"]:
                raised = [
                    general(each, example["config"]) for each in (answer["raised"], shows.removeprefix("raises "))
                ]
                assert raised[0] == raised[1], example
            else:
                assert not shows.startswith("raises"), example


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=["-".join(each).replace(" ", "-") for each in FAULTS])
def test_a_fault_of_a_reader_is_found(
    quick: Fuzz,
    stacks: Stacks,
    name: str,
    fault: str,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, Any], None],
) -> None:
    sound, configs = read_by(stacks, name, pytestconfig)
    talks = sound.talks[:2]
    faulty = replace(sound, talks=talks, faults={talks[1].stack.name: fault})
    with pytest.raises(Unexplained) as found:
        faulty.replay() if fault in TAKES_A_DIFFERENCE_AWAY else draw(quick, name, configs, faulty.hear)
    record_property("faults", (1, 1))
    record_property("told", "; ".join(found.value.told))


def read_by(stacks: Stacks, name: str, config: pytest.Config) -> tuple[Reading, Descriptions]:
    """Every stack's reader, and what is drawn for them; stacks with vLLM are a gigabyte each, and must be asked for."""
    reader = READERS[name]
    asked_for = [config.getoption("old", None), config.getoption("new", None)]
    if reader.stacks is not ALL and asked_for != reader.stacks:
        pytest.skip(f"not run: needs vLLM: --old {reader.stacks[0]} --new {reader.stacks[1]}")
    talks = stacks.talks(reader.stacks, reader.probe)
    fields = fields_of(talks)
    return Reading(name, talks, reader.compared(fields), reader.otherwise), reader.configs(fields)


def fields_of(talks: Sequence[Conversation]) -> list[Any]:
    """What each stack says of the fields of its classes."""
    return [talk.ask([None])[0]["fields"] for talk in talks]


def draw(fuzz: Fuzz, name: str, configs: Descriptions, check: Callable[[list[Any]], None]) -> None:
    """Check what the profile draws for a reader."""
    fuzz(batches(configs, READERS[name].size), READERS[name].batches, check)


def _write_examples(fuzz: Fuzz, reading: Reading, configs: Descriptions) -> list[str]:
    found = READERS[reading.through].singles(fields_of(reading.talks))
    found += [example["config"] for example in (*kept(reading.through), *reading.known)]
    draw(fuzz, reading.through, configs, lambda drawn: found.extend(drawn))
    changes = []
    if (smallest := reading.smallest(found)) != reading.known:
        write(reading.file, smallest)
        changes.append(f"wrote examples/known/{reading.file.name}")
    for example in kept(reading.through):
        file = example_file(reading.through, example["config"])
        file.unlink()
        changes.append(f"removed examples/{file.name}: {'; '.join(example['told'])}")
    return changes


# What vLLM returns: block scales, or a pair of them and a factor ------------------------------------------------------

TAKEN_APART = {
    "unwrapped": "the value",
    "scales": "the value",
    "factor": "the factor",
    "no pair, unwrapped": "the value",
    "no pair, scales": "the value",
    "no pair, factor": "1.0",
}
"""What verl's two helpers make of any value beside a factor, and of what is no pair."""


@pytest.mark.parametrize("stack", ALL[1:])
def test_marlin_helpers_take_pairs_apart(fuzz: Fuzz, stacks: Stacks, stack: str) -> None:
    take_apart(fuzz, stacks, stack, None)


@pytest.mark.parametrize("fault", marlin_probes.FORM_FAULTS, ids=lambda name: name.replace(" ", "-"))
def test_a_fault_of_marlin_helpers_is_found(quick: Fuzz, stacks: Stacks, fault: str) -> None:
    with pytest.raises(AssertionError, match="not taken apart"):
        take_apart(quick, stacks, ALL[1], fault)


def take_apart(fuzz: Fuzz, stacks: Stacks, stack: str, fault: str | None) -> None:
    asked = stacks.talk(stack, f"{marlin_probes.__file__}::marlin_forms_drawn")

    def check(drawn: list[Any]) -> None:
        answers = asked.ask([{"config": value, "fault": fault} for value in drawn])
        for value, answer in zip(drawn, answers, strict=True):
            assert (answer["fates"], answer["raised"]) == (TAKEN_APART, None), f"not taken apart: {value}"

    fuzz(batches(VALUES, 40), 10, check)
