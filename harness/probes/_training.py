"""One step of a model through Megatron-Core's own schedule, and the gradients it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.observe.placement import Placement
from harness.observe.run import HarnessFault, Run
from harness.probes._trace import traced
from harness.probes._weights import placed_parameters

SEQUENCES = 4
"""Sequences of the global batch; the data parallel size must divide it."""

TOKENS = 16
"""Tokens of a sequence."""


def forward_backward(run: Run, chunks: Sequence[Any]) -> dict[str, Any]:
    """One micro-batch forward and backward, gradients finished by whatever verl registered as finalizer.

    What passes each module goes to `run.trace`.

    Returns:
        On the last pipeline stage `logits` (float32, this rank's sequences x tokens x its part of the vocabulary) and
        `loss`, the mean over this rank's tokens; on other stages nothing.
    """
    import torch

    cross_entropy = run.upstream("verl.utils.megatron.tensor_parallel:vocab_parallel_log_probs_from_logits")
    schedule = run.upstream("megatron.core.pipeline_parallel:get_forward_backward_func")()
    seen: dict[str, Any] = {}

    def forward_step(batches: Any, model: Any) -> tuple[Any, Any]:
        tokens, labels = next(batches)
        positions = torch.arange(TOKENS).expand_as(tokens)
        output = model(input_ids=tokens, position_ids=positions, attention_mask=None)

        def loss_of(logits: Any) -> tuple[Any, dict[str, Any]]:
            seen["logits"] = logits.detach().float().clone()
            loss = -cross_entropy(logits.float(), labels).mean()
            seen["loss"] = loss.detach().clone()
            return loss, {}

        return output, loss_of

    batch = _batch(run)
    with traced(run, chunks):
        schedule(
            forward_step_func=forward_step,
            data_iterator=[iter([batch]) for _chunk in chunks] if len(chunks) > 1 else iter([batch]),
            model=list(chunks),
            num_microbatches=1,
            seq_length=TOKENS,
            micro_batch_size=len(batch[0]),
            forward_only=False,
        )
    return seen


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


def parameters(chunks: Sequence[Any]) -> dict[str, Any]:
    """A copy of every parameter of this rank, by global name."""
    return {placed.name: placed.parameter.detach().clone() for placed in placed_parameters(chunks)}


def record_placement(run: Run, chunks: Sequence[Any], tree: Mapping[str, Any]) -> None:
    """Say what part of each tensor of the probe's tree this rank holds.

    Parameters, and what is named like them, lie as Megatron-Core marks them. Logits lie by sequences on data parallel
    ranks, by vocabulary on tensor parallel ones; the loss is a mean over this data parallel rank's sequences.

    Raises:
        HarnessFault: logits are sharded both ways.
    """
    state = run.upstream("megatron.core.parallel_state")
    tensor = (state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size())
    data = (state.get_data_parallel_rank(), state.get_data_parallel_world_size())
    if tensor[1] > 1 and data[1] > 1 and "logits" in tree:
        raise HarnessFault("logits sharded by sequence and by vocabulary; their placement has one dimension")
    places = {
        placed.name: Placement(placed.dim, placed.rank, placed.shards, placed.blocks)
        for placed in placed_parameters(chunks)
    }
    for kind in ("parameters", "gradients", "updated"):
        run.placement |= {f"{kind}/{name}": places[name] for name in tree[kind]}
    if "logits" in tree:
        run.placement["logits"] = Placement(0, *data) if data[1] > 1 else Placement(2, *tensor)
        run.placement["loss"] = Placement(None, *data, mean=True)


def _batch(run: Run) -> tuple[Any, Any]:
    """This data parallel rank's part of the global batch: tokens, and each token's successor as its label."""
    import torch

    state = run.upstream("megatron.core.parallel_state")
    stream = (torch.arange(SEQUENCES * (TOKENS + 1)) * 37 + 5) % 101
    shares = stream.view(SEQUENCES, TOKENS + 1).chunk(state.get_data_parallel_world_size())
    mine = shares[state.get_data_parallel_rank()]
    return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def _gather(buffer: Any) -> None:
    import torch

    group = buffer.data_parallel_group
    for bucket in buffer.buckets:
        mine = bucket.grad_data.chunk(group.size())[group.rank()].clone()
        torch.distributed.all_gather_into_tensor(bucket.grad_data, mine, group=group)
