"""verl's config serialiser, on every stack: the functions called directly, and the whole `save_checkpoint`."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import reproductions
from conversation import Stacks
from descriptions import CONFIG_OBJECTS, CONFIG_OBJECTS_AND_DICTS, Descriptions, batches
from finding import FINDINGS, Unexplained, example_file, kept, pin, reproduction, section, shown, table, write
from fuzzing import Fuzz
from hypothesis import strategies as st
from jury import Jury
from real_configs import real_configs, shared_classes

from harness.probes._fates import Fate, fates

WITH_FUNCTIONS = ["verl-0.8.0", "verl-0.9.1"]
ALL = ["verl-0.7.1", *WITH_FUNCTIONS]
# A save of 0.9.1 takes ten times as long: it locks every folder it asks for. Its functions are examined.
WITH_QUICK_SAVES = ALL[:2]
JURIES = {"functions": WITH_FUNCTIONS, "saves": WITH_QUICK_SAVES}
INTERRUPTED = {"verl-0.7.1": {"changed its input, interrupted: HookedConfig"}, "verl-0.8.0": set(), "verl-0.9.1": set()}
"""What Ctrl-C during a dump does to a config: 0.7.1 loses the fields that it has taken out."""


@pytest.fixture(scope="session")
def jury(stacks: Stacks) -> Callable[..., Jury]:
    """Makes a jury of stacks, once for the whole run."""
    made: dict[tuple[str, ...], Jury] = {}

    def of(through: str, names: list[str] | None = None) -> Jury:
        names = names or JURIES[through]
        key = (through, *names)
        if key not in made:
            made[key] = Jury(stacks.talks(names, "config_dumps", through=through), through)
        return made[key]

    return of


def examine(fuzz: Fuzz, jury: Jury, strategy: Descriptions, size: int, examples: int) -> None:
    """Let a jury hear what earlier runs found, then what is drawn; keep what nobody can explain."""
    unexplained = None
    try:
        jury.hear([example["config"] for example in kept(jury.through)])
        fuzz(batches(strategy, size), examples, jury.hear)
    except Unexplained as found:
        unexplained = found
    if unexplained is not None:
        pytest.fail(unexplained.keep(), pytrace=False)


def test_functions_do_to_any_config_what_they_do_to_its_values(fuzz: Fuzz, jury: Callable[..., Jury]) -> None:
    examine(fuzz, jury("functions"), CONFIG_OBJECTS_AND_DICTS, size=50, examples=100)


def test_saves_do_to_any_config_what_they_do_to_its_values(fuzz: Fuzz, jury: Callable[..., Jury]) -> None:
    names = WITH_QUICK_SAVES if fuzz.profile == "ci" else ALL
    examine(fuzz, jury("saves", names), CONFIG_OBJECTS, size=20, examples=20)


@pytest.mark.parametrize("through", JURIES)
def test_real_configs_are_dumped_as_their_values_are(
    fuzz: Fuzz, stacks: Stacks, jury: Callable[..., Jury], through: str
) -> None:
    classes = shared_classes(stacks, JURIES[through])
    assert {reference.rpartition(":")[2] for reference in classes} >= {"TransformerConfig", "MLATransformerConfig"}
    assert sum(reference.endswith("Provider") for reference in classes) >= 10
    examine(fuzz, jury(through), real_configs(classes), size=10, examples=20)


def test_a_text_belongs_to_the_key_whose_value_stands_there() -> None:
    found = fates({"1": (None,), 1: frozenset()}, {"1": [None]})
    assert found == {
        Fate("field", "tuple", "array"),
        Fate("inside", "NoneType", "same"),
        Fate("name", "str", "same"),
        Fate("name", "int", "merged"),
    }


def test_a_text_belongs_to_no_key_whose_value_cannot_have_become_what_stands_there() -> None:
    kept = {"1": [object(), object(), {"a": object(), "b": object()}], Decimal(1): None}
    found = fates({"first": kept}, {"first": {"1": [{}]}})
    assert {Fate("key", "Decimal", "merged"), Fate("inside", "dict", "object")} <= found


# What is known, and pinned: the files in examples/ -------------------------------------------------------------------


@pytest.mark.parametrize("through", JURIES)
def test_every_class_of_difference_has_its_smallest_example(
    jury: Callable[..., Jury], through: str, pytestconfig: pytest.Config, changed_files: list[str]
) -> None:
    if pytestconfig.getoption("write_examples", False):
        changed_files += _write_examples(jury(through))
    pinned = {told: example["config"] for example in kept(through) if "shows" in example for told in example["told"]}
    assert pinned == jury(through).smallest, "after a look at the difference: pytest suites/fuzz --write-examples"


@pytest.mark.parametrize("through", JURIES)
def test_examples_show_what_they_did(jury: Callable[..., Jury], through: str) -> None:
    pinned = [example for example in kept(through) if "shows" in example]
    assert pinned
    answers = jury(through).ask([example["config"] for example in pinned])
    for number, example in enumerate(pinned):
        assert {name: shown(each[number]) for name, each in answers.items()} == example["shows"]


def test_findings_list_every_class_with_its_smallest_example() -> None:
    assert section(FINDINGS) == table(), "pytest suites/fuzz --write-examples"


def test_functions_of_two_releases_do_not_differ(jury: Callable[..., Jury]) -> None:
    assert jury("functions").classes == {}


@pytest.mark.parametrize("through", JURIES)
def test_a_reproduction_shows_what_was_found(stacks: Stacks, through: str) -> None:
    pinned = [example for example in kept(through) if "shows" in example]
    for name in JURIES[through]:
        talk = stacks.talk(name, f"{reproductions.__file__}::reproductions")
        answers = talk.ask([reproduction(example["config"], through) for example in pinned])
        for example, answer in zip(pinned, answers, strict=True):
            expected = example["shows"][name]
            if answer["raised"]:
                assert expected.startswith(f"raises {' '.join(answer['raised'].split())}"), example
            else:
                assert loaded(answer["printed"].splitlines()[-1]) == loaded(expected), example


def loaded(dump: str) -> str:
    """A dump as a reader has it, whatever follows it."""
    return json.dumps(json.JSONDecoder().raw_decode(dump)[0])


def _write_examples(jury: Jury) -> list[str]:
    told: dict[str, list[str]] = {}
    for each, config in jury.smallest.items():
        told.setdefault(json.dumps(config), []).append(each)
    configs = [json.loads(config) for config in told]
    answers = jury.ask(configs)
    examples = [
        {
            "through": jury.through,
            "config": config,
            "told": told[json.dumps(config)],
            "shows": {name: shown(each[number]) for name, each in answers.items()},
        }
        for number, config in enumerate(configs)
    ]
    changes = pin(jury.through, examples)
    if section(FINDINGS) != table():
        FINDINGS.write_text(FINDINGS.read_text().replace(section(FINDINGS), table()))
        changes.append(f"wrote the table of classes in golden/{FINDINGS.name}")
    return changes


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    def of(config: str, told: str) -> dict[str, Any]:
        return {"through": "saves", "config": [config], "told": [told], "shows": {"verl-0.8.0": told}}

    first, gone, found = of("Config", "a"), of("Plain", "b"), of("SlotsConfig", "c")
    unexplained = {"through": "saves", "config": ["FrozenConfig"], "told": ["d"]}
    assert len(pin("saves", [first, gone], tmp_path)) == 2
    write(example_file("saves", unexplained["config"], tmp_path), unexplained)
    before = example_file("saves", ["Config"], tmp_path).stat().st_mtime_ns
    changes = pin("saves", [first, found], tmp_path)
    assert [(each.split()[0], each.rpartition(": ")[2]) for each in changes] == [("wrote", "c"), ("removed", "b")]
    assert sorted(each["told"] for each in kept("saves", tmp_path)) == [["a"], ["c"], ["d"]]
    assert example_file("saves", ["Config"], tmp_path).stat().st_mtime_ns == before
    assert pin("saves", [first, found], tmp_path) == []


# Ctrl-C, and who reads a dump ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("through", "name"),
    [("functions", name) for name in WITH_FUNCTIONS] + [("saves", name) for name in WITH_QUICK_SAVES],
)
def test_ctrl_c_during_a_dump_leaves_the_config_as_it_was(fuzz: Fuzz, stacks: Stacks, through: str, name: str) -> None:
    talk, found = stacks.talk(name, "config_dumps", through=through), set()

    def check(questions: list[Any]) -> None:
        found.update(told for answer in talk.ask(questions) for told in answer["broken"])
        assert found <= INTERRUPTED[name]

    lines, examples = (40, 10) if through == "functions" else (10, 5)
    fuzz(batches(interruptions(lines), 10), examples, check)
    assert found == INTERRUPTED[name]


def interruptions(lines: int) -> Descriptions:
    """Configs, those with fields that only a run fills among them, and the lines at which their dump is interrupted."""
    hooked = st.sampled_from([["HookedConfig", 1, ["py", "function"]], ["HookedConfig", None, 1, 2, 3]])
    return st.builds(
        lambda config, first: {"config": config, "first": first, "most": lines},
        hooked | CONFIG_OBJECTS,
        st.integers(0, 100),
    )


@pytest.mark.parametrize("name", ALL)
def test_a_resume_reads_nothing_of_the_dump(stacks: Stacks, name: str) -> None:
    seen = stacks.observe(name, f"{reproductions.__file__}::resume")
    assert seen["loaded"]
    assert seen["reads_dump"] is False
