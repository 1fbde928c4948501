"""Two engines in one process: the second must be like one that had the process for itself."""

import pytest

from harness.pytest_plugin import Consistency

pytestmark = [pytest.mark.self_consistency, pytest.mark.regression("K14")]


@pytest.mark.parametrize("hf_config", ["glm4_moe", "qwen3_5", "qwen3"])
@pytest.mark.parametrize("shared", ["model", "engine", "both"])
def test_second_engine(consistency: Consistency, hf_config: str, shared: str) -> None:
    consistency("second_engine", hf_config=hf_config, shared=shared)


@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
def test_policy_after_a_critic_of_the_same_model(consistency: Consistency, branch: str) -> None:
    consistency("second_engine", hf_config="qwen2", first="critic", branch=branch)
