"""The DDP configuration that reaches `provide_distributed_model` inside each stack's own `make_megatron_module`."""

import pytest

from harness.pytest_plugin import Parity


@pytest.mark.parametrize(
    "variant", ["default", "distributed_optimizer_off", "overrides", "fsdp", "fsdp_overrides", "no_wrap"]
)
def test_ddp_config(parity: Parity, variant: str) -> None:
    parity("ddp_config", variant=variant)
