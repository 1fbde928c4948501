"""Strategies: model configs with a `lora` section in every form in which one may come, and with values of any type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from real_configs import Fields, common, few, typed

from harness.probes._values import Description

Descriptions = st.SearchStrategy[Description]

_LIKELY: Mapping[str, list[Description]] = {
    "rank": [8, 1, 0, -1, None, "8", 2.5],
    "dim": [4, 0],
    "type": ["lora", "dora", "canonical_lora", "vlm_lora", "unknown", "LoRA", "", None, 1],
    "dtype": [None, "bfloat16", "bf16", "float32", "fp16", "half", "16-mixed", "float64", "int8", "no such", 32],
    "target_modules": [["list", *names] for names in (["linear_qkv"], ["linear_q"], ["*.linear_fc1", "linear_proj"])],
    "exclude_modules": [["list", "*.linear_fc2"]],
    "dropout_position": ["pre", "post"],
    "lora_A_init_method": ["xavier", "kaiming", "normal", "uniform"],
    "adapter_path": [None, "", "folder"],
    "no_such_field": [1],
}
"""What a user may write."""
_ANY = [None, True, 0, -1, 2.5, "", "8", "no such", "???", "${.rank}", "${.no_such_key}", ["list"], ["dict"]]
"""What YAML can say of any key, OmegaConf's values that are missing or refer to others among it."""
_BASE_CONFIG = ["py", "pkgutil.resolve_name('verl.base_config:BaseConfig')"]
_PLAIN = ("None", "bool", "int", "float", "str")
"""Types of which OmegaConf takes every value."""
_TYPES = ("lora", "dora", "canonical_lora", "vlm_lora")
_FIRST = (["rank", "type"], ["rank", "type"], ["rank", "type"], ["rank"], ["type"], [])
_ASKED, _NOT_ASKED = ("dict", "DictConfig", "base_config"), ("dataclass", "object", "None", "missing")
"""Forms that can be asked for a key, and those that cannot."""


def in_form(form: str, pairs: Sequence[Any]) -> Description:
    """A model config whose section has these keys and values, in a form."""
    section = ["dict", *pairs]
    forms: Mapping[str, Description] = {
        "dict": section,
        "DictConfig": ["call", "omegaconf.OmegaConf.create", section],
        "dataclass": ["call", "with_fields", section],
        "base_config": ["call", "with_fields", section, _BASE_CONFIG],
        "object": ["of", "types.SimpleNamespace()", *pairs],
        "None": None,
    }
    given = [] if form == "missing" else ["lora", forms[form]]
    return ["of", "types.SimpleNamespace()", *given]


def peft_sections(of_each: Sequence[Sequence[Fields]]) -> Descriptions:
    """Model configs; `of_each` are the fields of the PEFT classes in each stack."""
    fields = _plain_fields(of_each)
    values = {
        name: st.one_of(
            *([typed(fields[name])] if fields.get(name) else []),
            st.sampled_from(_LIKELY.get(name, _ANY)),
            st.sampled_from(_ANY),
        )
        for name in fields.keys() | _LIKELY.keys()
    }
    # Most have a rank and a type: of others nothing is made, or an error.
    values["rank"] |= st.just(8) | st.just(8)
    values["type"] |= st.sampled_from(_TYPES) | st.sampled_from(_TYPES)
    others = st.lists(st.sampled_from(sorted(values.keys() - {"rank", "type"})), max_size=3, unique=True)
    names = st.builds(lambda first, more: [*first, *more], st.sampled_from(_FIRST), others)

    @st.composite
    def config(draw: st.DrawFn) -> Description:
        form = draw(st.sampled_from([*_ASKED * 3, *_NOT_ASKED]))
        return in_form(form, [part for name in draw(names) for part in (name, draw(values[name]))])

    return config()


def single_keys(of_each: Sequence[Sequence[Fields]]) -> list[Description]:
    """Model configs with a section of a rank and a type, in every form, and one key more."""
    fields = _plain_fields(of_each)
    keys = [
        (name, value)
        for name in sorted(fields.keys() | _LIKELY.keys())
        for value in (*_LIKELY.get(name, ()), *few(fields.get(name, [])), *_ANY)
    ]
    return [
        *(in_form(form, ["rank", 8]) for form in (*_ASKED, *_NOT_ASKED)),
        *(in_form(form, ["rank", 8, "type", kind, *key]) for form in _ASKED for kind in _TYPES for key in ([], *keys)),
        *(in_form(form, key) for form in _ASKED for key in keys),
    ]


def _plain_fields(of_each: Sequence[Sequence[Fields]]) -> Fields:
    """The fields that all stacks have, with the alternatives of their types of which OmegaConf takes every value."""
    fields = common([joined(classes) for classes in of_each])
    return {name: [each for each in types if each in _PLAIN] for name, types in fields.items()}


def joined(of_each: Sequence[Fields]) -> dict[str, list[Any]]:
    """The fields that any has, with all alternatives of their types."""
    found: dict[str, list[Any]] = {}
    for fields in of_each:
        for name, types in fields.items():
            found.setdefault(name, []).extend(each for each in types if each not in found.get(name, []))
    return found
