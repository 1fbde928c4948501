"""Whatever lies in the harness's own files, its readers give one short error, or what is there."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from descriptions import JSON_VALUES, PLAIN_VALUES, files_like, near, toml_like
from fuzzing import Fuzz
from hypothesis import strategies as st
from rich.console import Console

from harness.compare import load_ledger
from harness.compare.ledger import LedgerError
from harness.compare.trees import tree_differences
from harness.compare.verdicts import describe
from harness.goldens import GoldenError, GoldenStore, digest_of
from harness.observe import EncodingError, Observation, ObservationError, canonical_bytes, encode
from harness.observe.observation import entries_of, load, save
from harness.probes._values import build
from harness.report import Records, print_run, read_run
from harness.report.records import RecordsError
from harness.stacks import StackUsageError, load_settings
from harness.stacks.pins import parse_override, parse_pin
from harness.workers.protocol import Imported, Limits, RankReport, Reply, Request, receive

ROOT = Path(__file__).resolve().parents[2]
LONGEST_MESSAGE = 400
LONGEST_SECONDS = 10.0


def one_short_error(read: Callable[[], Any], *errors: type[Exception]) -> Any:
    """What `read` returns, or None after an error of the given kinds that a reader can take in; neither takes long."""
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_SECONDS)
    try:
        return read()
    except errors as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        lines = str(error).splitlines()
        assert 1 <= len(lines) <= 2, str(error)
        assert max(map(len, lines)) <= LONGEST_MESSAGE, str(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def late(*_: Any) -> None:
    raise AssertionError(f"a reader did not end within {LONGEST_SECONDS:g} s")


# Observations ---------------------------------------------------------------------------------------------------------


def test_the_codec_keeps_every_value_or_says_that_it_cannot(fuzz: Fuzz) -> None:
    def check(description: Any) -> None:
        value = build(description)
        encoding = one_short_error(lambda: encode(value.value), EncodingError)
        assert value.changed() == []
        if encoding is None:
            return
        assert json.loads(json.dumps(encoding.tree, allow_nan=False)) == encoding.tree
        assert canonical_bytes(encode(build(description).value).tree) == canonical_bytes(encoding.tree)

    fuzz(PLAIN_VALUES, 300, check)


def test_what_the_codec_keeps_comes_back_from_disk(fuzz: Fuzz, tmp_path: Path) -> None:
    def check(description: Any) -> None:
        encoding = one_short_error(lambda: encode({"value": build(description).value}), EncodingError)
        if encoding is None:
            return
        written = Observation(encoding.tree, entries_of(encoding), None, (), (), (), {}, {}, 0.0)
        save(written, encoding.tensors, tmp_path)
        read = load(tmp_path)
        assert read == written
        assert {name: data.data for name, data in read.tensor_data().items()} == {
            name: tensor.tobytes() for name, tensor in encoding.tensors.items()
        }

    fuzz(PLAIN_VALUES, 100, check)


def observed() -> Any:
    """The JSON of an observation as ranks write it, from a golden's tree."""
    golden = json.loads(GOLDEN.read_text())
    rank = golden["ranks"][0]
    return {
        "format": 1,
        "tree": rank["tree"],
        "tensors": {"logits": {"dtype": "float32", "shape": [2, 3], "sha256": "0"}},
        "exception": {"type": "a:B", "message": "m", "origin": "a:f", "ours": False, "traceback": "t"},
        "entered": [{"function": "a:f", "file": "a.py", "sha256": "0"}],
        "missing": ["never entered a:f"],
        "masks": [{"field": "C.f", "own": None, "forced": True}],
        "environment": {"lane": "cpu"},
        "provenance": {"hook": "a:f"},
        "seconds": 0.5,
        "trace": [{"module": "m", "phase": "forward", "inputs": [], "outputs": [TRACED], "parameters": []}],
        "placement": {"logits": {"dim": 0, "rank": 0, "shards": 2, "blocks": 1, "size": None, "mean": False}},
    }


TRACED = {"dtype": "float32", "shape": [2], "sha256": "0", "norm": 0.5}
GOLDEN = ROOT / "golden" / "cpu" / "config_dump-7f23f477.json"


def test_an_observation_on_disk_is_read_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    def check(content: bytes) -> None:
        (tmp_path / "observation.json").write_bytes(content)
        found = one_short_error(lambda: load(tmp_path), ObservationError)
        if found is not None:
            describe(found.exception)
            tree_differences(found.tree, observed()["tree"])

    fuzz(files_like(observed()), 400, check)


# Goldens, ledger, stacks, records, messages ---------------------------------------------------------------------------


def with_digest(document: Any) -> bytes:
    """As if the writer itself had written it; it writes no infinities."""
    with contextlib.suppress(AttributeError, ValueError):
        inner = {name: value for name, value in document.items() if name not in ("format", "digest")}
        document = {"format": document.get("format"), "digest": digest_of(inner), **inner}
    return json.dumps(document).encode()


