"""Where the elements of a sharded parameter belong in the whole."""

from types import SimpleNamespace

import pytest

from harness.probes._weights import _holds_gate_and_up

FC1 = "decoder.layers.0.mlp.linear_fc1"


@pytest.mark.parametrize(
    ("name", "dim", "fused"),
    [
        (f"{FC1}.weight", 0, True),
        (f"{FC1}.to_wrap.weight", 0, True),
        (f"{FC1}.adapter.linear_out.weight", 0, True),
        (f"{FC1}.adapter.linear_in.weight", 0, False),
        (f"{FC1}.adapter.adapter_gate.linear_out.weight", 0, False),
        (f"{FC1}.adapter.adapter_up.linear_out.weight", 0, False),
        ("decoder.layers.0.mlp.linear_fc2.weight", 1, False),
    ],
)
def test_gate_and_up_share_a_matrix_only_where_the_mlp_is_fused(name: str, dim: int, fused: bool) -> None:
    parameter = SimpleNamespace(partition_dim=dim)
    for gated in (True, False):
        model = SimpleNamespace(config=SimpleNamespace(gated_linear_unit=gated))
        assert _holds_gate_and_up(model, name, parameter) == (fused and gated)
