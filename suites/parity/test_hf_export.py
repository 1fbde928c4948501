"""Hugging Face weights into a Megatron model and out again: no name dropped or changed, no row in another place."""

import pytest

from harness.pytest_plugin import Parity

MODELS = ["qwen3", "qwen3_moe", "llama", "qwen2"]
UNKNOWN = "model.layers.1.unknown.weight"
"""Transformers puts it into one file with tensors that Megatron-Bridge does export."""


@pytest.mark.parametrize("hf_config", MODELS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_exported(parity: Parity, hf_config: str, dtype: str) -> None:
    parity("hf_export", hf_config=hf_config, dtype=dtype)


@pytest.mark.parametrize("layout", ["tp2", "pp2"])
def test_exported_by_ranks(parity: Parity, layout: str) -> None:
    parity("hf_export", layout=layout)


def test_exported_experts(parity: Parity) -> None:
    parity("hf_export", hf_config="qwen3_moe", layout="ep2")


@pytest.mark.regression("K20")
@pytest.mark.parametrize("strict", ["absent", "true", "false"])
@pytest.mark.parametrize("surplus", ["none", UNKNOWN])
def test_a_file_of_which_one_tensor_is_missing(parity: Parity, surplus: str, strict: str) -> None:
    parity("hf_export", strict=strict, surplus=surplus, shard_size="100KB")
