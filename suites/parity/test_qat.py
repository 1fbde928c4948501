"""Quantization-aware training: verl's patches, and what Megatron-Core and Megatron-Bridge do themselves since."""

import pytest

from harness.pytest_plugin import Consistency, Parity

PATCHES = ["applied", "twice", "reverted"]


def test_engine(parity: Parity) -> None:
    parity("qat_engine")


@pytest.mark.parametrize("layout", ["single", "tp2"])
def test_sharded_state(parity: Parity, layout: str) -> None:
    parity("qat_state", layout=layout)


def test_sharded_state_of_maxima_along_rows(parity: Parity) -> None:
    parity("qat_state", scheme="INT8_WEIGHT_ONLY_CFG", layout="tp2")


def test_sharded_state_of_experts(parity: Parity) -> None:
    parity("qat_state", hf_config="qwen3_moe", layout="ep2")


def test_global_names(parity: Parity) -> None:
    parity("qat_names", layout="ep2")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(("hf_config", "layout"), [("qwen3", "tp2"), ("qwen3_moe", "ep2")])
def test_gathered(parity: Parity, hf_config: str, layout: str, mapped: bool) -> None:
    parity("qat_export", hf_config=hf_config, exporter="bridge", mapped=mapped, layout=layout)


@pytest.mark.parametrize("mapped", [False, True])
def test_exported_for_the_rollout(parity: Parity, mapped: bool) -> None:
    parity("qat_export", hf_config="qwen3", mapped=mapped, layout="tp2")


@pytest.mark.self_consistency
@pytest.mark.parametrize("patch", ["reverted", "twice_reverted"])
def test_reverted_patches_leave_nothing(consistency: Consistency, patch: str) -> None:
    consistency("qat_revert", patch=patch)


@pytest.mark.regression("K21")
@pytest.mark.self_consistency
@pytest.mark.parametrize("patch", ["native", *PATCHES])
def test_every_expert_has_a_number_of_its_own(consistency: Consistency, patch: str) -> None:
    consistency("qat_expert_names", patch=patch, layout="ep2")


@pytest.mark.regression("K21")
@pytest.mark.self_consistency
@pytest.mark.parametrize("patch", PATCHES)
def test_patches_do_not_change_the_sharded_state(consistency: Consistency, patch: str) -> None:
    consistency("qat_patched_state", patch=patch)
