"""Each stack against itself: what must agree within one stack, whatever another stack does."""

import pytest

from harness.pytest_plugin import Consistency

pytestmark = pytest.mark.self_consistency


@pytest.mark.parametrize("layout", ["single", "dp2", "tp2_sp", "pp2", "tp2_pp2"])
def test_process_groups(consistency: Consistency, layout: str) -> None:
    consistency("process_groups", hf_config="qwen3", layout=layout)


def test_process_groups_of_virtual_stages(consistency: Consistency) -> None:
    consistency("process_groups", hf_config="qwen3", layers=4, layout="vpp2")


@pytest.mark.parametrize("layout", ["single", "ep2", "tp2_ep2", "tp2_etp1", "etp2"])
def test_process_groups_of_experts(consistency: Consistency, layout: str) -> None:
    consistency("process_groups", layout=layout)


@pytest.mark.parametrize("layout", ["cp2", "tp2_sp_cp2"])
def test_sizes_of_groups_without_a_model(consistency: Consistency, layout: str) -> None:
    consistency("process_group_sizes", layout=layout)


@pytest.mark.parametrize("layout", ["vpp2", "tp2_sp_cp2", "tp2_ep2", "tp2_etp1"])
def test_sizes_of_groups_on_the_vanilla_branch(consistency: Consistency, layout: str) -> None:
    consistency("process_group_sizes", branch="vanilla", layout=layout)
