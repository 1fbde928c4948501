"""Collectives of unequal parts, which NCCL has and gloo has not: experts get as many tokens as are routed to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def answers(torch: Any) -> dict[str, Callable[..., Any]]:
    """What stands in the place of the collectives, by their names; equal parts go to gloo as they are."""
    own_all_gather, own_reduce_scatter = torch.distributed.all_gather, torch.distributed.reduce_scatter

    def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        if len({part.shape for part in tensor_list}) <= 1:
            __tracebackhide__ = True  # what is raised here is raised for the caller
            return own_all_gather(tensor_list, tensor, group=group, async_op=async_op)
        longest = max(len(part) for part in tensor_list)
        padded = [tensor.new_zeros(longest, *tensor.shape[1:]) for _ in tensor_list]
        mine = tensor.new_zeros(longest, *tensor.shape[1:])
        mine[: len(tensor)] = tensor
        own_all_gather(padded, mine, group=group)
        for part, whole in zip(tensor_list, padded, strict=True):
            part.copy_(whole[: len(part)])
        return None

    def reduce_scatter(output: Any, input_list: list[Any], *arguments: Any, **keywords: Any) -> Any:
        if len({part.shape for part in input_list}) <= 1:
            __tracebackhide__ = True
            return own_reduce_scatter(output, input_list, *arguments, **keywords)
        group = keywords.get("group")
        whole = torch.cat(input_list)
        torch.distributed.all_reduce(whole, group=group)
        output.copy_(whole.split([len(part) for part in input_list])[torch.distributed.get_rank(group)])
        return None

    return {"torch.distributed.all_gather": all_gather, "torch.distributed.reduce_scatter": reduce_scatter}
