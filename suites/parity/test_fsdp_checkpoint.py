"""Checkpoints of Megatron-FSDP: what is written, and what comes back when it is read."""

import pytest

from harness.pytest_plugin import Consistency, Parity

RANKS = ["fsdp2", "fsdp4", "fsdp8", "tp2"]
NORM, GATE = "module.decoder.final_layernorm.weight", "module.decoder.layers.1.mlp.linear_fc1.weight_w"


def test_functions_of_bridge(parity: Parity) -> None:
    parity("fsdp_functions")


@pytest.mark.parametrize("contents", ["model+optimizer+extra", "model"])
def test_written(parity: Parity, contents: str) -> None:
    parity("fsdp_checkpoint", contents=contents)


@pytest.mark.parametrize("strategy", ["no_shard", "optim_grads"])
def test_written_by_other_strategies(parity: Parity, strategy: str) -> None:
    parity("fsdp_checkpoint", strategy=strategy)


@pytest.mark.parametrize("layout", RANKS)
def test_written_by_ranks(parity: Parity, layout: str) -> None:
    parity("fsdp_checkpoint", layout=layout)


@pytest.mark.parametrize("layout", ["single", "ep2"])
def test_written_experts(parity: Parity, layout: str) -> None:
    parity("fsdp_checkpoint", hf_config="qwen3_moe", layout=layout)


def test_written_in_fp8(parity: Parity) -> None:
    parity("fsdp_checkpoint", fp8=True)


@pytest.mark.parametrize("written_by", ["own", "old", "new"])
def test_loaded(parity: Parity, written_by: str) -> None:
    parity("fsdp_load", written_by=written_by)


def test_loaded_experts(parity: Parity) -> None:
    parity("fsdp_load", hf_config="qwen3_moe")


def test_only_the_model_loaded(parity: Parity) -> None:
    parity("fsdp_load", loads="model")


@pytest.mark.parametrize("layout", RANKS)
def test_loaded_by_ranks(parity: Parity, layout: str) -> None:
    parity("fsdp_load", layout=layout)


@pytest.mark.parametrize(("written_layout", "layout"), [("single", "fsdp2"), ("fsdp2", "single")])
def test_loaded_by_another_number_of_ranks(parity: Parity, written_layout: str, layout: str) -> None:
    parity("fsdp_load", layout=layout, written_layout=written_layout)


@pytest.mark.regression("K23")
@pytest.mark.parametrize(("missing", "strict"), [(NORM, "absent"), (NORM, "true"), (GATE, "absent")])
def test_a_key_that_the_files_do_not_have(parity: Parity, missing: str, strict: str) -> None:
    parity("fsdp_load", missing=missing, strict=strict)


@pytest.mark.self_consistency
@pytest.mark.parametrize("layout", ["single", "fsdp2"])
def test_every_rank_has_the_same_optimizer_states(consistency: Consistency, layout: str) -> None:
    consistency("fsdp_optimizer_state", layout=layout)


@pytest.mark.regression("K23")
@pytest.mark.self_consistency
def test_a_load_without_an_error_loads_everything(consistency: Consistency) -> None:
    consistency("fsdp_partial_load")