def test_a_golden_without_the_versions_of_its_stack_is_refused(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path)
    kept = json.loads(GOLDEN.read_text())
    store.path("any").write_bytes(with_digest({**kept, "provenance": {"stack": "verl-0.8.0"}}))
    with pytest.raises(GoldenError, match="versions"):
        store.read("any")


def test_a_golden_is_read_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    store = GoldenStore(tmp_path)
    kept = json.loads(GOLDEN.read_text())

    def check(content: bytes) -> None:
        store.path("any").write_bytes(content)
        golden = one_short_error(lambda: store.read("any"), GoldenError)
        if golden is not None:
            assert isinstance(golden.versions, dict)
            tree_differences(golden.ranks[0].tree, kept["ranks"][0]["tree"]) if golden.ranks else None

    fuzz(files_like(kept) | near(kept).map(with_digest), 300, check)


def test_a_ledger_is_read_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    file = tmp_path / "ledger.toml"
    kept = tomllib.loads((ROOT / "golden" / "declared" / "peft.toml").read_text())

    def check(content: bytes) -> None:
        file.write_bytes(content)
        ledger = one_short_error(lambda: load_ledger(file), LedgerError)
        if ledger is not None:
            versions = {"verl": "0.8.0", "megatron-core": "0.18.2"}
            ledger.changes_for("peft_hook", versions, versions)
            ledger.idle(["peft_hook"], versions, versions)

    fuzz(toml_like(kept), 300, check)


def test_settings_of_stacks_are_read_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    kept = {"tool": {"parity": tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["parity"]}}

    def check(content: bytes) -> None:
        (tmp_path / "pyproject.toml").write_bytes(content)
        settings = one_short_error(lambda: load_settings(tmp_path), StackUsageError)
        for name in settings.stacks if settings else ():
            one_short_error(partial(settings.stack, name, ()), StackUsageError)

    fuzz(toml_like(kept), 300, check)


def test_a_pin_is_read_or_refused(fuzz: Fuzz) -> None:
    words = st.sampled_from(
        ["verl", "==", "=", "0.8.0", "path:", "git:", "@", "https://h/r.git", "..", " ", "-x", "\0"]
    )

    def check(given: tuple[str, Any]) -> None:
        text, value = given
        for read in (partial(parse_override, text), partial(parse_pin, "verl", value, relative_to=ROOT, where="[x]")):
            pin = one_short_error(read, StackUsageError)
            assert pin is None or parse_override(pin.requested) == pin

    texts = st.lists(words, max_size=6).map("".join) | st.text(max_size=12)
    tables = st.dictionaries(st.sampled_from(["git", "rev", "path", "x"]), texts | JSON_VALUES, max_size=3)
    fuzz(st.tuples(texts, texts | tables | JSON_VALUES), 500, check)


def test_records_are_read_and_shown_or_refused(fuzz: Fuzz, tmp_path: Path) -> None:
    records = Records(tmp_path)
    console = Console(file=io.StringIO())

    def check(lines: list[bytes]) -> None:
        records.file.write_bytes(b"\n".join([json.dumps(RUN_RECORD).encode(), *lines]))
        one_short_error(lambda: print_run(read_run(records), console), RecordsError)

    fuzz(st.lists(files_like(CASE_RECORD) | st.just(json.dumps(CASE_RECORD).encode()), max_size=3), 300, check)


RUN_RECORD = {
    "event": "run_started",
    "time": 0.0,
    "old": {"name": "verl-0.7.1", "golden": "", "pins": []},
    "new": {"name": "verl-0.8.0", "golden": "", "pins": []},
}
CASE_RECORD = {
    "event": "case",
    "time": 1.0,
    "pid": 1,
    "case": "ddp_config[fsdp]",
    "area": "ddp_config",
    "verdict": "declared",
    "why": "0.7.1 has none",
    "seconds": 0.2,
    "evidence": True,
    "masked": [{"path": "C.f"}],
    "declared_by": [{"class_": "intended"}],
}


@dataclass
class Received:
    """The end of a connection at which one message has come."""

    content: bytes

    def recv_bytes(self) -> bytes:
        return self.content


def test_a_message_is_received_or_refused(fuzz: Fuzz) -> None:
    request = {"kind": "request", **asdict(Request("ddp_config", {}, "single", "folder", Limits()))}
    reply = {"kind": "reply", **asdict(Reply((RankReport(0, None, "", 0.5),), 0.5, Imported(0.5, 1, {}, 1)))}

    def check(content: bytes) -> None:
        one_short_error(lambda: receive(Received(content)), ValueError)

    fuzz(files_like(request) | files_like(reply), 400, check)
