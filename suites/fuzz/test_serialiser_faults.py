"""Every fault seeded into a copy of verl's serialiser is found by what the profile ci draws."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import serialiser_faults
from conversation import Stacks
from descriptions import TOP_LEVEL_DICTS, batches, configs
from finding import Unexplained
from fuzzing import Fuzz
from jury import Jury
from serialiser_faults import FAULTS

STACK = "verl-0.8.0"
Record = Callable[[str, Any], None]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda name: name.replace(" ", "-"))
def test_a_fault_is_found(fuzz: Fuzz, stacks: Stacks, fault: str, record_property: Record) -> None:
    faulty = stacks.talk(STACK, f"{serialiser_faults.__file__}::faulty_dumps", fault=fault)
    with pytest.raises(Unexplained) as found:
        look(fuzz, Jury([stacks.talk(STACK, "config_dumps", through="functions"), faulty], "functions", alike=True))
    record_property("faults", (1, 1))
    record_property("told", "; ".join(found.value.told))


def test_without_a_fault_nothing_is_found(fuzz: Fuzz, stacks: Stacks) -> None:
    look(fuzz, Jury([stacks.talk(STACK, "config_dumps", through="functions")] * 2, "functions", alike=True))


def look(fuzz: Fuzz, jury: Jury) -> None:
    """Let a jury hear what the profile ci draws for the functions."""
    quick = replace(fuzz, profile="ci", shrink=False)
    quick(batches(configs() | TOP_LEVEL_DICTS, 50), 100, jury.hear)
