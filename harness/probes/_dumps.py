"""verl's ways from a config to the text of `transformer_config.json`, and what is to be said of one such dump."""

from __future__ import annotations

import copy
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Protocol, Self

from harness.observe.exceptions import portable
from harness.observe.run import Run
from harness.probes import _checkpoint
from harness.probes._fates import fates, fields_of
from harness.probes._values import Description, build, overridden

MANAGER = "verl.utils.checkpoint.megatron_checkpoint_manager"

seconds = 5.0
"""What one dump may take; the slowest seen takes a hundredth."""

_DEEPEST = 20_000
"""Recursion limit while a dump is looked at: its values are as deep as upstream bears, and a look takes more calls."""

_LONGEST = 60
"""Characters of a dump that a line shows."""

_UNUSED = (
    "model_config",
    "arch",
    "hf_config",
    "param_dtype",
    "share_embeddings_and_output_weights",
    "processing_class",
    "optimizer",
    "optimizer_scheduler",
    "use_distributed_optimizer",
)
"""Arguments of the checkpoint manager that a save of the extra state alone does not use."""


class Writer(Protocol):
    """A way from a config to the text of its dump."""

    def write(self, config: Any) -> str:
        """The text. Whatever upstream raises passes."""

    def complaints(self) -> list[str]:
        """What is wrong with the last dump that its text does not show."""


class Functions:
    """The functions that verl has for it since 0.8.0, called one after the other.

    A config that is a dict already goes to the second function alone.
    """

    def __init__(self, shallow: Callable[[Any], Any], safe: Callable[[Any], Any]) -> None:
        self._shallow = shallow
        self._safe = safe
        self._safe_config: dict[str, Any] | None = None
        self._text = ""
        self._raised = ""

    def write(self, config: Any) -> str:
        """See `Writer`."""
        self._safe_config, self._raised = None, ""
        try:
            self._safe_config = self._safe(config if isinstance(config, dict) else self._shallow(config))
            self._text = json.dumps(self._safe_config)
            return self._text
        except Exception as error:
            self._raised = type(error).__name__ if self._safe_config is None else str(error)
            raise

    def complaints(self) -> list[str]:
        """Whether the conversion raises, JSON refuses what it makes, or a second conversion changes anything."""
        if self._safe_config is None:
            return [f"the conversion raises {self._raised}"]
        if self._raised:
            return [f"JSON refuses: {self._raised}"]
        again = json.dumps(self._safe(self._safe_config))
        return [] if again == self._text else ["not idempotent"]


class Saves:
    """The real `save_checkpoint` of a checkpoint manager, which gets another config each time."""

    def __init__(self, manager: Any, folder: Path) -> None:
        self._manager = manager
        self._folder = str(folder)
        self._file = folder / "transformer_config.json"
        self._ended = False

    def write(self, config: Any) -> str:
        """See `Writer`."""
        self._ended = False
        self._file.unlink(missing_ok=True)
        self._manager.transformer_config = config
        self._manager.save_checkpoint(self._folder, global_step=1)
        text = self._file.read_text()
        self._ended = True
        return text

    def complaints(self) -> list[str]:
        """Whether a save that did not end left a file that is no JSON."""
        if self._ended or not self._file.exists():
            return []
        try:
            json.loads(self._file.read_text())
        except json.JSONDecodeError:
            return ["left an unfinished file"]
        return []


def functions(run: Run) -> Functions:
    """Verl's own functions.

    Raises:
        MissingSymbol: the pin writes the config inline.
    """
    return Functions(
        run.upstream(f"{MANAGER}:_config_to_shallow_dict"), run.upstream(f"{MANAGER}:_to_json_safe_config_dict")
    )


def saves(run: Run) -> Saves:
    """A manager without a model, whose distributed writer, prints and logs are replaced."""
    run.lane.start_distributed(run)
    run.call("megatron.core.parallel_state:initialize_model_parallel")
    contents = {"save_contents": ["extra"], "load_contents": ["extra"]}
    manager = run.call(
        f"{MANAGER}:MegatronCheckpointManager",
        config=SimpleNamespace(model=SimpleNamespace(path="")),
        checkpoint_config=run.call("verl.trainer.config:CheckpointConfig", **contents),
        transformer_config=None,
        bridge="asked for nothing",
        role="actor",
        model=[],
        **dict.fromkeys(_UNUSED),
    )
    module = run.upstream(MANAGER)
    for name in ("save_dist_checkpointing", "print", "log_with_rank"):
        run.stand_in(f"{MANAGER}.{name}", "nothing", "hundreds of saves, of which one file is read")
        setattr(module, name, lambda *_arguments, **_keywords: None)
    return Saves(manager, run.folder / "checkpoint")


def whole_saves(run: Run) -> Saves:
    """The manager of an engine that verl has initialized; nothing is replaced."""
    engine = _checkpoint.initialized_engine(run, "qwen3", contents=["extra"])
    return Saves(engine.checkpoint_mananager, run.folder / "checkpoint")


