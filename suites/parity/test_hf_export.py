"""Hugging Face weights into a Megatron model and out again: no name dropped or changed, no row in another place."""

import pytest

from harness.pytest_plugin import Consistency, Parity

UNKNOWN = "model.layers.1.unknown.weight"
"""Transformers puts it into one file with tensors that Megatron-Bridge does export."""


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe", "llama", "qwen2"])
def test_exported(parity: Parity, hf_config: str) -> None:
    parity("hf_export", hf_config=hf_config)


@pytest.mark.parametrize("layout", ["tp2", "pp2"])
def test_exported_by_ranks(parity: Parity, layout: str) -> None:
    parity("hf_export", layout=layout)


def test_exported_experts(parity: Parity) -> None:
    parity("hf_export", hf_config="qwen3_moe", layout="ep2")


def test_exported_in_several_files(parity: Parity) -> None:
    parity("hf_export", shard_size="100KB")


@pytest.mark.regression("K20")
@pytest.mark.parametrize("strict", ["absent", "true", "false"])
def test_a_file_of_which_one_tensor_is_missing(parity: Parity, strict: str) -> None:
    parity("hf_export", strict=strict, surplus=UNKNOWN, shard_size="100KB")


@pytest.mark.regression("K20")
@pytest.mark.self_consistency
def test_an_export_without_an_error_is_complete(consistency: Consistency) -> None:
    consistency("hf_complete_export")
