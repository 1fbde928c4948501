"""Faults seeded into upstream's code, each of which turns one check of one stack red.

A fault replaces a function or an attribute of upstream in the forked rank, before the check runs there. None of them is
a known regression: they stand for the next one of a check's kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.observe import Run
from harness.probes import consistency_probe
from harness.probes._models import choice
from harness.probes.registry import find_probe, registered_probes

PRELOAD = tuple(sorted({name for probe in registered_probes().values() if probe.one_stack for name in probe.preload}))


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: of the fault.
        check: the check that must find it.
        shows: glob over the violations, one of which must be met.
        change: what it does to a rank, before the check.
        parameters: of the check.
        layout: of the check.
    """

    name: str
    check: str
    shows: str
    change: Callable[[Run], None]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "single"


@consistency_probe(returns=())
def faulty_check(run: Run, *, fault: str) -> Mapping[str, Any]:
    """The check that a fault names, with that fault."""
    known = {entry.name: entry for entry in FAULTS}
    chosen: Fault = choice("fault", fault, known)
    chosen.change(run)
    return find_probe(chosen.check).function(run, **chosen.parameters)


def _around(place: str, faulty: Callable[..., Any]) -> Callable[[Run], None]:
    """Replace the upstream function `module:name` or `module:Class.name` by what is given it first."""

    def change(run: Run) -> None:
        module, _, path = place.partition(":")
        owner_path, _, name = path.rpartition(".")
        owner = run.upstream(f"{module}:{owner_path}")
        original = getattr(owner, name)

        def replaced(*arguments: Any, **keywords: Any) -> Any:
            return faulty(original, *arguments, **keywords)

        setattr(owner, name, replaced)

    return change


def _afterwards(change: Callable[[Any], object]) -> Callable[..., Any]:
    """Run a method, then change its object."""

    def method(original: Callable[..., Any], owner: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = original(owner, *arguments, **keywords)
        change(owner)
        return answer

    return method


def _set(name: str, value: Any) -> Callable[[Any], object]:
    return lambda owner: setattr(owner, name, value)


def _another_group(layer: Any) -> None:
    from megatron.core import parallel_state

    layer.tp_group = parallel_state.get_pipeline_model_parallel_group()


def _asks_for_more(run: Run) -> None:
    """The overridden method takes one argument more, as after a release of the other package."""
    model = run.upstream("megatron.core.models.gpt.gpt_model:GPTModel")
    own = model.forward

    def forward(self: Any, *arguments: Any, token_weights: Any = None, **keywords: Any) -> Any:
        return own(self, *arguments, **keywords)

    model.forward = forward


def _takes_less(run: Run) -> None:
    """A method no longer takes what its caller in the same class passes."""
    layer = run.upstream("megatron.core.transformer.transformer_layer:TransformerLayer")

    def _forward_mlp(self: Any, hidden_states: Any) -> Any:
        raise NotImplementedError

    layer._forward_mlp = _forward_mlp


def _removed(run: Run) -> None:
    """A function that verl asks for by name is gone."""
    del run.upstream("megatron.core.dist_checkpointing").load_content_metadata


def _foreign_function(run: Run) -> None:
    state = run.upstream("megatron.core.parallel_state")
    state.get_tensor_model_parallel_rank = run.upstream("verl.utils.megatron_utils:unwrap_model")


_BUILD = "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config"

FAULTS = (
    Fault(
        "expert parallel size lost",
        "process_group_sizes",
        "*resolved_config.expert_model_parallel_size",
        _around(_BUILD, _afterwards(lambda engine: _set("expert_model_parallel_size", 1)(engine.provider))),
        layout="ep2",
    ),
    Fault(
        "a layer with another group",
        "process_groups",
        "*groups.0.decoder.layers.0.self_attention.linear_proj.tp_group*",
        _around("megatron.core.tensor_parallel.layers:RowParallelLinear.__init__", _afterwards(_another_group)),
        {"hf_config": "qwen3"},
        layout="tp2_sp",
    ),
    Fault(
        "a method takes less",
        "call_arguments",
        "megatron.core.transformer.transformer_layer:TransformerLayer.forward → self._forward_mlp",
        _takes_less,
        {"package": "megatron.core"},
    ),
    Fault(
        "an overridden method takes more",
        "overridden_methods",
        "megatron.bridge.models.qwen_vl.*forward",
        _asks_for_more,
        {"package": "megatron.bridge"},
    ),
    Fault(
        "a function that is asked for is gone",
        "feature_tests",
        "load_content_metadata in verl.utils.checkpoint.megatron_checkpoint_manager:*",
        _removed,
        {"package": "verl"},
    ),
    Fault("a function of another package", "import_order", "megatron.core.parallel_state:*", _foreign_function),
)
