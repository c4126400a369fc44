# SPDX-License-Identifier: MIT
"""Which experts does a token visit, given a score for each?

Taught in: book/14_mixture_of_experts.ipynb
"""

import math
from dataclasses import dataclass
from types import NoneType

import torch
from torch import Tensor

from deepdive.inputs import check_floats, check_kind, check_sizes


@dataclass(frozen=True)
class Groups:
    """A limit on the choice: experts stand in groups, a token reaches only a few.

    A group's score is the sum of its `best` highest expert scores; the `top_groups`
    groups with the highest scores stay open. Groups are machines: fewer of them, less
    traffic.

    Args:
        best: 1 in DeepSeek-V2 (the maximum), 2 in DeepSeek-V3.

    Source: DeepSeek-V2 (arXiv:2405.04434), §2.2.2; DeepSeek-V3 (arXiv:2412.19437),
        §2.1.2, node-limited routing.

    >>> scores = torch.tensor([[0.9, 0.0, 0.5, 0.6]])
    >>> Groups(n_groups=2, top_groups=1, best=1).reachable(scores).tolist()
    [[True, True, False, False]]
    >>> Groups(n_groups=2, top_groups=1, best=2).reachable(scores).tolist()
    [[False, False, True, True]]

    Taught in: book/15_deepseek.ipynb
    """

    n_groups: int
    top_groups: int
    best: int = 1

    def __post_init__(self):
        check_sizes(n_groups=self.n_groups, top_groups=self.top_groups, best=self.best)
        if self.top_groups > self.n_groups:
            raise ValueError(
                f"top_groups {self.top_groups} is more than n_groups {self.n_groups}"
            )

    def reachable(self, scores: Tensor) -> Tensor:
        """Which experts stand in an open group: (N, E) → (N, E) bool."""
        _check_scores(scores)
        if scores.shape[1] % self.n_groups:
            raise ValueError(
                f"n_groups {self.n_groups} does not divide {scores.shape[1]} experts"
            )
        size = scores.shape[1] // self.n_groups
        grouped = scores.unflatten(1, (self.n_groups, size))  # (N, groups, size)
        of_group = grouped.topk(min(self.best, size), dim=-1).values.sum(-1)
        open_ones = of_group.topk(self.top_groups, dim=-1).indices
        reach = torch.zeros_like(of_group, dtype=torch.bool).scatter(1, open_ones, True)
        return reach.repeat_interleave(size, dim=1)  # (N, E)


def choose(scores: Tensor, top_k: int, groups: Groups | None = None) -> Tensor:
    """The K experts with the highest scores, best first, among those within reach.

    Shapes:
        scores (N, E) → (N, K) int64

    Note:
        Experts out of reach get −∞. Zero would do for softmax scores, but a score with
        a selection bias may be negative, and zero would then win.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    _check_scores(scores)
    check_sizes(top_k=top_k)
    if top_k > scores.shape[1]:
        raise ValueError(f"top_k {top_k} is more than {scores.shape[1]} experts")
    check_kind("groups", groups, Groups, NoneType)
    if groups is not None:
        scores = scores.masked_fill(~groups.reachable(scores), -torch.inf)
    return scores.topk(top_k, dim=-1).indices


def _check_scores(scores: Tensor) -> None:
    """Floats, one for each token and expert."""
    check_floats("scores", scores)
    if scores.dim() != 2:
        raise ValueError(f"scores must be (N, E), got {tuple(scores.shape)}")


def check_choice(
    n_experts: int, top_k: int, scale: float, groups: Groups | None
) -> None:
    """Can K experts be chosen within these groups? Raises where they cannot."""
    if not isinstance(scale, (int, float)) or isinstance(scale, bool):
        raise TypeError(f"routed_scale must be a number, got {scale!r}")
    if not 0 < scale < math.inf:
        raise ValueError(f"routed_scale must be finite and > 0, got {scale}")
    if groups is None:
        return
    check_kind("groups", groups, Groups)
    if n_experts % groups.n_groups:
        raise ValueError(
            f"n_groups {groups.n_groups} does not divide n_experts {n_experts}"
        )
    reach = n_experts // groups.n_groups * groups.top_groups
    if top_k > reach:
        raise ValueError(
            f"top_k {top_k} is more than the {reach} experts of "
            f"{groups.top_groups} groups"
        )
