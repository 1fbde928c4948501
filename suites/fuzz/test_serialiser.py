"""verl's config serialiser, on every stack: the functions called directly, and the whole `save_checkpoint`."""

import pytest
from conversation import Stacks
from descriptions import TOP_LEVEL_DICTS, Descriptions, batches, configs
from finding import Unexplained, kept
from fuzzing import Fuzz
from jury import Jury

WITH_FUNCTIONS = ["verl-0.8.0", "verl-0.9.1"]
ALL = ["verl-0.7.1", *WITH_FUNCTIONS]


def jury_of(stacks: Stacks, names: list[str], through: str) -> Jury:
    return Jury([stacks.talk(name, "config_dumps", through=through) for name in names], through)


def examine(fuzz: Fuzz, jury: Jury, strategy: Descriptions, size: int, examples: int) -> None:
    """Let a jury hear what earlier runs found, then what is drawn; keep what nobody can explain."""
    unexplained = None
    try:
        jury.hear(kept(jury.through))
        fuzz(batches(strategy, size), examples, jury.hear)
    except Unexplained as found:
        unexplained = found
    if unexplained is not None:
        pytest.fail(unexplained.keep(), pytrace=False)


def test_functions_do_to_any_config_what_they_do_to_its_values(fuzz: Fuzz, stacks: Stacks) -> None:
    examine(fuzz, jury_of(stacks, WITH_FUNCTIONS, "functions"), configs() | TOP_LEVEL_DICTS, size=50, examples=100)


def test_saves_do_to_any_config_what_they_do_to_its_values(fuzz: Fuzz, stacks: Stacks) -> None:
    # A save of 0.9.1 takes ten times as long: it locks every folder it asks for. Its functions are examined above.
    names = ALL[:2] if fuzz.profile == "ci" else ALL
    examine(fuzz, jury_of(stacks, names, "saves"), configs(), size=20, examples=20)
