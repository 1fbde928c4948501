"""Observe a case on a stack: hand it to the stack's worker, and load what its ranks left."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness.cases import Case
from harness.compare import Side
from harness.layouts import layout_named
from harness.observe import ObservationError
from harness.observe.codec import Encoded
from harness.observe.observation import load
from harness.schedule import LaneChoice, Schedule, ScheduleStopped, TooFewError
from harness.stacks import BuiltStack
from harness.workers.pool import Event, Pool, WorkerLost
from harness.workers.protocol import Imported, Limits, Reply, Request, hand_over


class Observer:
    """Workers and places of one run, in one process of it.

    Attributes:
        lane: the lane of every case.
        limits: of a case that has none of its own.
    """

    def __init__(
        self,
        folder: Path,
        owner_pid: int,
        event: Event,
        lane: LaneChoice | None = None,
        limits: Limits | None = None,
        *,
        preload: Iterable[str] = (),
    ) -> None:
        """`folder` is the run's, shared by all its processes; `owner_pid` ends the workers when it ends.

        `preload` is of the workers, see `Pool`.
        """
        self.lane = lane or LaneChoice()
        self.limits = limits or Limits()
        self._folder = folder
        self._schedule = Schedule(folder, self.lane.places)
        deterministic = self.lane.deterministic
        workers = folder / "workers"
        self._pool = Pool(workers, self.lane.name, owner_pid, event, deterministic=deterministic, preload=preload)

    def preload(self, stack: BuiltStack) -> Imported:
        """Import what the probes need on a stack, before the first case.

        Raises:
            WorkerLost: its worker cannot start.
        """
        return self._pool.preload(stack)

    def release(self, stack: BuiltStack) -> None:
        """End the worker of a stack; the next case on it starts another."""
        self._pool.release(stack)

    def stop(self) -> None:
        """End the workers of the whole run; only its owner does this."""
        self._schedule.stop()
        self._pool.stop()

    def side(
        self,
        name: str,
        stack: BuiltStack,
        case: Case,
        limits: Limits | None = None,
        slug: str | None = None,
        *,
        reads: Side | None = None,
        perturbed: int = 0,
        restored: Mapping[str, Encoded] | None = None,
        watched: str | None = None,
    ) -> Side:
        """Run one side, or what writes the files of one.

        Args:
            slug: of the case that reads the files, where this run writes them.
            reads: the run that wrote the files this one reads; if it left none, this side ends as that run did.
            perturbed: see `Run`.
            restored: see `Request`; likewise `watched`.
        """
        folder = self._folder / "cases" / (slug or case.slug) / name
        layout = case.layout_of("new" if name.partition("-")[0] == "new" else "old")
        shutil.rmtree(folder, ignore_errors=True)
        request = Request(
            case.probe.reference,
            dict(case.parameters),
            layout,
            str(folder),
            limits or self.limits,
            perturbed,
            restored=restored,
            watched=watched,
        )
        if reads is not None:
            ended = _without_files(reads)
            if ended:
                return replace(ended, name=name, stack=stack.name, versions=stack.versions, layout=layout, reads=reads)
            hand_over(folder.parent / reads.name, folder)
        try:
            with self._schedule.hold(self.lane.needed(layout)) as places:
                devices = places if self.lane.gpus else ()
                reply = self._pool.run(stack, replace(request, devices=devices))
        except TooFewError as error:
            return Side(name, stack.name, stack.versions, unavailable=str(error), layout=layout, reads=reads)
        except (WorkerLost, ScheduleStopped) as error:
            return Side(name, stack.name, stack.versions, fault=str(error), layout=layout, reads=reads)
        return _answered(Side(name, stack.name, stack.versions, layout=layout, reads=reads), reply, folder)

    def written(self, case: Case, side: str, stack_of: Callable[[str], BuiltStack]) -> Side | None:
        """The run that writes what one side of a case reads, made now; None if it reads nothing.

        Args:
            stack_of: the stack of a side, or one by its name.
        """
        found = case.writer(side)
        if found is None:
            return None
        who, writer = found
        return self.side(f"written-by-{who}", stack_of(who), writer, slug=case.slug)


def _answered(side: Side, reply: Reply, folder: Path) -> Side:
    """A side with what its ranks said and left."""
    side = replace(side, output="".join(rank.output for rank in reply.ranks), seconds=reply.seconds)
    unavailable = next((rank.unavailable for rank in reply.ranks if rank.unavailable), None)
    fault = _first_fault(reply)
    if fault or unavailable:
        return replace(side, fault=fault, unavailable=unavailable)
    try:
        ranks = [load(folder / f"rank{number}") for number in range(layout_named(side.layout).world_size)]
    except ObservationError as error:
        return replace(side, fault=str(error))
    return replace(side, ranks=ranks)


def _without_files(writer: Side) -> Side | None:
    """How a side ends that has nothing to read: as the run that was to write it did. None where there are files."""
    missing = next((rank.missing for rank in writer.ranks if rank.missing), ())
    fault = writer.fault or (f"no evidence: {'; '.join(missing)}" if missing else None)
    if fault:
        return replace(writer, fault=f"{fault} ({writer.name})")
    return writer if writer.exception or writer.unavailable else None


def _first_fault(reply: Reply) -> str | None:
    """The fault of the rank that ended first; a rank that was cut because of it comes later."""
    faulty = [rank for rank in reply.ranks if rank.fault]
    if not faulty:
        return None
    first = min(faulty, key=lambda rank: rank.ended_at)
    told = f"rank {first.rank} {first.fault}" if len(reply.ranks) > 1 else f"{first.fault}"
    others = [f"rank {rank.rank} {rank.fault}" for rank in faulty if rank is not first]
    return "; ".join([told, *others])
