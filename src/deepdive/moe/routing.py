# SPDX-License-Identifier: MIT
"""What does a router decide? For each token: which experts, and how much of each."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from deepdive.inputs import check_kind


@dataclass(frozen=True)
class Routing:
    """The decision for N tokens, and what the balance losses need to judge it.

    Shapes:
        experts (N, K) int64: the chosen ones, best first, all different
        gates (N, K): how much of each chosen expert's output is taken
        logits (N, E): what the router computed, noise included
        probabilities (N, E): the scores of all experts, every row sums to 1
        chances (N, E), noisy top-k in training only: how likely each expert was to be
            chosen, had its noise been drawn again
        kept (N, K) bool, where a capacity holds: False = dropped, its gate is 0

    Note:
        Floats are float32 or wider, whatever the model's dtype, and carry gradients.

    Taught in: book/14_mixture_of_experts.ipynb
    """

    experts: Tensor
    gates: Tensor
    logits: Tensor
    probabilities: Tensor
    chances: Tensor | None = None
    kept: Tensor | None = None

    @property
    def n_experts(self) -> int:
        """E, chosen or not."""
        return self.logits.shape[1]

    def rows(self, which: Tensor) -> "Routing":
        """The decision for some tokens only, such as the real ones of a padded batch.

        Shapes:
            which (N,) bool or (M,) int64
        """
        parts = {item.name: getattr(self, item.name) for item in fields(self)}
        return Routing(**{k: v if v is None else v[which] for k, v in parts.items()})


def dense_gates(routing: Routing) -> Tensor:
    """The gates laid out over all experts: zero where an expert was not chosen.

    Shapes:
        → (N, E)

    >>> three = torch.tensor([[0.0, 0.0, 0.0]])
    >>> choice = Routing(torch.tensor([[2, 0]]), torch.tensor([[0.75, 0.25]]),
    ...                  three, three.softmax(-1))
    >>> dense_gates(choice).tolist()
    [[0.25, 0.0, 0.75]]

    Taught in: book/14_mixture_of_experts.ipynb
    """
    check_kind("routing", routing, Routing)
    empty = routing.gates.new_zeros(routing.logits.shape)
    return empty.scatter(1, routing.experts, routing.gates)  # (N, E)


def expert_counts(routing: Routing) -> Tensor:
    """How often each expert was chosen; dropped choices count, they were wanted.

    Shapes:
        → (E,) int64, summing to N·K

    Taught in: book/14_mixture_of_experts.ipynb
    """
    check_kind("routing", routing, Routing)
    return torch.bincount(routing.experts.flatten(), minlength=routing.n_experts)
