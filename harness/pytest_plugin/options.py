"""The options of pytest that choose the sides, and what ends a run before anything is collected."""

from __future__ import annotations

import sys

import pytest

from harness.stacks import StackError, changed_stack, load_settings
from harness.workers.protocol import Limits


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that choose the sides."""
    group = parser.getgroup("parity", "old against new")
    group.addoption("--old", metavar="STACK", help="stack of the old side (default: [tool.parity] old)")
    group.addoption("--new", metavar="STACK", help="stack of the new side (default: [tool.parity] new)")
    for name, side in (("--pin", "both sides"), ("--old-pin", "the old side"), ("--new-pin", "the new side")):
        group.addoption(
            name,
            action="append",
            default=[],
            metavar="PIN",
            help=f"override a pin of {side} for this run: NAME==VERSION, NAME=path:DIR or NAME=git:SOURCE@REVISION",
        )
    group.addoption("--base", metavar="PYTHON", help="`current` or an interpreter to use instead of the locked base")
    group.addoption("--bundle", metavar="DIR", help="take both stacks from this bundle, see `parity bundle`")
    group.addoption("--clone", action="append", default=[], metavar="NAME=DIR", help="local clone for git pins of NAME")
    group.addoption(
        "--lane", default="cpu", metavar="LANE", help="cpu (default), or cuda: NCCL on the GPUs of this host"
    )
    group.addoption("--gpus", metavar="IDS", help="which GPUs of this host, as nvidia-smi counts them (default: all)")
    group.addoption(
        "--nondeterministic", action="store_true", help="cuda lane with production settings; the noise floor judges"
    )
    group.addoption("--case-seconds", type=float, default=Limits().seconds, help="time limit of one case on one side")
    group.addoption("--golden-only", action="store_true", help="compare the new side with the goldens alone")
    group.addoption(
        "--changed-pins",
        metavar="BASE",
        help="compare the stack whose pins in pyproject.toml moved since git revision BASE with what it was there; "
        "only what triage calls new fails, and where no pin moved nothing runs",
    )
    group.addoption("--only-new", action="store_true", help="a case fails the run only if triage calls it new")
    group.addoption(
        "--strict-triage", action="store_true", help="with --changed-pins: fail for every verdict that fails elsewhere"
    )
    group.addoption("--strict-goldens", action="store_true", help="fail where a golden has drifted")
    group.addoption("--hf-configs", metavar="DIR", help="resolve every config.json under this folder too")
    group.addoption("--ledger", metavar="PATH", help="ledger: a file, or a folder of them (default: golden/declared/)")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """End before anything is collected where no pin moved, or where that cannot be told."""
    option = config.option
    if option.changed_pins is None or hasattr(config, "workerinput") or option.help or option.version:
        return None
    try:
        changed_stack(load_settings(), option.changed_pins, option.new)
    except StackError as error:
        print(f"parity: {error}", file=sys.stderr if error.exit_code else sys.stdout)
        return error.exit_code
    return None
