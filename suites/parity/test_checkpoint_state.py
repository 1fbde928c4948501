"""Keys and sharded metadata of a checkpoint: model, optimizer and extra states, with and without adapters."""

import pytest

from harness.pytest_plugin import Parity

CONTENTS = ["model+optimizer+extra", "model", "optimizer+extra", "extra"]
PEFT = ["none", "lora"]
CHUNKS = pytest.mark.parametrize(("layers", "layout"), [(2, "single"), (4, "vpp2")], ids=["one_chunk", "two_chunks"])


@CHUNKS
@pytest.mark.parametrize("peft", PEFT)
@pytest.mark.parametrize("contents", CONTENTS)
def test_generated(parity: Parity, layers: int, layout: str, contents: str, peft: str) -> None:
    through = "generate_state_dict"
    parity("checkpoint_state", layers=layers, through=through, contents=contents, peft=peft, layout=layout)


@CHUNKS
@pytest.mark.parametrize("peft", PEFT)
@pytest.mark.parametrize("contents", ["model+optimizer+extra", "optimizer+extra"])
def test_saved(parity: Parity, layers: int, layout: str, contents: str, peft: str) -> None:
    parity("checkpoint_state", layers=layers, contents=contents, peft=peft, layout=layout)


@CHUNKS
@pytest.mark.parametrize("peft", PEFT)
def test_loaded(parity: Parity, layers: int, layout: str, peft: str) -> None:
    parity("checkpoint_state", layers=layers, through="load", peft=peft, layout=layout)


@pytest.mark.parametrize("peft", ["dora", "canonical_lora"])
def test_other_adapters(parity: Parity, peft: str) -> None:
    parity("checkpoint_state", peft=peft)


@pytest.mark.parametrize("peft", PEFT)
@pytest.mark.parametrize("layout", ["tp2", "dp2", "pp2"])
def test_saved_by_ranks(parity: Parity, layout: str, peft: str) -> None:
    parity("checkpoint_state", peft=peft, layout=layout)


@pytest.mark.parametrize("peft", PEFT)
@pytest.mark.parametrize("layout", ["single", "ep2"])
def test_experts(parity: Parity, layout: str, peft: str) -> None:
    parity("checkpoint_state", hf_config="qwen3_moe", peft=peft, layout=layout)


@pytest.mark.parametrize("optimizer", ["fully_reshardable", "not_distributed"])
def test_other_optimizer_formats(parity: Parity, optimizer: str) -> None:
    parity("checkpoint_state", optimizer=optimizer, contents="model+optimizer", layout="dp2")


@CHUNKS
@pytest.mark.parametrize("contents", ["optimizer", "model+optimizer"])
def test_keys_that_begin_with_model(parity: Parity, layers: int, layout: str, contents: str) -> None:
    asked = {"through": "generate_state_dict", "contents": contents, "surplus": "model7+modelopt_state+model0x"}
    parity("checkpoint_state", layers=layers, layout=layout, **asked)


def test_which_keys_are_of_a_model(parity: Parity) -> None:
    parity("model_state_key")
