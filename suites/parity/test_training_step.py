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


@pytest.mark.parametrize("hf_config", ["llama", "qwen2", "deepseek_v3", "glm4_moe"])
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
    # On GPUs Transformer Engine is there, or not: suites/parity/test_gpu_steps.py steps in float16 with it.
    parity("training_step", dtype="float16", layout=layout, expects=refused, lanes=["cpu"])


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


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputed_activations(parity: Parity, recompute: str) -> None:
    # On GPUs verl's backward of `selective` reads memory that it has freed (golden/FINDINGS.md): no rank survives it.
    parity("training_step", recompute=recompute, lanes=["cpu"] if recompute == "selective" else ["cpu", "cuda"])


@pytest.mark.regression("K08")
@pytest.mark.parametrize("given", [True, False])
def test_gradients_reduced_as_the_user_says(parity: Parity, given: bool) -> None:
    parity("training_step", dtype="bfloat16", override_ddp_config={"grad_reduce_in_fp32": given}, layout="dp2")


@pytest.mark.parametrize("distributed_optimizer", [True, False])
@pytest.mark.parametrize("layout", ["single", "dp2"])
def test_optimizer_state_after_three_steps(parity: Parity, distributed_optimizer: bool, layout: str) -> None:
    parity("training_step", distributed_optimizer=distributed_optimizer, steps=3, layout=layout)


def test_three_steps_across_tensor_parallel_ranks(parity: Parity) -> None:
    parity("training_step", steps=3, layout="tp2_sp")


@pytest.mark.parametrize("balancing", ["aux_loss", "seq_aux_loss", "global_aux_loss", "z_loss", "mixed", "expert_bias"])
def test_balanced_experts(parity: Parity, balancing: str) -> None:
    parity("moe_step", balancing=balancing)


@pytest.mark.parametrize("balancing", ["aux_loss", "expert_bias"])
@pytest.mark.parametrize("layout", ["ep2", "tp2_sp"])
def test_balanced_experts_across_ranks(parity: Parity, balancing: str, layout: str) -> None:
    parity("moe_step", balancing=balancing, layout=layout)


def test_bias_of_experts_after_three_steps(parity: Parity) -> None:
    parity("moe_step", balancing="expert_bias", steps=3)


@pytest.mark.parametrize("peft", ["lora", "dora", "canonical_lora"])
@pytest.mark.parametrize("layout", ["single", "tp2"])
def test_adapters_learn(parity: Parity, peft: str, layout: str) -> None:
    parity("lora_step", peft=peft, layout=layout)


@pytest.mark.regression("K16")
def test_dora_with_the_alpha_of_the_user(parity: Parity) -> None:
    parity("lora_step", peft="dora", alpha=32)


@pytest.mark.parametrize("layout", ["single", "ep2"])
def test_adapters_of_experts_learn(parity: Parity, layout: str) -> None:
    parity("lora_step", hf_config="qwen3_moe", layout=layout)


@pytest.mark.parametrize("layout", ["single", "dp2"])
def test_adapters_after_three_steps(parity: Parity, layout: str) -> None:
    parity("lora_step", steps=3, layout=layout)


@pytest.mark.regression("K13")
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
def test_multi_token_prediction(parity: Parity, recompute: str) -> None:
    parity("mtp_step", recompute=recompute)


@pytest.mark.regression("K13")
def test_multi_token_prediction_apart_from_the_encoder(parity: Parity) -> None:
    parity("mtp_step", recompute="full", detach_encoder=True)
