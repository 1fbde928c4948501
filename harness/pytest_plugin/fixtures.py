"""The fixtures `parity` and `consistency`: what a test calls to run a case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harness.cases import OWN, make_case, make_check
from harness.compare import Expectation, Verdict
from harness.layouts import UnknownLayoutError
from harness.probes import ProbeError
from harness.pytest_plugin.run import ParityPlugin, area_of
from harness.report import Records, case_properties
from harness.runner import Outcome
from harness.stacks import StackError
from harness.workers.protocol import Limits

LANES = ("cpu", "cuda")


class Parity:
    """What a test calls: run one case on both sides and fail unless its verdict passes."""

    def __init__(self, plugin: ParityPlugin, request: pytest.FixtureRequest) -> None:
        self._plugin = plugin
        self._request = request

    @property
    def lane(self) -> str:
        """The run's lane, `cpu` or `cuda`."""
        return str(self._request.config.option.lane)

    def __call__(
        self,
        probe: str,
        *,
        layout: str = "single",
        old_layout: str | None = None,
        new_layout: str | None = None,
        written_by: str = OWN,
        written_layout: str | None = None,
        expects: Expectation | None = None,
        lanes: Sequence[str] = LANES,
        **parameters: Any,
    ) -> Outcome:
        """Run `probe` with `parameters` under `layout` on both sides, and return what came out if the verdict passes.

        Args:
            old_layout: the old side's layout, where it is another; the probe must say what part of each tensor a rank
                holds. Bitwise equality is not to be expected then: the old side's noise floor judges.
            new_layout: the same of the new side.
            written_by: for a probe that reads files, who writes them: `own` (each side its own), `old`, `new` or the
                name of a stack.
            written_layout: the layout in which they are written, where it is another.
            expects: an exception both sides must raise exactly, for a case that neither pin can run.
            lanes: the lanes this case can run on; on another it is `not_run`.
        """
        try:
            case = make_case(
                probe,
                parameters,
                self.lane,
                new_layout or layout,
                old_layout or layout,
                written_by=written_by,
                written_layout=written_layout,
            )
        except (ProbeError, UnknownLayoutError) as error:
            pytest.fail(str(error), pytrace=False)
        self._plugin.claim(case.id, self._request.node.nodeid)
        runner = self._plugin.runner
        try:
            if self.lane in lanes:
                outcome = runner.run(case, expects, area=area_of(self._request.node))
            else:
                needs = f"needs the {' or '.join(lanes)} lane (--lane {lanes[0]})"
                outcome = runner.not_run(case, needs, area=area_of(self._request.node))
        except StackError as error:
            pytest.fail(str(error), pytrace=False)
        _settle(self._request, outcome)
        return outcome


class Consistency:
    """What a test of self-consistency calls: run one check on one stack and fail unless its verdict passes."""

    def __init__(self, plugin: ParityPlugin, request: pytest.FixtureRequest) -> None:
        self._plugin = plugin
        self._request = request

    def __call__(
        self,
        probe: str,
        *,
        layout: str = "single",
        written_by: str = OWN,
        written_layout: str | None = None,
        seconds: float | None = None,
        **parameters: Any,
    ) -> None:
        """Run `probe` with `parameters` under `layout` on the stack of one side; a test runs once for each stack.

        Args:
            written_by: as `Parity`.
            written_layout: as `Parity`.
            seconds: time limit, where the case needs more than others do.
        """
        runner, role = self._plugin.runner, self._request.param
        try:
            case = make_check(probe, parameters, layout, written_by, written_layout)
            self._plugin.claim(f"{case.id}@{role}", self._request.node.nodeid)
            limits = Limits(seconds=seconds) if seconds else None
            outcome = runner.check(case, role, limits, area=area_of(self._request.node))
        except (ProbeError, UnknownLayoutError, StackError) as error:
            pytest.fail(str(error), pytrace=False)
        _settle(self._request, outcome)


def _settle(request: pytest.FixtureRequest, outcome: Outcome) -> None:
    """Let the test end as its verdict says."""
    plugin: Any = request.config.pluginmanager.get_plugin("parity-run")
    request.node.user_properties += [
        ("case", outcome.id),
        ("pins", plugin.moved),
        *case_properties(outcome.brief).items(),
    ]
    known = [name for marker in request.node.iter_markers("regression") for name in marker.args]
    if known:
        Records(plugin.folder).write("regression", {"ids": known, "case": outcome.id})
    if outcome.judged.verdict is Verdict.NOT_RUN:
        pytest.skip(outcome.judged.why)
    drifted = outcome.judged.verdict is Verdict.DRIFT and request.config.option.strict_goldens
    if outcome.judged.verdict.fails and plugin.only_new and outcome.triage and not outcome.triage.blocks:
        pytest.xfail(f"{outcome.triage}: {outcome.judged.why}")
    if outcome.judged.verdict.fails or drifted:
        pytest.fail(outcome.message, pytrace=False)


@pytest.fixture
def consistency(request: pytest.FixtureRequest) -> Consistency:
    """Check one stack: `consistency("process_groups", layout="tp2")`; the test runs once for each stack."""
    return Consistency(request.config.pluginmanager.get_plugin("parity-run"), request)  # type: ignore[arg-type]


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Parity:
    """Run one case on both sides: `parity("ddp_config", variant="fsdp", layout="tp2")`."""
    return Parity(request.config.pluginmanager.get_plugin("parity-run"), request)  # type: ignore[arg-type]
