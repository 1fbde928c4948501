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


@pytest.mark.regression("K13")
@pytest.mark.parametrize("package", ["verl", "megatron.core", "megatron.bridge", "mbridge", "core alone"])
def test_calls_pass_what_callees_take(consistency: Consistency, package: str) -> None:
    consistency("call_arguments", package=package)


@pytest.mark.parametrize("package", ["verl", "megatron.bridge", "mbridge"])
def test_overridden_methods(consistency: Consistency, package: str) -> None:
    consistency("overridden_methods", package=package)


@pytest.mark.regression("K02", "K12")
@pytest.mark.parametrize("package", ["verl", "megatron.bridge", "mbridge"])
def test_feature_tests_by_name(consistency: Consistency, package: str) -> None:
    consistency("feature_tests", package=package)


@pytest.mark.regression("K13")
def test_import_order(consistency: Consistency) -> None:
    consistency("import_order")
