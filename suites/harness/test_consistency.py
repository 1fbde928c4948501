"""Parts of the checks of one stack that no fault in a rank can reach."""

import importlib.metadata
import importlib.util
import sys

import pytest

from harness.probes._without import Package
from harness.probes.consistency.feature_tests import _answer, _Own, _tests
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
