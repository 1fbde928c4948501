"""The vanilla branch: does mbridge build the model that Megatron-Bridge builds, and does that model learn alike?"""

import pytest

from harness.pytest_plugin import Consistency, Parity

pytestmark = pytest.mark.regression("K06", "K12")


@pytest.mark.self_consistency
@pytest.mark.parametrize("hf_config", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_vanilla_model(consistency: Consistency, hf_config: str) -> None:
    consistency("vanilla_model", hf_config=hf_config)


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("layout", ["single", "dp2"])
def test_training_step(parity: Parity, hf_config: str, layout: str) -> None:
    parity("training_step", hf_config=hf_config, branch="vanilla", layout=layout)


@pytest.mark.regression("K09")
def test_training_step_without_the_distributed_optimizer(parity: Parity) -> None:
    parity("training_step", distributed_optimizer=False, branch="vanilla", layout="dp2")
