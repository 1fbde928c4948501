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


@pytest.mark.parametrize("fields", ["default", "plain", "rope", "tied", "layers", "routing"])
def test_hf_config_round_trip(consistency: Consistency, fields: str) -> None:
    consistency("hf_round_trip", fields=fields)


@pytest.mark.parametrize(
    "of",
    [
        "optimizer",
        "optimizer_overrides",
        "ddp_overrides",
        "transformer_overrides",
        "vanilla_overrides",
        "peft",
    ],
)
def test_settings_arrive(consistency: Consistency, of: str) -> None:
    consistency("user_settings", of=of)


@pytest.mark.regression("K07")
@pytest.mark.stacks("verl-0.9.1-bridge-0.4")
def test_settings_of_muon_arrive(consistency: Consistency) -> None:
    consistency("user_settings", of="muon")


@pytest.mark.regression("K11")
@pytest.mark.parametrize(
    "package", ["apex", "energon", "flash_attn", "mbridge", "modelopt", "peft", "transformer_engine"]
)
def test_without_an_optional_package(consistency: Consistency, package: str) -> None:
    consistency("without_package", package=package)


@pytest.mark.regression("K17", "K19", "K24")
@pytest.mark.stacks("verl-0.7.1", "verl-0.8.0", "verl-0.9.1")
@pytest.mark.parametrize("kind", ["core", "distributed", "adapter", "hugging_face", "config"])
def test_save_and_load(consistency: Consistency, kind: str, writer: str) -> None:
    consistency("checkpoint_read", kind=kind, written_by=writer)


PEFT = ["lora", "canonical_lora", "dora"]
MODULES = {
    "attention": "qwen3",
    "dense_mlp": "qwen3",
    "experts": "qwen3_moe",
    "router": "qwen3_moe",
    "shared_experts": "glm4_moe",
}


@pytest.mark.parametrize("on", MODULES)
@pytest.mark.parametrize("peft", PEFT)
def test_adapters_are_saved_and_loaded(consistency: Consistency, peft: str, on: str) -> None:
    consistency("checkpoint_read", kind="adapter", peft=peft, on=on, hf_config=MODULES[on])


@pytest.mark.parametrize("on", MODULES)
@pytest.mark.parametrize("peft", PEFT)
def test_adapters_are_merged(consistency: Consistency, peft: str, on: str) -> None:
    consistency("adapter_merge", peft=peft, on=on, hf_config=MODULES[on])


@pytest.mark.regression("K14")
@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe", "glm4_moe"])
def test_engines_in_turn(consistency: Consistency, hf_config: str, branch: str) -> None:
    consistency("engines_in_turn", hf_config=hf_config, branch=branch, overrides={"attention_backend": "unfused"})
