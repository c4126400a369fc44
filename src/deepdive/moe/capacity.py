# SPDX-License-Identifier: MIT
"""What if too many tokens want the same expert? The last ones are dropped.

An expert that takes a fixed number of tokens is a matrix of fixed size, which is what
a compiled program on many machines needs. A dropped token gets zeros from this layer;
the residual connection around it carries the token on.

Source: Fedus et al. 2021 (arXiv:2101.03961), §2.2, for one expert per token; K experts
and rounding up are this book's.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from deepdive.inputs import check_kind, check_sizes
from deepdive.moe.routing import Routing, expert_counts


def drop_overflow(routing: Routing, capacity: int) -> Routing:
    """Let every expert keep its first `capacity` tokens, by position; drop the others.

    The gates of dropped choices become 0, the other gates stay as they are.

    Raises:
        ValueError: capacity below 1.

    Note:
        With K > 1 all choices of an earlier token go before those of a later one.
        (GShard serves all first choices before any second choice.)

    Taught in: book/14_mixture_of_experts.ipynb
    """
    check_kind("routing", routing, Routing)
    check_sizes(capacity=capacity)
    expert = routing.experts.flatten()  # (N·K,), by position
    counts = expert_counts(routing)
    first = counts.cumsum(0) - counts  # (E,), where each expert's queue begins
    queue = expert.argsort(stable=True)  # experts in order, each by position
    place = torch.empty_like(expert)
    place[queue] = torch.arange(len(queue), device=queue.device) - first[expert[queue]]
    kept = (place < capacity).view_as(routing.experts)  # (N, K)
    if routing.kept is not None:
        kept = kept & routing.kept
    return replace(routing, gates=routing.gates.masked_fill(~kept, 0.0), kept=kept)


class Capped(nn.Module):
    """A router whose experts take a limited number of tokens of each batch.

        capacity = ⌈N·K / E · factor⌉

    Shapes:
        x (N, d_model) → a `Routing` of N tokens

    Args:
        factor: 1 leaves no slack; Switch works well with 1 and 1.25.

    Raises:
        ValueError: factor not finite or not above 0.

    Note:
        What a token gets depends on the tokens before it *and on how many come with
        it*: generating one at a time, where nothing is ever dropped, differs from
        reading all at once.

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(self, router: nn.Module, factor: float):
        super().__init__()
        check_kind("router", router, nn.Module)
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be finite and > 0, got {factor}")
        self.router, self.factor = router, factor
        self.d_model, self.n_experts = router.d_model, router.n_experts

    def forward(self, x: Tensor) -> Routing:
        routing = self.router(x)
        wanted = routing.experts.numel() / self.n_experts * self.factor
        return drop_overflow(routing, max(1, math.ceil(wanted)))