def answer(description: Description, writer: Writer) -> dict[str, Any]:
    """Dump the described config, and say what became of it.

    Returns:
        text: the dump; None where it raises; of an object that upstream's own class describes only the fields set by
            hand, since classes differ between stacks.
        raised: type and message of the exception, else None.
        fates: what became of every kind of value, `[place, kind, fate]`; see `harness.probes._fates`.
        broken: which properties of a dump do not hold, in words.
    """
    _watch()
    built = build(description)
    text, raised = _attempt(writer, built.value)
    broken = [f"changed its input: {kind}" for kind in built.changed()] + writer.complaints()
    if text is None:
        return {"text": None, "raised": raised, "fates": [], "broken": broken}
    parsed, odd = _parse(text)
    twin, _ = _attempt(writer, build(description).value)
    loaded, _ = _attempt(writer, _loaded(built.value, parsed))
    broken += odd
    broken += ["another text of an equal config"] if twin != text else []
    broken += ["another text after a load"] if loaded != text else []
    with _recursion_limit(_DEEPEST):
        found = sorted(fates(built.value, parsed))
    broken += [f"lost: {fate.kind} as {fate.place}" for fate in found if fate.fate == "lost"]
    names = overridden(description)
    if names is not None:
        text = json.dumps({name: parsed[name] for name in names if name in parsed})
    return {"text": text, "raised": None, "fates": [list(fate) for fate in found], "broken": broken}


def interrupted(description: Description, first: int, most: int, writer: Writer) -> dict[str, Any]:
    """Dump the described config again and again, and let Ctrl-C end that at another line of verl's manager each time.

    Args:
        first: of the lines, counted round and round.
        most: how many lines, evenly spread over all that a dump runs through.

    Returns:
        broken: what that has changed in the config, in words.
    """
    lines = _Lines(0)
    with lines:
        _attempt(writer, build(description).value)
    step = max(1, lines.count // most)
    broken = {
        f"changed its input, interrupted: {kind}"
        for line in range(1 + first % step, lines.count + 1, step)
        for kind in _changed_when_interrupted(description, line, writer)
    }
    return {"broken": sorted(broken)}


def _changed_when_interrupted(description: Description, line: int, writer: Writer) -> list[str]:
    built = build(description)
    with _Lines(line):
        try:
            _attempt(writer, built.value)
        except KeyboardInterrupt:
            return built.changed()
    return ["something that configs share, for another dump takes fewer lines"]


class _Lines:
    """Context manager that counts the lines of verl's checkpoint manager that run, and raises at one of them."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.count = 0

    def __enter__(self) -> Self:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, *_: Any) -> Any:
        return self._ran if frame.f_code.co_filename == sys.modules[MANAGER].__file__ else None

    def _ran(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self.count += event == "line"
        if event == "line" and self.count == self._last:
            raise KeyboardInterrupt
        return self._ran


def told(config: Description, place: str, writer: Writer) -> str:
    """One line of what became of the values at one kind of place in a described config, whose field `first` matters."""
    found = answer(config, writer)
    if found["raised"]:
        return "; ".join([f"raises {found['raised']}", *found["broken"]])
    whole = json.loads(found["text"])
    if place == "name":
        return "; ".join([json.dumps(whole), *found["broken"]])
    at_place = [f"{kind} {fate}" for at, kind, fate in found["fates"] if at == place]
    kinds = [kind for kind in at_place if kind != "NoneType same"] or at_place
    written = json.dumps(whole.get("grad_scale_func" if place == "hook" else "first", "nothing"))
    shown = written if len(written) <= _LONGEST else f"{written[:_LONGEST]}…"
    return "; ".join([f"{', '.join(kinds)}: {shown}", *found["broken"]])


def _loaded(config: Any, parsed: Mapping[str, Any]) -> Any:
    """A config whose fields hold what a reader of the dump gets; those that the dump does not have stay."""
    if isinstance(config, dict):
        return parsed
    loaded = copy.copy(config)
    for name in fields_of(config).keys() & parsed.keys():
        object.__setattr__(loaded, name, parsed[name])
    return loaded


def _attempt(writer: Writer, config: Any) -> tuple[str | None, str | None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return writer.write(config), None
    except RecursionError:
        return None, "RecursionError"
    except Exception as error:  # noqa: BLE001 - whatever upstream raises is the answer
        return None, portable(f"{type(error).__name__}: {error}", {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@cache
def _watch() -> None:
    """Let what takes too long raise."""
    signal.signal(signal.SIGALRM, _late)


def _late(*_: Any) -> None:
    raise TimeoutError(f"did not end within {seconds:g} s")


def _parse(text: str) -> tuple[Any, list[str]]:
    """The parsed dump, and how it is not what a strict parser takes."""
    reader = _reader()
    reader.odd.clear()
    return reader.decode(text), sorted(reader.odd)


@cache
def _reader() -> _Reader:
    return _Reader()


class _Reader(json.JSONDecoder):
    """Reads more than JSON, and keeps in `odd` what that was."""

    def __init__(self) -> None:
        super().__init__(parse_constant=self._constant, object_pairs_hook=self._pairs)
        self.odd: set[str] = set()

    def _constant(self, name: str) -> float:
        self.odd.add(f"not JSON: {name}")
        return float(name)

    def _pairs(self, found: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs = dict(found)
        if len(pairs) < len(found):
            self.odd.add("a key twice")
        return pairs


@contextmanager
def _recursion_limit(limit: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
