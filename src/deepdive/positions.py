# SPDX-License-Identifier: MIT
"""How does a model know the order of its words? One class per answer."""

import torch
from torch import Tensor, nn


class LearnedPositions(nn.Embedding):
    """A trained vector for each position, added to the word's vector.

    Shapes:
        positions (T,) or (B, T) integers → (T, d_model) or (B, T, d_model)

    Raises:
        ValueError: a position lies outside the table, where no vector was learned.
        TypeError: the positions are not whole numbers of 32 or 64 bits.

    Source: BERT (Devlin et al. 2018, §3) and GPT learn theirs; Vaswani et al. 2017,
    Table 3 row E, found them as good as sinusoids.
    """

    def __init__(self, max_seq_len: int, d_model: int):
        if min(max_seq_len, d_model) < 1:
            raise ValueError(
                f"max_seq_len and d_model must be ≥ 1, got {max_seq_len}, {d_model}"
            )
        super().__init__(max_seq_len, d_model)

    def forward(self, positions: Tensor) -> Tensor:
        if positions.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"positions must be int32 or int64, got {positions.dtype}")
        if positions.numel():
            low, high = int(positions.min()), int(positions.max())
            if low < 0 or high >= self.num_embeddings:
                raise ValueError(
                    f"positions {low} … {high} do not fit the learned table of "
                    f"{self.num_embeddings} (0 … {self.num_embeddings - 1})"
                )
        return super().forward(positions)


def default_positions(tokens: Tensor, keep: Tensor | None = None) -> Tensor:
    """Count positions from each row's first kept token, so left padding shifts nothing.

    Shapes:
        tokens (B, T), keep (B, T) bool or None → (B, T)

    Raises:
        ValueError: the shapes differ.  TypeError: keep is not boolean.
    """
    if tokens.dim() != 2 or (keep is not None and keep.shape != tokens.shape):
        kept = None if keep is None else tuple(keep.shape)
        raise ValueError(
            f"tokens and keep must be (B, T), got {tuple(tokens.shape)} and {kept}"
        )
    if keep is not None and keep.dtype != torch.bool:
        raise TypeError(f"keep must be bool, True = a word, got {keep.dtype}")
    if keep is None:
        return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return (keep.long().cumsum(1) - 1).clamp(min=0)
