"""Quantization-aware training: verl's patches, and what Megatron-Core and Megatron-Bridge do themselves since."""

import pytest

from harness.pytest_plugin import Parity

USES = ["native", "applied", "twice", "reverted"]


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
def test_engine(parity: Parity, hf_config: str) -> None:
    parity("qat_engine", hf_config=hf_config)


@pytest.mark.parametrize("patch", ["applied", "twice", "reverted", "twice_reverted"])
def test_what_patches_leave(parity: Parity, patch: str) -> None:
    parity("qat_patch", patch=patch)


@pytest.mark.regression("K21")
@pytest.mark.parametrize("patch", USES)
@pytest.mark.parametrize("layout", ["single", "tp2"])
def test_sharded_state(parity: Parity, patch: str, layout: str) -> None:
    parity("qat_state", patch=patch, layout=layout)


@pytest.mark.parametrize("layout", ["single", "tp2"])
def test_sharded_state_of_maxima_along_rows(parity: Parity, layout: str) -> None:
    parity("qat_state", scheme="INT8_WEIGHT_ONLY_CFG", layout=layout)


@pytest.mark.parametrize("layout", ["single", "ep2"])
def test_sharded_state_of_experts(parity: Parity, layout: str) -> None:
    parity("qat_state", hf_config="qwen3_moe", layout=layout)


@pytest.mark.regression("K21")
@pytest.mark.parametrize("patch", USES)
@pytest.mark.parametrize("layout", ["single", "ep2", "pp2"])
def test_global_names(parity: Parity, patch: str, layout: str) -> None:
    parity("qat_names", patch=patch, layout=layout)


@pytest.mark.regression("K21")
@pytest.mark.parametrize("patch", USES)
@pytest.mark.parametrize("layout", ["single", "ep2"])
def test_gathered_experts(parity: Parity, patch: str, layout: str) -> None:
    parity("qat_export", exporter="bridge", patch=patch, layout=layout)


@pytest.mark.parametrize(
    ("hf_config", "layout"), [("qwen3", "single"), ("qwen3", "tp2"), ("qwen3_moe", "single"), ("qwen3_moe", "ep2")]
)
@pytest.mark.parametrize("patch", ["native", "applied"])
def test_exported_for_the_rollout(parity: Parity, hf_config: str, layout: str, patch: str) -> None:
    parity("qat_export", hf_config=hf_config, patch=patch, layout=layout)
