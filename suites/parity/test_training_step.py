"""One training step of a tiny model: loss, logits, every gradient, the updated parameters."""

import pytest

from harness.compare import Expectation
from harness.pytest_plugin import Parity


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("layout", ["single", "dp2", "tp2_sp"])
def test_training_step(parity: Parity, hf_config: str, layout: str) -> None:
    parity("training_step", hf_config=hf_config, layout=layout)


def test_tensor_parallel_without_sequence_parallel(parity: Parity) -> None:
    parity("training_step", layout="tp2")


def test_experts_need_sequence_parallel(parity: Parity) -> None:
    refused = Expectation(
        type="builtins:ValueError",
        message="During training, performance may degrade if MoE and tensor parallelismare enabled *",
        origin="megatron.core.transformer.moe.moe_layer:MoELayer.forward",
    )
    parity("training_step", hf_config="qwen3_moe", layout="tp2", expects=refused)


def test_experts_across_ranks(parity: Parity) -> None:
    parity("training_step", hf_config="qwen3_moe", layout="ep2")


@pytest.mark.parametrize("hf_config", ["llama", "qwen2", "deepseek_v3"])
def test_other_architectures(parity: Parity, hf_config: str) -> None:
    parity("training_step", hf_config=hf_config)


@pytest.mark.parametrize("layout", ["single", "dp2"])
def test_bfloat16(parity: Parity, layout: str) -> None:
    parity("training_step", dtype="bfloat16", layout=layout)


@pytest.mark.parametrize("layout", ["single", "dp2"])
def test_float16_needs_the_optimizer_of_transformer_engine(parity: Parity, layout: str) -> None:
    refused = Expectation(
        type="builtins:RuntimeError",
        message="--use-precision-aware-optimizer requires FusedAdam from TransformerEngine, but not found.",
        origin="megatron.core.optimizer.optimizer_config:OptimizerConfig.__post_init__",
    )
    parity("training_step", dtype="float16", layout=layout, expects=refused)


@pytest.mark.parametrize("layout", ["single", "dp2"])
def test_without_the_distributed_optimizer(parity: Parity, layout: str) -> None:
    parity("training_step", distributed_optimizer=False, layout=layout)


@pytest.mark.parametrize("hf_config", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("layout", ["single", "tp2_sp"])
def test_seeded_initialisation(parity: Parity, hf_config: str, layout: str) -> None:
    parity("training_step", hf_config=hf_config, seeded_init=True, layout=layout)


@pytest.mark.parametrize("new_layout", ["tp2", "dp2", "pp2"])
def test_another_layout(parity: Parity, new_layout: str) -> None:
    parity("training_step", old_layout="single", new_layout=new_layout)


def test_another_layout_of_experts(parity: Parity) -> None:
    parity("training_step", hf_config="qwen3_moe", old_layout="single", new_layout="ep2")
