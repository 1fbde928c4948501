"""The schedule: no place is held twice, first come first served, and an end that everybody notices."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from harness.devices import parse, visible
from harness.schedule import LaneChoice, LaneError, Schedule, ScheduleStopped, TooFewError, choose_lane

LISTED = """0, GPU-aa, NVIDIA H200, 9.0, 143771, 580.159.04
1, GPU-bb, NVIDIA H200, 9.0, 143771, 580.159.04
"""


def in_thread(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 10 s"
        time.sleep(0.01)


def test_no_place_is_held_twice(tmp_path: Path) -> None:
    schedules = [Schedule(tmp_path, ("0", "1", "2")) for _ in range(2)]
    held: list[str] = []
    most = 0
    lock = threading.Lock()

    def run(schedule: Schedule, count: int) -> None:
        nonlocal most
        with schedule.hold(count) as places:
            assert len(set(places)) == count
            with lock:
                assert not set(held) & set(places)
                held.extend(places)
                most = max(most, len(held))
            time.sleep(0.03)
            with lock:
                for place in places:
                    held.remove(place)

    failures: list[BaseException] = []

    def guarded(schedule: Schedule, count: int) -> None:
        try:
            run(schedule, count)
        except AssertionError as error:
            failures.append(error)

    threads = [in_thread(partial(guarded, schedules[n % 2], 1 + n % 3)) for n in range(12)]
    for thread in threads:
        thread.join()
    assert failures == []
    assert (most, held) == (3, [])


def test_a_case_of_one_runs_beside_another(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path, ("0", "1"))
    with schedule.hold(1) as first, schedule.hold(1) as second:
        assert {*first, *second} == {"0", "1"}


def test_who_waits_for_many_is_not_passed_over(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path, ("0", "1"))
    order: list[str] = []

    def take(name: str, count: int) -> None:
        with schedule.hold(count):
            order.append(name)

    waiting = tmp_path / "schedule.json"
    with schedule.hold(1):
        many = in_thread(lambda: take("two", 2))
        until(lambda: waiting.read_text().count("ticket") == 2)
        one = in_thread(lambda: take("one", 1))
        until(lambda: waiting.read_text().count("ticket") == 3)
        assert order == []
    many.join()
    one.join()
    assert order == ["two", "one"]


def test_more_than_there_are_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TooFewError, match=r"needs 4 GPU\(s\); this run has 0, 1"), Schedule(tmp_path, "01").hold(4):
        pass
    with pytest.raises(TooFewError, match="this run has none"), Schedule(tmp_path, ()).hold(1):
        pass


def test_a_stop_ends_the_waiting(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path, ("0",))
    told: list[str] = []

    def wait() -> None:
        try:
            with schedule.hold(1):
                told.append("ran")
        except ScheduleStopped as error:
            told.append(str(error))

    with schedule.hold(1):
        thread = in_thread(wait)
        until(lambda: (tmp_path / "schedule.json").read_text().count("ticket") == 2)
        schedule.stop()
        thread.join()
    assert told == ["the run was stopped"]
    with Schedule(tmp_path, ("0",)).hold(1) as places:
        assert places == ("0",)


def test_what_a_killed_process_held_is_free(tmp_path: Path) -> None:
    hold = (
        "import sys, time; from pathlib import Path; from harness.schedule import Schedule\n"
        "with Schedule(Path(sys.argv[1]), ('0',)).hold(1): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.kill()
    process.wait()
    with Schedule(tmp_path, ("0",)).hold(1) as places:
        assert places == ("0",)


def test_gpus_are_read_from_the_drivers_tool_and_chosen_as_cuda_would() -> None:
    found = parse("Failed to initialize\n" + LISTED)
    assert [(gpu.id, gpu.capability, gpu.memory) for gpu in found] == [("0", "9.0", 143771), ("1", "9.0", 143771)]
    assert visible(found, None) == found
    assert [gpu.id for gpu in visible(found, "1,GPU-aa,7")] == ["1", "0"]
    assert visible(found, "") == ()


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'EOF'\n{LISTED}EOF\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
def test_the_cuda_lane_takes_all_gpus_or_those_named() -> None:
    assert choose_lane("cuda") == LaneChoice("cuda", ("0", "1"), True, "sm90")
    one = choose_lane("cuda", "1", deterministic=False)
    assert (one.gpus, one.golden_folder) == (("1",), "cuda-sm90")
    assert one.options == "--lane cuda --gpus 1 --nondeterministic"
    assert (one.needed("single"), one.needed("tp2_pp2")) == (1, 4)
    with pytest.raises(LaneError, match="this host has 0, 1"):
        choose_lane("cuda", "0,2")
    with pytest.raises(LaneError, match="name each once"):
        choose_lane("cuda", "0,0")


def test_the_cpu_lane_has_a_place_for_each_processor_and_no_gpus() -> None:
    chosen = choose_lane("cpu")
    assert (chosen.golden_folder, chosen.options, chosen.needed("tp2_pp2")) == ("cpu", "", 1)
    assert len(chosen.places) >= 2
    with pytest.raises(LaneError, match="go with --lane cuda"):
        choose_lane("cpu", "0")
    with pytest.raises(LaneError, match="unknown lane 'tpu'; known: cpu, cuda"):
        choose_lane("tpu")
