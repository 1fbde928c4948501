"""The DDP configuration that reaches the data parallel wrapper, on either branch of verl."""

import pytest

from harness.pytest_plugin import Parity

PLAIN = [
    "default",
    "distributed_optimizer_off",
    "override_turns_it_off",
    "override_turns_it_on",
    "overrides",
    "reduce_in_low_precision",
]


@pytest.mark.regression("K08", "K09")
@pytest.mark.parametrize("variant", [*PLAIN, "no_wrap"])
@pytest.mark.parametrize("branch", ["bridge", "vanilla"])
def test_ddp_config(parity: Parity, variant: str, branch: str) -> None:
    parity("ddp_config", variant=variant, branch=branch)


@pytest.mark.parametrize(
    "variant",
    [
        "fsdp",
        "fsdp_overrides",
        "fsdp_distributed_optimizer_off",
        "fsdp_contradicted",
        "override_turns_fsdp_on",
        "fsdp_no_wrap",
    ],
)
def test_megatron_fsdp(parity: Parity, variant: str) -> None:
    parity("ddp_config", variant=variant)


def test_an_override_that_no_field_takes(parity: Parity) -> None:
    parity("ddp_config", variant="unknown_field")


@pytest.mark.regression("K06", "K09", "K12")
@pytest.mark.parametrize("variant", PLAIN)
def test_what_the_wrapper_of_the_vanilla_branch_gets(parity: Parity, variant: str) -> None:
    parity("vanilla_ddp_config", variant=variant)
