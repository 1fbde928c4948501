"""A training step of a small mixture-of-experts model in numpy, in which everything that can go wrong can be made to.

Two data parallel ranks, one sequence of 16 tokens each; two tensor parallel ranks in the experts; float32 arithmetic
whose reductions can be reordered, rounded to the model's dtype where upstream rounds; AdamW on the output layer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = dict[str, Array]

SEQUENCES, TOKENS, HIDDEN, HEADS, EXPERTS, INNER, VOCABULARY = 2, 16, 32, 4, 4, 32, 4096
_SEEN = ("attention", "experts", "logits", "loss", "auxiliary loss")
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Inputs:
    """Parameters in the model's dtype, optimizer state in float32, token ids, labels and loss mask."""

    parameters: Tensors
    state: Tensors
    tokens: Array
    labels: Array
    mask: Array


def make_inputs(seed: int, dtype: str) -> Inputs:
    """Inputs drawn in float64 and rounded once."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, spread: float) -> Array:
        return rng.normal(0, spread, shape).astype(DTYPES[dtype])

    embedding = normal(VOCABULARY, HIDDEN, spread=0.02)
    embedding[0] = 0
    parameters = {
        "embedding": embedding,
        "positions": normal(TOKENS + 1, HIDDEN, spread=0.02),
        "norm": normal(HIDDEN, spread=0.1) + DTYPES[dtype].type(1),
        **{name: normal(HIDDEN, HIDDEN, spread=0.2) for name in ("query", "key", "value", "out")},
        "router": normal(HIDDEN, EXPERTS, spread=0.2),
        "fc1": normal(EXPERTS, HIDDEN, 2 * INNER, spread=0.2),
        "fc2": normal(EXPERTS, INNER, HIDDEN, spread=0.2),
        "head": normal(VOCABULARY, HIDDEN, spread=0.1),
    }
    state = {
        "first": rng.normal(0, 5e-5, (VOCABULARY, HIDDEN)).astype(np.float32),
        "second": rng.gamma(2.0, 1e-10, (VOCABULARY, HIDDEN)).astype(np.float32),
    }
    shape = (SEQUENCES, TOKENS)
    mask = (rng.random(shape) < 0.7).astype(np.float32)
    mask[:, :2] = (0, 1)
    return Inputs(parameters, state, rng.integers(1, VOCABULARY, shape), rng.integers(0, VOCABULARY, shape), mask)


def moved_by_one_ulp(inputs: Inputs, seed: int) -> Inputs:
    """The same inputs, what enters the first layer moved up or down by one unit in the last place."""
    rng = np.random.default_rng(seed)

    def moved(array: Array) -> Array:
        bits = array.view(f"i{array.itemsize}")
        step = rng.integers(0, 2, array.shape).astype(bits.dtype) * 2 - 1
        return np.where(array == 0, bits, bits + step).astype(bits.dtype).view(array.dtype)

    parameters = {**inputs.parameters, **{name: moved(inputs.parameters[name]) for name in ("embedding", "positions")}}
    return Inputs(parameters, inputs.state, inputs.tokens, inputs.labels, inputs.mask)


def training_step(inputs: Inputs, faults: Collection[str] = (), order: int | None = None) -> Tensors:
    """Forward, loss, backward of the output layer, gradient reduction and one optimizer step.

    Args:
        faults: what goes wrong, by name; see `seeded_faults.FAULTS`.
        order: seed of the order in which reductions are summed; None is numpy's own.
    """
    return _Step(inputs, frozenset(faults), order).run()


class _Step:
    def __init__(self, inputs: Inputs, faults: frozenset[str], order: int | None) -> None:
        self.faults = faults
        self.inputs = inputs
        self.dtype = inputs.parameters["head"].dtype
        self.weights = {name: array.astype(np.float32) for name, array in inputs.parameters.items()}
        self.order = None if order is None else np.random.default_rng(order)
        self.dropout = np.random.default_rng(1234)

    def run(self) -> Tensors:
        ranks = [self.rank(number) for number in range(SEQUENCES)]
        seen = {name: np.stack([rank[name] for rank in ranks]) for name in _SEEN}
        gradient = self.reduced([rank["gradient"] for rank in ranks])
        return {
            **{f"activations/{name}": seen[name].astype(self.dtype) for name in ("attention", "experts", "logits")},
            "loss": seen["loss"],
            "auxiliary loss": seen["auxiliary loss"],
            "gradients/hidden": np.stack([rank["hidden gradient"] for rank in ranks]).astype(self.dtype),
            "gradients/head": gradient,
            **self.updated(gradient),
            "parameters/embedding": self.inputs.parameters["embedding"].copy(),
        }

    # Forward -----------------------------------------------------------------------------------------------------

    def rank(self, number: int) -> Tensors:
        hidden = self.embedded(self.inputs.tokens[number])
        attention = self.attention(self.normed(hidden))
        hidden = self.rounded(hidden + attention)
        source = self.normed(hidden)
        experts, auxiliary = self.experts(source)
        hidden = self.rounded((source if "residual after the norm" in self.faults else hidden) + experts)
        final = self.normed(hidden)
        logits = self.product(final, self.weights["head"].T)
        if "logits scaled by 0.1 %" in self.faults:
            logits = logits * np.float32(1.001)
        logits = self.rounded(logits)
        loss, towards = self.loss(logits, number)
        auxiliary = auxiliary * np.float32(2 if "auxiliary loss added twice" in self.faults else 1)
        return {
            "attention": attention,
            "experts": experts,
            "logits": logits,
            "loss": np.asarray(loss + auxiliary, dtype=np.float32),
            "auxiliary loss": np.asarray(auxiliary, dtype=np.float32),
            "gradient": self.product(towards.T, final),
            "hidden gradient": self.product(towards, self.weights["head"]),
        }

    def embedded(self, tokens: Array) -> Array:
        positions = np.arange(TOKENS) + ("position ids off by one" in self.faults)
        hidden = self.weights["embedding"][tokens] + self.weights["positions"][positions]
        generator = np.random.default_rng(1234) if "RNG not advanced" in self.faults else self.dropout
        return self.rounded(np.where(generator.random(hidden.shape) < 0.1, 0, hidden / np.float32(0.9)))

    def normed(self, hidden: Array) -> Array:
        epsilon = 1e-5 if "epsilon of the norm" in self.faults else 1e-6
        scale = np.sqrt(self.total(hidden * hidden) / np.float32(HIDDEN) + np.float32(epsilon))
        weight = self.weights["norm"] + ("norm weight counted from one" in self.faults)
        return self.rounded(hidden / scale[:, None] * weight.astype(np.float32))

    def attention(self, hidden: Array) -> Array:
        query, key, value = (
            self.rounded(self.product(hidden, self.weights[name])).reshape(TOKENS, HEADS, -1)
            for name in ("query", "key", "value")
        )
        width = HIDDEN if "attention scaled by the hidden size" in self.faults else HIDDEN // HEADS
        ahead = 2 if "a token sees the next" in self.faults else 1
        hide = np.triu(np.full((TOKENS, TOKENS), -np.inf, dtype=np.float32), ahead)
        heads = []
        for head in range(HEADS):
            scores = self.product(query[:, head], key[:, head].T) / np.float32(np.sqrt(width)) + hide
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights = self.rounded(weights / self.total(weights)[:, None])
            if "attention dropout left on" in self.faults:
                weights = weights * (np.random.default_rng(head).random(weights.shape) > 0.1) / np.float32(0.9)
            heads.append(self.rounded(self.product(weights, value[:, head])))
        if "heads swapped" in self.faults:
            heads[0], heads[1] = heads[1], heads[0]
        out = self.weights["out"].T if "weight transposed" in self.faults else self.weights["out"]
        return self.rounded(self.product(np.concatenate(heads, axis=1), out))

    def experts(self, hidden: Array) -> tuple[Array, Array]:
        """The experts' output, [tokens, hidden], and the load balancing loss of Switch (arXiv 2101.03961)."""
        scores = np.exp(self.product(hidden, self.weights["router"]))
        shares = scores / self.total(scores)[:, None]
        # The inputs' own noise must not choose another expert: the choice is made on few digits.
        chosen = np.argsort(np.round(shares, 2), axis=1, kind="stable")[:, -1]
        if "second best expert for a token" in self.faults:
            chosen[3] = np.argsort(np.round(shares[3], 2), kind="stable")[-2]
        out = np.zeros_like(hidden)
        for expert in range(EXPERTS):
            rows = chosen == expert
            if rows.any() and not ("an expert skipped" in self.faults and expert == chosen[0]):
                out[rows] = self.expert(hidden[rows], expert)
        if "router share not applied" not in self.faults:
            out = out * shares[np.arange(TOKENS), chosen][:, None]
        load = np.bincount(chosen, minlength=EXPERTS).astype(np.float32) / np.float32(TOKENS)
        auxiliary = np.float32(0.01 * EXPERTS) * self.total((load * shares.mean(axis=0))[None])[0]
        return self.rounded(out), auxiliary

    def expert(self, hidden: Array, expert: int) -> Array:
        fc1 = self.weights["fc1"][expert]
        gate, up = self.product(hidden, fc1[:, :INNER]), self.product(hidden, fc1[:, INNER:])
        if "gate and up exchanged" in self.faults:
            gate, up = up, gate
        if "GELU in the place of SiLU" in self.faults:
            inner = gate / (1 + np.exp(-np.float32(1.702) * gate)) * up
        else:
            inner = gate / (1 + np.exp(-gate)) * up
        half = INNER // 2
        fc2 = self.weights["fc2"][expert]
        parts = [self.product(self.rounded(inner[:, at]), fc2[at]) for at in (slice(half), slice(half, None))]
        if "tensor parallel rank not reduced" in self.faults:
            return parts[0]
        return (parts[0] + parts[1]) / np.float32(2 if "tensor parallel mean, not sum" in self.faults else 1)

    def loss(self, logits: Array, number: int) -> tuple[Array, Array]:
        """The mean over this rank's unmasked tokens, and its gradient towards the logits."""
        labels, mask = self.inputs.labels[number], self.inputs.mask[number]
        if "labels shifted" in self.faults:
            labels = np.roll(labels, 1)
        if "loss mask ignored" in self.faults:
            mask = np.ones_like(mask)
        if "loss mask shifted" in self.faults:
            mask = np.roll(mask, 1)
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        sums = self.total(scores)
        negative = np.log(sums) - (logits - logits.max(axis=1, keepdims=True))[np.arange(TOKENS), labels]
        counted = np.float32(TOKENS) if "loss over all tokens" in self.faults else mask.sum()
        towards = scores / sums[:, None]
        towards[np.arange(TOKENS), labels] -= 1
        return self.total((negative * mask)[None])[0] / counted, towards * (mask / counted)[:, None]

    # Reduction and optimizer -------------------------------------------------------------------------------------

    def reduced(self, gradients: list[Array]) -> Array:
        if "gradient dropped on a rank" in self.faults:
            gradients = [gradients[0], np.zeros_like(gradients[1])]
        if self.order is not None and self.order.random() < 0.5:
            gradients = gradients[::-1]
        total = gradients[0] + gradients[1]
        return total if "gradients summed, not averaged" in self.faults else total / np.float32(SEQUENCES)

    def updated(self, gradient: Array) -> Tensors:
        """AdamW with decoupled decay (arXiv 1711.05101), step 4, after clipping to norm 1."""
        norm = np.sqrt(self.total(self.total(gradient * gradient)[None])[0])
        clip = min(np.float32(1), np.float32(0.1) / norm)
        if "gradients not clipped" in self.faults:
            clip = np.float32(1)
        clipped = gradient * clip
        state, step = self.inputs.state, 4
        first = np.float32(0.9) * state["first"] + np.float32(0.1) * clipped
        second = np.float32(0.999) * state["second"] + np.float32(0.001) * clipped * clipped
        if "optimizer state stale" in self.faults:
            first = state["first"].copy()
        correct = (1.0, 1.0) if "no bias correction" in self.faults else (1 - 0.9**step, 1 - 0.999**step)
        rate = np.float32(1e-3 * (0.9 if "learning rate a step late" in self.faults else 1))
        second_root = np.sqrt(second / np.float32(correct[1]))
        if "epsilon under the root" in self.faults:
            second_root = np.sqrt(second / np.float32(correct[1]) + np.float32(1e-8))
        head = self.weights["head"]
        decay = np.float32(0 if "no weight decay" in self.faults else 0.1)
        new = head - rate * (first / np.float32(correct[0]) / (second_root + np.float32(1e-8)) + decay * head)
        if "a parameter not updated" in self.faults:
            new[100:200] = head[100:200]
        return {"gradient norm": np.asarray(norm), "state/first": first, "state/second": second, "updated/head": new}

    # Arithmetic --------------------------------------------------------------------------------------------------

    def rounded(self, array: Array) -> Array:
        return array.astype(self.dtype).astype(np.float32)

    def product(self, left: Array, right: Array) -> Array:
        """left @ right in float32, the inner dimension summed in four pieces, in the run's order."""
        if self.order is None:
            return np.matmul(left, right, dtype=np.float32)
        pieces = np.array_split(self.order.permutation(left.shape[1]), 4)
        total = np.zeros((left.shape[0], right.shape[1]), dtype=np.float32)
        for piece in pieces:
            total += np.matmul(left[:, piece], right[piece], dtype=np.float32)
        return total

    def total(self, array: Array) -> Array:
        """Sums over the last dimension in float32, in the run's order."""
        if self.order is not None:
            array = array[:, self.order.permutation(array.shape[1])]
        return np.asarray(array.sum(axis=1, dtype=np.float32))
