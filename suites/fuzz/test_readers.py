"""Upstream readers of configs, old against new: `adapter_path`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import reader_probes
from conversation import Stacks, ask_all
from descriptions import batches
from fuzzing import Fuzz
from hypothesis import strategies as st

ALL = ["verl-0.7.1", "verl-0.8.0", "verl-0.9.1"]
FORMS = ["dict", "dictconfig", "dataclass", "base_config", "object", "none"]


def talk(stacks: Stacks, name: str, probe: str) -> Any:
    return stacks.talk(name, f"{reader_probes.__file__}::{probe}")


# adapter_path ---------------------------------------------------------------------------------------------------------

READS = {
    "verl-0.7.1": {"dict": "never", "dictconfig": "path", "dataclass": "path", "object": "path", "none": "never"},
    "verl-0.8.0": {"dict": "path", "dictconfig": "path", "dataclass": "raises", "object": "raises", "none": "raises"},
}
READS["verl-0.7.1"]["base_config"] = READS["verl-0.8.0"]["base_config"] = "path"
READS["verl-0.9.1"] = READS["verl-0.8.0"]
"""What a stack reads of `adapter_path`, by the form of the section: 0.7.1 asks for an attribute, others for a key."""


def test_adapter_path_is_read_as_its_form_allows(fuzz: Fuzz, stacks: Stacks) -> None:
    talks = [talk(stacks, name, "adapter_paths") for name in ALL]
    forms = st.sampled_from([*FORMS, "absent", "none_path", "empty"])
    questions = st.builds(lambda given, path: {"given": given, "path": path}, forms, st.text(max_size=6))

    def check(asked: list[Any]) -> None:
        for name, answers in zip(ALL, ask_all(talks, asked), strict=True):
            for question, answer in zip(asked, answers, strict=True):
                assert reading(answer) == expected_reading(name, question), (name, question, answer)

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
