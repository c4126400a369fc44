# SPDX-License-Identifier: MIT
"""How can a writer look back at every word of the source, and not at one vector only?

The first attention: before each step the decoder scores all source words by a small
network, and reads their mean, weighted by the softmax of the scores.

Source: Bahdanau, Cho and Bengio 2015 (arXiv:1409.0473), §3.1 and appendix A.1.2.

Taught in: book/01_recurrence.ipynb
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from deepdive.inputs import check_vectors
from deepdive.recurrent.cells import check_keep, check_rows


class MaskedSoftmax(nn.Module):
    """Scores to weights; zero where `keep` is False, all zeros where nothing is kept.

    A module, so that `record_alignment` can listen to what it gives.

    Shapes:
        scores (B, S), keep (B, S) bool → (B, S)
    """

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is None:
            return scores.softmax(dim=-1)
        empty = ~keep.any(dim=-1, keepdim=True)  # softmax over nothing would be NaN
        scores = scores.masked_fill(~(keep | empty), -torch.inf)
        return scores.softmax(dim=-1).masked_fill(empty, 0.0)


class BahdanauAttention(nn.Module):
    """Where to look next: additive attention of one query over the source's words.

        score(s, hⱼ) = vᵀ tanh(W s + b + U hⱼ),   α = softmax(score),   out = Σⱼ αⱼ hⱼ

    Shapes:
        query (B, d_query), annotations (B, S, d_memory), keep (B, S) bool
        → (B, d_memory)

    Args:
        d_query: width of s, the decoder's state before the step.
        d_memory: width of an annotation hⱼ; twice the encoder's when it reads in both
            directions.

    Raises:
        ValueError: a size below 1, or a shape that does not fit.
        TypeError: another dtype than the weights.

    Note:
        Where nothing is kept the output is zero. U hⱼ does not change from step to
        step; `keys` computes it once for a whole sentence.

    >>> attention = BahdanauAttention(d_query=4, d_memory=6, d_attention=5)
    >>> attention(torch.zeros(2, 4), torch.zeros(2, 3, 6)).shape
    torch.Size([2, 6])

    Taught in: book/01_recurrence.ipynb
    """

    def __init__(self, d_query: int, d_memory: int, d_attention: int):
        super().__init__()
        if min(d_query, d_memory, d_attention) < 1:
            raise ValueError(
                f"d_query, d_memory and d_attention must be ≥ 1, got {d_query}, "
                f"{d_memory}, {d_attention}"
            )
        self.d_query, self.d_memory = d_query, d_memory
        self.query_proj = nn.Linear(d_query, d_attention)
        self.memory_proj = nn.Linear(d_memory, d_attention, bias=False)
        self.score = nn.Linear(d_attention, 1, bias=False)
        self.softmax = MaskedSoftmax()

    def keys(self, annotations: Tensor) -> Tensor:
        """U hⱼ for all words: (B, S, d_memory) → (B, S, d_attention)."""
        check_vectors("annotations", annotations, self.memory_proj.weight)
        return self.memory_proj(annotations)

    def forward(
        self,
        query: Tensor,
        annotations: Tensor,
        keep: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        check_rows("query", query, self.d_query, self.query_proj.weight)
        check_vectors("annotations", annotations, self.memory_proj.weight)
        check_keep("keep", keep, annotations.shape[:2])
        if len(query) != len(annotations):
            raise ValueError(
                f"{len(query)} queries do not fit {len(annotations)} sources"
            )
        if keys is None:
            keys = self.keys(annotations)
        check_vectors("keys", keys, self.score.weight)
        if keys.shape[:2] != annotations.shape[:2]:
            raise ValueError(
                f"keys {tuple(keys.shape)} do not fit annotations "
                f"{tuple(annotations.shape)}"
            )
        hidden = torch.tanh(self.query_proj(query).unsqueeze(1) + keys)
        scores = self.score(hidden).squeeze(-1)  # (B, S, d_attention) → (B, S)
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = self.softmax(scores.to(wide), keep).to(annotations.dtype)
        return (weights.unsqueeze(1) @ annotations).squeeze(1)  # (B, d_memory)


@contextmanager
def record_alignment(model: nn.Module) -> Iterator[list[Tensor]]:
    """See where a model looks at each step, without changing its code.

    Inside the `with` block every step adds its weights, (B, S), to the list;
    `torch.stack(seen, dim=1)` makes one (B, T, S) picture of T steps.

    Raises:
        TypeError: not a module.  ValueError: it has not exactly one such attention.

    >>> attention = BahdanauAttention(4, 6, 5)
    >>> with record_alignment(attention) as seen:
    ...     _ = attention(torch.zeros(1, 4), torch.zeros(1, 2, 6))
    >>> seen[0].tolist()
    [[0.5, 0.5]]

    Taught in: book/01_recurrence.ipynb
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    found = [part for part in model.modules() if isinstance(part, BahdanauAttention)]
    if len(found) != 1:
        raise ValueError(
            f"{type(model).__name__} must have one BahdanauAttention to record, "
            f"it has {len(found)}"
        )
    seen: list[Tensor] = []
    hook = found[0].softmax.register_forward_hook(
        lambda module, given, weights: seen.append(weights.detach())
    )
    try:
        yield seen
    finally:
        hook.remove()
