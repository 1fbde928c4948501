"""Parts of the checks of one stack that no fault in a rank can reach."""

import importlib.metadata
import importlib.util
import sys
from typing import Any, Literal

import pytest

from harness.probes._other_values import UNVARIED, another_value
from harness.probes._without import Package
from harness.probes.consistency.feature_tests import _answer, _Own, _tests
from harness.probes.consistency.optional_packages import _names_absence, _otherwise
from harness.probes.consistency.overridden_methods import hands_on
from harness.workers.without import hide

SOURCE = """
import json
from json import decoder

def choose(thing):
    if hasattr(json, "dumps") and hasattr(decoder.JSONDecoder, "decode"):
        return getattr(thing, "known", None)
    if hasattr(json, "renamed_function"):
        return getattr(thing, "renamed_field", 1)
    if "indent" in inspect.signature(json.dumps).parameters:
        json.mark = hasattr(json, "mark") or getattr(hf_config, "remote", None)
        self.fine = hasattr(json, "fine")
        return "gone" in inspect.signature(json.dumps).parameters
"""


PATH = {"hooks": {"hook": "verl.a:f"}, "functions": ["verl.a:f", "verl.a:g"], "raised": None}


@pytest.mark.parametrize(
    ("name", "current", "annotation", "other"),
    [
        ("x", True, None, False),
        ("x", 2, None, 4),
        ("x", 0.0, None, 0.25),
        ("x", None, int | None, 2),
        ("x", None, Any, UNVARIED),
        ("mode", "a", Literal["a", "b"], "b"),
        ("hidden_act", "gelu", str, "silu"),
        ("x", "anything", str, UNVARIED),
    ],
)
def test_another_value_differs(name: str, current: Any, annotation: Any, other: Any) -> None:
    assert another_value(name, current, annotation) == other


def test_feature_tests_that_nothing_answers_are_told() -> None:
    own = _Own.of([SOURCE])
    known = own.names | {"known", "fine"}
    answers = {test.name: _answer(test, known, own.marks) for test in _tests("package.module", SOURCE)}
    assert answers == {
        "dumps": "exists somewhere",
        "decode": "exists somewhere",
        "known": "exists somewhere",
        "renamed_function": "not json",
        "renamed_field": "nobody",
        "indent": "exists somewhere",
        "mark": "exists somewhere",
        "fine": "not json",
        "gone": "not json.dumps",
    }
    assert {test.where for test in _tests("package.module", SOURCE)} == {"package.module:choose"}


@pytest.mark.parametrize(
    "source",
    [
        "ModuleSpec(module=Layer)",
        "spec.module = Layer",
        "spec.module = layers.Layer",
        "build(Layer, config)",
        "Layer.build(config)",
        "from layers import Layer as Other",
    ],
)
def test_a_class_that_is_a_value_is_handed_on(source: str) -> None:
    assert hands_on(source, "Layer")


@pytest.mark.parametrize(
    "source",
    [
        "from layers import Layer",
        "layer: Layer = Layer(config)",
        "class Own(Layer):\n    def __init__(self, layer: Layer) -> Layer:\n        super(Layer, self).__init__(layer)",
        "isinstance(layer, (Layer, Other))",
        "'Layer'",
        "LayerSpec",
    ],
)
def test_a_class_that_is_called_by_its_own_name_is_not_handed_on(source: str) -> None:
    assert not hands_on(source, "Layer")


def test_another_path_is_told_hook_by_hook_and_function_by_function() -> None:
    assert _otherwise(PATH, PATH) == {"hooks": {}, "functions": {}}
    other = {"hooks": {"hook": "verl.b:f"}, "functions": ["verl.a:g", "verl.b:f"], "raised": None}
    assert _otherwise(PATH, other) == {
        "hooks": {"hook": "verl.a:f → verl.b:f, in silence"},
        "functions": {
            "verl.a:f": "entered only where the package is there",
            "verl.b:f": "entered only without the package, in silence",
        },
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ModuleNotFoundError: No module named 'peft'", True),
        ("PEFT is not installed", True),
        ("Adding lora to: megatron.bridge.peft.lora, missing", False),
        ("using peft", False),
    ],
)
def test_a_line_says_that_a_package_is_absent(line: str, said: bool) -> None:
    assert _names_absence(line, Package("peft", "peft")) is said


def test_a_hidden_package_is_neither_found_nor_of_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert importlib.util.find_spec("deepdiff.helper") is not None
    monkeypatch.delitem(sys.modules, "deepdiff", raising=False)
    hide(Package("deepdiff", "deepdiff"))
    assert importlib.util.find_spec("deepdiff") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("deepdiff")
    assert importlib.util.find_spec("rich") is not None
    assert importlib.metadata.version("rich")
