"""What becomes of every kind of value in the `transformer_config.json` that verl writes beside a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Listener
from typing import Any

from harness.observe.run import Run
from harness.probes import _checkpoint, _dumps, _kinds
from harness.probes._models import choice
from harness.probes._values import Description
from harness.probes.registry import probe

PRELOAD = (*_checkpoint.PRELOAD, "omegaconf")

_SERIALISER = f"{_dumps.MANAGER}:_to_json_safe_config_dict"

_WRITERS: dict[str, Callable[[Run], _dumps.Writer]] = {
    "functions": _dumps.functions,
    "saves": _dumps.saves,
    "whole_saves": _dumps.whole_saves,
}


@probe(enters=(_checkpoint.SAVE_CHECKPOINT,), returns=tuple(f"fates.{place}" for place in _kinds.PLACES))
def config_values(run: Run) -> Mapping[str, Any]:
    """Every kind of value at every kind of place in a config, each in a save of its own.

    The config is a dataclass, set by hand on a checkpoint manager without a model, whose real `save_checkpoint` writes
    it; the distributed checkpoint is not written.

    Returns:
        fates: kind of place → description of a value → what became of it there, or the exception. Places are `field`,
            `hook` (a field that only a run fills), `inside` a list, `key` of a dict, and `name`: fields of other
            classes of configs.
    """
    writer = _dumps.saves(run)
    run.by_hand("MegatronCheckpointManager.transformer_config", "described configs")
    fates = {
        place: {_kinds.name_of(value): _dumps.told(config, place, writer) for value, config in configs}
        for place, configs in _kinds.catalogue().items()
    }
    return {"fates": fates}


@probe(enters=(f"{_SERIALISER} | {_checkpoint.SAVE_CHECKPOINT}",), returns=("answers",))
def config_dumps(
    run: Run, *, through: str = "functions", configs: Sequence[Description] = (), listen: str = ""
) -> Mapping[str, Any]:
    """Dumps of described configs, many in one call.

    Args:
        through: `functions` calls verl's own (0.8.0 and later); `saves` goes through `save_checkpoint`, whose
            distributed writer and prints are replaced; `whole_saves` replaces nothing.
        configs: descriptions, see `harness.probes._values`.
        listen: path of a socket on which to answer batches of descriptions, until the other end hangs up.

    Returns:
        answers: one for each of `configs`, see `harness.probes._dumps.answer`.
    """
    writer = choice("through", through, _WRITERS)(run)
    if listen:
        converse(listen, partial(answered, writer))
    return {"answers": [_dumps.answer(config, writer) for config in configs]}


def answered(writer: _dumps.Writer, question: Any) -> dict[str, Any]:
    """The answer to a description, or to `{"config": description, "first": line, "most": lines}`: see `interrupted`."""
    if isinstance(question, dict):
        return _dumps.interrupted(question["config"], question["first"], question["most"], writer)
    return _dumps.answer(question, writer)


def converse(socket: str, answer: Callable[[Any], Any]) -> None:
    """Answer batches until the other end hangs up: a JSON list of questions comes, one of answers goes back."""
    with Listener(socket, family="AF_UNIX") as listener, listener.accept() as connection:
        while True:
            try:
                batch = json.loads(connection.recv_bytes())
            except EOFError:
                return
            connection.send_bytes(json.dumps([answer(question) for question in batch]).encode())
