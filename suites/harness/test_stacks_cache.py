"""Builds that meet each other, fail or are interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from stacks_support import Workshop, build_in_process, run_in, with_harness

from harness.stacks import StackError
from harness.stacks.cache import build_once


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path, monkeypatch)


def silent(_: str) -> None:
    """Drop progress."""


def test_parallel_builders_build_one_overlay_once(workshop: Workshop) -> None:
    workshop.wheel("alpha", "1.0", {"alpha/__init__.py": ""})
    tree = workshop.tree("beta", {f"beta/m{number}.py": "x = 1\n" for number in range(300)})
    builders = [build_in_process(workshop, "alpha==1.0", f"beta=path:{tree}") for _ in range(3)]
    outputs = [builder.communicate(timeout=60)[0].splitlines() for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len({output[-1] for output in outputs}) == 1
    assert sum("building overlay" in line for output in outputs for line in output) == 1
    assert len(workshop.left_over()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_to_reuse(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    # A uv that has begun to write when it is interrupted.
    slow = workshop.folder / "bin" / "uv"
    slow.parent.mkdir()
    slow.write_text(
        "#!/bin/sh\nfor word; do target=$last; last=$word; done\n"
        f'echo $$ > {workshop.folder}/uv.pid; touch "$target"/half; echo half >&2; exec sleep 60\n'
    )
    slow.chmod(0o755)
    code = (
        "import sys; from harness.stacks import build, load_settings, uv\n"
        f"uv.executable = lambda: {str(slow)!r}\n"
        "settings = load_settings()\n"
        "build(settings.stack('one', ['alpha==1.0']), settings, progress=print)\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A job in the background, such as this suite may be, has the signal ignored.
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"
    builder = subprocess.Popen([sys.executable, "-c", code], env=with_harness(), text=True, **pipes)
    uv_id = wait_for_number(workshop.folder / "uv.pid")
    builder.send_signal(number)
    builder.communicate(timeout=30)
    assert builder.returncode != 0
    if number == signal.SIGINT:
        assert workshop.left_over() == []
        assert not psutil.pid_exists(uv_id)
    else:
        # Nobody could clean up; the next builder does, and is not misled.
        os.kill(uv_id, signal.SIGKILL)
        assert len(workshop.left_over()) == 1
    workshop.wheel("alpha", "1.0", {"alpha/__init__.py": ""})
    built = workshop.build("alpha==1.0")
    assert run_in(built, "import alpha; print(1)") == 1
    assert workshop.left_over() == [f"overlays/{built.key}"]


def wait_for_number(file: Path) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if file.is_file() and file.read_text().strip():
            return int(file.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{file} was not written")


def test_a_failed_build_is_tried_again(workshop: Workshop) -> None:
    with pytest.raises(StackError):
        workshop.build("alpha==1.0")
    assert workshop.left_over() == []
    workshop.wheel("alpha", "1.0", {"alpha/__init__.py": ""})
    assert workshop.build("alpha==1.0").overlay.is_dir()


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    assert build_once(tmp_path / "it", lambda folder: (folder / "file").write_text("1") and None, silent)
    assert not build_once(tmp_path / "it", lambda folder: pytest.fail("built twice"), silent)


def test_a_folder_that_is_not_ready_is_built_anew(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "old").write_text("")

    def fill(folder: Path) -> None:
        (folder / "new").write_text("")

    def is_ready(folder: Path) -> bool:
        return (folder / "new").exists()

    assert build_once(tmp_path / "it", fill, silent, is_ready=is_ready)
    assert [path.name for path in (tmp_path / "it").iterdir()] == ["new"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_any_exception_removes_what_was_begun(tmp_path: Path, error: type[BaseException]) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("")
        raise error

    with pytest.raises(error):
        build_once(tmp_path / "it", fill, silent)
    assert [path.name for path in tmp_path.iterdir()] == [".it.lock"]
