"""Training steps on GPUs, of models wide enough to meet the kernels of real ones, with both kinds of layers.

Layouts with more ranks than the host has GPUs are `not_run`. See `suites/GPU.md`.
"""

import pytest

from harness.pytest_plugin import Parity

DENSE = ("single", "dp2", "tp2", "tp2_sp", "pp2", "vpp2", "tp2_pp2", "tp2_dp2", "pp2_vpp2_dp2", "pp4_dp2")
EXPERTS = ("single", "dp2", "tp2_sp", "pp2", "vpp2", "ep2", "tp2_ep2", "pp2_ep2", "ep4", "tp4_pp2_ep4")
SHARED_SEQUENCES = ("cp2", "cp4", "tp2_sp_cp2", "tp2_cp2_ep2_dp2")
SPECS = ("local", "transformer_engine")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("layout", DENSE)
def test_dense(parity: Parity, layout: str, spec: str) -> None:
    parity("training_step", hf_config="qwen3_wide", dtype="bfloat16", spec=spec, layout=layout, lanes=["cuda"])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("layout", EXPERTS)
def test_experts(parity: Parity, layout: str, spec: str) -> None:
    parity("training_step", hf_config="qwen3_moe_wide", dtype="bfloat16", spec=spec, layout=layout, lanes=["cuda"])


@pytest.mark.parametrize("hf_config", ["qwen3_wide", "qwen3_moe_wide"])
@pytest.mark.parametrize("layout", SHARED_SEQUENCES)
def test_shared_sequences(parity: Parity, layout: str, hf_config: str) -> None:
    parity(
        "training_step",
        hf_config=hf_config,
        dtype="bfloat16",
        spec="transformer_engine",
        layout=layout,
        lanes=["cuda"],
    )


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("layout", ["single", "dp2", "tp2"])
def test_float32(parity: Parity, layout: str, spec: str) -> None:
    parity("training_step", hf_config="qwen3_wide", spec=spec, layout=layout, lanes=["cuda"])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("layout", ["single", "dp2"])
def test_without_the_distributed_optimizer(parity: Parity, layout: str, spec: str) -> None:
    parity(
        "training_step",
        hf_config="qwen3_wide",
        dtype="bfloat16",
        distributed_optimizer=False,
        spec=spec,
        layout=layout,
        lanes=["cuda"],
    )


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("layout", ["single", "dp2"])
def test_gradients_reduced_in_float32_on_both_sides(parity: Parity, layout: str, spec: str) -> None:
    parity(
        "training_step",
        hf_config="qwen3_moe_wide",
        dtype="bfloat16",
        override_ddp_config={"grad_reduce_in_fp32": True},
        spec=spec,
        layout=layout,
        lanes=["cuda"],
    )


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputed_activations(parity: Parity, recompute: str) -> None:
    parity(
        "training_step",
        hf_config="qwen3_wide",
        dtype="bfloat16",
        spec="transformer_engine",
        recompute=recompute,
        lanes=["cuda"],
    )


def test_latent_attention(parity: Parity) -> None:
    parity("training_step", hf_config="deepseek_v3", dtype="bfloat16", spec="transformer_engine", lanes=["cuda"])


@pytest.mark.parametrize("hf_config", ["qwen3_wide", "deepseek_v3"])
def test_half_precision(parity: Parity, hf_config: str) -> None:
    parity("training_step", hf_config=hf_config, dtype="float16", spec="transformer_engine", lanes=["cuda"])


@pytest.mark.parametrize("new_layout", ["dp2", "tp2", "pp2", "cp2"])
def test_against_one_gpu(parity: Parity, new_layout: str) -> None:
    parity(
        "training_step",
        hf_config="qwen3_wide",
        spec="transformer_engine",
        old_layout="single",
        new_layout=new_layout,
        lanes=["cuda"],
    )
