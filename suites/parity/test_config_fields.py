"""Fields and defaults of the config dataclasses that verl fills, its own included."""

import pytest

from harness.pytest_plugin import Parity


@pytest.mark.regression("K03", "K05", "K07")
@pytest.mark.parametrize(
    "of",
    [
        "transformer",
        "mla",
        "ddp",
        "optimizer",
        "bridge_ddp",
        "bridge_optimizer",
        "gpt_provider",
        "mla_provider",
        "verl_engine",
        "verl_optimizer",
        "verl_model",
    ],
)
def test_config_fields(parity: Parity, of: str) -> None:
    parity("config_fields", of=of)
