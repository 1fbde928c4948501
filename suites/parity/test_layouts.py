"""A training step in every layout: the products too, where defaults matter that no two ranks show."""

import pytest

from harness.layouts import LAYOUTS
from harness.pytest_plugin import Parity

SHARDED = ("cp2", "tp2_sp_cp2", "cp4", "tp2_cp2_ep2_dp2")
"""Layouts whose attention needs Transformer Engine."""

DENSE = ("vpp2", "tp2_pp2", "tp2_dp2", "pp2_vpp2_dp2", "pp4_dp2", "tp2_pp2_vpp2_dp2")
EXPERTS = ("vpp2", "tp2_etp1", "etp2", "tp2_ep2", "pp2_ep2", "ep4", "tp4_pp2_ep4")


def test_every_layout_is_run() -> None:
    elsewhere = {"single", "dp2", "tp2", "tp2_sp", "pp2", "ep2"}
    fully_sharded = {name for name, layout in LAYOUTS.items() if layout.fully_sharded}
    assert {*SHARDED, *DENSE, *EXPERTS, *elsewhere, *fully_sharded} == set(LAYOUTS)


@pytest.mark.parametrize("layout", DENSE)
def test_dense(parity: Parity, layout: str) -> None:
    parity("training_step", hf_config="qwen3_deep", layout=layout)


@pytest.mark.parametrize("layout", EXPERTS)
def test_experts(parity: Parity, layout: str) -> None:
    parity("training_step", hf_config="qwen3_moe_deep", layout=layout)


@pytest.mark.parametrize("new_layout", ["pp2", "vpp2", "tp2_dp2", "tp2_pp2"])
def test_against_one_rank(parity: Parity, new_layout: str) -> None:
    parity("training_step", hf_config="qwen3_deep", old_layout="single", new_layout=new_layout)


@pytest.mark.parametrize("new_layout", ["tp2_ep2", "ep4"])
def test_experts_against_one_rank(parity: Parity, new_layout: str) -> None:
    parity("training_step", hf_config="qwen3_moe_deep", old_layout="single", new_layout=new_layout)


@pytest.mark.regression("K17")
@pytest.mark.parametrize("written_by", ["own", "old", "new"])
@pytest.mark.parametrize("layout", ["tp2_pp2", "pp4_dp2"])
def test_adapters_are_resumed(parity: Parity, layout: str, written_by: str) -> None:
    parity("adapter_resume", hf_config="qwen3_deep", layout=layout, written_by=written_by)
