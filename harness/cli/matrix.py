"""`parity matrix`: which pins work together, and how they differ."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.answers import Answers
from harness.cases import Case
from harness.cli.options import SECONDS, Base, Clones, Seconds, Workers, console, progress, writable, write_file
from harness.cli.searches import fitting_workers, named_case, stopping
from harness.compare import Judged, Ledger, Verdict, load_ledger
from harness.matrix import Axis, Combination, Found, Observed, base_of, combinations, compared, observe, parse_axis
from harness.observer import Observer
from harness.outcome import Outcome, case_record
from harness.probes import ProbeError
from harness.report.grid import Results, print_matrix, print_reasons
from harness.report.records import Records
from harness.runner import new_run_folder
from harness.selection import settings_with
from harness.stacks import Builder, StackError, StackUsageError
from harness.workers.protocol import Limits

CASES = (
    *("provider_config", "ddp_config", "peft_hook", "value_head", "router_freeze", "config_dump", "checkpoint_state"),
    *("hf_export", "adapter_checkpoint", "training_step", "lora_step"),
)
"""One case of each path through the stack."""

_SVG_COLUMNS = 100
_VALUES = "Pins to combine, e.g. 0.8.0,0.9.1; also git:SOURCE@REVISION and path:DIR."


def matrix(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CASE]…",
            help=f"Probes, each with its KEY=VALUE behind it, or ids of an earlier run (default: {' '.join(CASES)}).",
        ),
    ] = None,
    verl: Annotated[str | None, typer.Option(metavar="PINS", help=_VALUES)] = None,
    megatron_bridge: Annotated[str | None, typer.Option(metavar="PINS", help=_VALUES)] = None,
    megatron_core: Annotated[str | None, typer.Option(metavar="PINS", help=_VALUES)] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PINS", help="The same for any other distribution; may be repeated."),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            help="Holds every other pin (default: for each combination the declared stack that fits it best)."
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=writable, help="Draw it as an SVG too, for a README.")
    ] = None,
    workers: Workers = None,
    base: Base = None,
    clone: Clones = None,
    seconds: Seconds = SECONDS,
) -> None:
    """Draw which pins work together: every combination runs the cases, and is compared with the one that runs most.

    Pins that no option names follow Megatron-Bridge: they are those of the declared stack that has the combination's
    Bridge and most of its other pins, unless --stack names one. What cannot be built or run is shown as such. What was
    observed before is read back, so an interrupted matrix goes on where it stopped. Exit status 3 says that nothing
    could be built, 0 whatever else the matrix shows.

    Examples: parity matrix --verl 0.8.0,0.9.1 --megatron-bridge 0.4.2,0.5.1,0.6.2
    · parity matrix --megatron-core 0.18.2,git:../Megatron-LM@main --stack verl-0.8.0 training_step dtype=bfloat16
    """
    settings = settings_with(clone)
    named = {"verl": verl, "megatron-bridge": megatron_bridge, "megatron-core": megatron_core}
    cases = _cases(words or list(CASES))
    chosen = combinations(_axes(named, axis or []), settings, stack)
    records = Records(new_run_folder(settings.root))
    ledger = load_ledger(settings.root / "golden" / "declared").on("cpu")
    preload = [case.probe.reference for case in cases]
    observer = Observer(records.folder, os.getpid(), records.write, limits=Limits(seconds=seconds), preload=preload)
    answers = {case.id: Answers(settings.cache / "answers", case, observer) for case in cases}
    threads = ThreadPoolExecutor(workers or fitting_workers(), thread_name_prefix="matrix")
    build = Builder(settings, base, None, progress)
    progress(f"{len(chosen)} combinations, {len(cases)} cases each")
    try:
        with stopping(observer):
            jobs = [threads.submit(observe, one, cases, answers, build, progress) for one in chosen]
            observed = [job.result() for job in jobs]
    finally:
        threads.shutdown(cancel_futures=True)
    against = base_of(observed)
    results = _results(cases, observed, against, ledger)
    _record(records, cases, observed, against, results)
    print_matrix(observed, against, results, console)
    print_reasons(observed, results, console)
    console.print(f"records: {records.file}", soft_wrap=True, style="dim")
    if svg is not None:
        _draw(svg, observed, against, results)
    made = sum(each.made for each in answers.values())
    console.print(f"{made} observations made, the others read back", style="dim")
    if not any(one.built for one in observed):
        raise StackError("no combination could be built: see the reasons above")


def _axes(named: dict[str, str | None], more: Sequence[str]) -> list[Axis]:
    pairs = [(name, values) for name, values in named.items() if values]
    for text in more:
        name, equals, values = text.partition("=")
        if not (name and equals and values):
            raise StackUsageError(f"{text!r} is no axis: write NAME=PIN,PIN")
        if name in dict(pairs):
            raise StackUsageError(f"{name} is named twice: write --axis {name}={dict(pairs)[name]},{values}")
        pairs.append((name, values))
    if not pairs:
        raise StackUsageError(
            "name the pins to combine: parity matrix --verl 0.8.0,0.9.1 --megatron-bridge 0.5.1,0.6.2"
        )
    return [parse_axis(name, values) for name, values in pairs]


def _cases(words: Sequence[str]) -> list[Case]:
    """The cases that words name: a case id, or a probe and what follows it as KEY=VALUE."""
    groups: list[list[str]] = []
    for word in words:
        if "=" in word and "[" not in word.partition("=")[0]:
            if not groups:
                raise ProbeError(f"{word!r} belongs to no probe: write PROBE KEY=VALUE")
            groups[-1].append(word)
        else:
            groups.append([word])
    found = [named_case(name, parameters) for name, *parameters in groups]
    return list({case.id: case for case in found}.values())


def _results(cases: Sequence[Case], observed: Sequence[Observed], against: Observed, ledger: Ledger) -> Results:
    built = [each for each in observed if each.built is not None]
    return {
        case.id: {each.combination.letter: compared(case, against, each, ledger) for each in built} for case in cases
    }


def _record(
    records: Records, cases: Sequence[Case], observed: Sequence[Observed], against: Observed, results: Results
) -> None:
    records.write(
        "matrix",
        {"combinations": [_combination(each.combination, each.why) for each in observed], "cases": list(results)},
    )
    for case in cases:
        for each in observed:
            if each.combination.letter in results[case.id]:
                records.write("matrix_case", _case_of(case, against, each, results[case.id][each.combination.letter]))


def _combination(combination: Combination, why: str) -> dict[str, object]:
    return {
        "letter": combination.letter,
        "label": combination.label,
        "pins": {name: pin.requested for name, pin in combination.stack.pins.items()},
        "as": combination.holder,
        "cannot_be_built": why,
    }


def _case_of(case: Case, against: Observed, each: Observed, found: Found) -> dict[str, object]:
    judged = found.judged or Judged(Verdict.BROKEN if found.side.fault else Verdict.NOT_RUN, found.why)
    sides = {"old": against.sides[case.id], "new": found.side} if case.id in against.sides else {"new": found.side}
    outcome = Outcome(case, judged, sides, found.side.seconds, stack=each.combination.letter)
    return {"area": case.probe.name, "cell": str(found.cell), **case_record(outcome)}


def _draw(file: Path, observed: Sequence[Observed], against: Observed, results: Results) -> None:
    drawn = Console(record=True, file=io.StringIO(), width=_SVG_COLUMNS, force_terminal=True, highlight=False)
    print_matrix(observed, against, results, drawn)
    write_file(file, drawn.export_svg(title="parity matrix"))
    console.print(f"drawn: {file}", soft_wrap=True, style="dim")


def register(app: typer.Typer) -> None:
    """Add this command to `parity`."""
    app.command()(matrix)
