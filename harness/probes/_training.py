"""One step of a model through Megatron-Core's own schedule, and the gradients it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.observe.placement import Cut, Placement
from harness.observe.run import Run
from harness.probes._trace import traced
from harness.probes._weights import placed_parameters

SEQUENCES = 4
"""Sequences of the global batch, or one for each data parallel rank where those are more; the data parallel size times
the number of micro-batches must divide it."""

TOKENS = 16
"""Tokens of a sequence."""


def take_steps(
    run: Run, engine: Any, *, steps: int = 1, label_the_model: bool = False, objective: str = "tokens"
) -> dict[str, Any]:
    """Take training steps with an engine whose model chunks have their parameters; its optimizer is built here.

    Zeroing, the step and, between steps, the learning rate's schedule are the engine's own methods.

    Args:
        steps: how many, on the same batch; more than one also brings the optimizer's state.
        label_the_model: give the model the labels, as multi-token prediction needs.
        objective: as `forward_backward`.

    Returns:
        By global parameter name, this rank's shards: `parameters` before the first step, `gradients` of the last
        (reduced, of the buffer's dtype), `updated` after it. `grad_norm` of the last step, and what `forward_backward`
        says of it. After more than one, `grad_norms` and `losses` of all, and `optimizer` (see `optimizer_state`).
    """
    chunks = list(engine.module)
    tree: dict[str, Any] = {"parameters": parameters(chunks)}
    engine.optimizer = engine._build_optimizer()
    if steps > 1:
        engine.lr_scheduler = engine._build_lr_scheduler()
        tree |= {"grad_norms": [], "losses": []}
    for step in range(steps):
        engine.optimizer_zero_grad()
        tree |= forward_backward(run, chunks, label_the_model=label_the_model, objective=objective)
        tree |= {"gradients": gradients(chunks), "grad_norm": engine.optimizer_step()}
        if steps > 1:
            tree["grad_norms"].append(tree["grad_norm"])
            tree["losses"].append(tree["loss"].item() if "loss" in tree else None)
            tree["learning_rate"] = engine.lr_scheduler_step() if step < steps - 1 else tree["learning_rate"]
    tree["updated"] = parameters(chunks)
    if steps > 1:
        tree["optimizer"] = optimizer_state(engine.optimizer, chunks)
    return tree


def forward_backward(
    run: Run, chunks: Sequence[Any], *, label_the_model: bool = False, objective: str = "tokens"
) -> dict[str, Any]:
    """Forward and backward, gradients finished by whatever verl registered as finalizer.

    One micro-batch; as many as pipeline stages where they are interleaved, which is the fewest that Megatron-Core
    takes. What passes each module goes to `run.trace`.

    Args:
        label_the_model: give the model the labels, as multi-token prediction needs.
        objective: `tokens` (cross entropy of the successor) or `values` (squared distance from a function of it).

    Returns:
        On the last pipeline stage `logits` (float32, this rank's sequences x its part of the tokens x its part of the
        vocabulary), or `values` (its sequences x its part of the tokens x 1), and `loss`, the mean over this rank's
        tokens; on other stages nothing.
    """
    import torch

    name, loss_function = {"tokens": ("logits", _cross_entropy), "values": ("values", _squared_error)}[objective]
    schedule = run.upstream("megatron.core.pipeline_parallel:get_forward_backward_func")()
    seen: dict[str, list[Any]] = {name: [], "loss": []}

    def forward_step(batches: Any, model: Any) -> tuple[Any, Any]:
        tokens, positions, labels = next(batches)
        labelled = {"labels": labels} if label_the_model else {}
        output = model(input_ids=tokens, position_ids=positions, attention_mask=None, **labelled)

        def loss_of(output: Any) -> tuple[Any, dict[str, Any]]:
            seen[name].append(output.detach().float().clone())
            loss = loss_function(run, output, labels)
            seen["loss"].append(loss.detach().clone())
            # Megatron-Core sums over context parallel ranks; a mean of means is wanted.
            return loss / run.layout.context_parallel_size, {}

        return output, loss_of

    batches = _batches(run, run.layout.pipeline_model_parallel_size if len(chunks) > 1 else 1)
    with traced(run, chunks):
        schedule(
            forward_step_func=forward_step,
            data_iterator=[iter(batches) for _chunk in chunks] if len(chunks) > 1 else iter(batches),
            model=list(chunks),
            num_microbatches=len(batches),
            seq_length=TOKENS,
            micro_batch_size=len(batches[0][0]),
            forward_only=False,
        )
    if not seen["loss"]:
        return {}
    return {name: torch.cat(seen[name]), "loss": torch.stack(seen["loss"]).mean()}


def _cross_entropy(run: Run, logits: Any, labels: Any) -> Any:
    log_probs = run.upstream("verl.utils.megatron.tensor_parallel:vocab_parallel_log_probs_from_logits")
    return -log_probs(logits.float(), labels).mean()


def _squared_error(_run: Run, values: Any, labels: Any) -> Any:
    return (values.float() - labels.unsqueeze(-1) / 101).square().mean()


def gradients(chunks: Sequence[Any]) -> dict[str, Any]:
    """The gradient of every parameter of this rank, by global name.

    What the distributed optimizer left scattered over the data parallel ranks is gathered first.
    """
    for chunk in chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            if buffer.ddp_config.use_distributed_optimizer:
                _gather(buffer)
    found = {placed.name: placed.parameter for placed in placed_parameters(chunks)}
    return {name: parameter.main_grad.clone() for name, parameter in found.items() if parameter.requires_grad}


def requires_grad(chunks: Sequence[Any]) -> dict[str, bool]:
    """Whether each parameter of this rank is trained, by global name."""
    return {placed.name: placed.parameter.requires_grad for placed in placed_parameters(chunks)}


def optimizer_state(optimizer: Any, chunks: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Main parameters and state of a Megatron optimizer, by what it is and by global parameter name.

    Returns:
        `param` (the copy that is stepped), `exp_avg` and `exp_avg_sq`: of the parameter's shape; one-dimensional and
        this rank's part alone where the distributed optimizer scatters it, absent where the part is empty.
    """
    kept: dict[str, dict[str, Any]] = {}
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        for placed in placed_parameters(chunks):
            main = _main_parameter(part, placed.parameter)
            state = part.optimizer.state.get(main, {}) if main is not None else {}
            for name, value in ({"param": main} | state if state else {}).items():
                if getattr(value, "dim", lambda: 0)():
                    kept.setdefault(name, {})[placed.name] = value.detach().clone()
    return kept


def _main_parameter(optimizer: Any, parameter: Any) -> Any:
    """What the inner optimizer steps in the place of a model's parameter; None where it steps nothing of it."""
    scattered = getattr(optimizer, "model_param_group_index_map", None)
    if scattered is None:
        return getattr(parameter, "main_param", parameter)
    if parameter not in scattered:
        return None
    group, position = scattered[parameter]
    return optimizer.optimizer.param_groups[group]["params"][position]


def parameters(chunks: Sequence[Any]) -> dict[str, Any]:
    """A copy of every parameter of this rank, by global name."""
    return {placed.name: placed.parameter.detach().clone() for placed in placed_parameters(chunks)}


def record_placement(run: Run, chunks: Sequence[Any], tree: Mapping[str, Any]) -> None:
    """Say what part of each tensor of the probe's tree this rank holds.

    Parameters, and what is named like them, lie as Megatron-Core marks them. Logits lie by sequences on data parallel
    ranks, by tokens on context parallel ones, by vocabulary on tensor parallel ones; the loss is a mean over this
    rank's share of the tokens.
    """
    data, context, tensor = (_rank_and_size(run, kind) for kind in ("data", "context", "tensor_model"))
    for placed in placed_parameters(chunks):
        cuts = [] if placed.dim is None else [Cut(placed.dim, placed.rank, placed.shards, placed.blocks)]
        for kind in ("parameters", "gradients", "updated"):
            if placed.name in tree[kind]:
                run.placement[f"{kind}/{placed.name}"] = Placement(tuple(cuts))
    if "logits" in tree:
        cuts = [Cut(0, *data), Cut(1, *context, zigzag=True), Cut(2, *tensor)]
        run.placement["logits"] = Placement(tuple(cut for cut in cuts if cut.shards > 1))
        run.placement["loss"] = Placement(mean_of=(data[0] * context[1] + context[0], data[1] * context[1]))


def _rank_and_size(run: Run, kind: str) -> tuple[int, int]:
    state = run.upstream("megatron.core.parallel_state")
    return getattr(state, f"get_{kind}_parallel_rank")(), getattr(state, f"get_{kind}_parallel_world_size")()


def _batches(run: Run, count: int) -> list[tuple[Any, Any, Any]]:
    """This rank's part of the global batch in `count` micro-batches: tokens, their positions, and their successors."""
    import torch

    rank, size = _rank_and_size(run, "data")
    sequences = max(SEQUENCES, size)
    stream = (torch.arange(sequences * (TOKENS + 1)) * 37 + 5) % 101
    mine = stream.view(sequences, TOKENS + 1).chunk(size)[rank]
    positions = torch.arange(TOKENS)
    rank, size = _rank_and_size(run, "context")
    if size > 1:
        positions = torch.tensor(Cut(0, rank, size, zigzag=True).indices(TOKENS // size))
    parts = [
        (part[:, positions], positions.expand(len(part), -1), part[:, positions + 1]) for part in mine.chunk(count)
    ]
    return [tuple(tensor.to(run.lane.device) for tensor in part) for part in parts]


def _gather(buffer: Any) -> None:
    import torch

    group = buffer.data_parallel_group
    for bucket in buffer.buckets:
        mine = bucket.grad_data.chunk(group.size())[group.rank()].clone()
        torch.distributed.all_gather_into_tensor(bucket.grad_data, mine, group=group)
