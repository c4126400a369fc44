# SPDX-License-Identifier: MIT
"""Can a position be a vector that is added to the word's? Sinusoids, or learned."""

import torch
from torch import Tensor, nn

from deepdive.inputs import check_ids, check_kind, check_sizes
from deepdive.positions.angles import (
    check_base,
    check_positions,
    check_width,
    frequencies,
)


class SinusoidalPositions(nn.Module):
    """Sines and cosines of falling frequency, added to the word's vector.

        PE(p, 2i) = sin(p / base^(2i/d)),   PE(p, 2i + 1) = cos(p / base^(2i/d))

    Shapes:
        positions (T,) or (B, T) integers → (T, d_model) or (B, T, d_model), float32

    Raises:
        ValueError: d_model is odd or below 2.  TypeError: positions are no integers.

    Source: Vaswani et al. 2017, §3.5.

    >>> SinusoidalPositions(4)(torch.tensor([0]))
    tensor([[0., 1., 0., 1.]])

    Taught in: book/04_positions.ipynb
    """

    def __init__(self, d_model: int, base: float = 10_000.0):
        super().__init__()
        check_width("d_model", d_model)
        check_base(base)
        self.d_model, self.base = d_model, base

    def forward(self, positions: Tensor) -> Tensor:
        check_positions(positions)
        theta = frequencies(self.d_model, self.base, positions.device)
        angles = positions[..., None] * theta  # (…, T, d/2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class LearnedPositions(nn.Embedding):
    """A trained vector for each position, added to the word's vector.

    Shapes:
        positions (T,) or (B, T) integers → (T, d_model) or (B, T, d_model)

    Raises:
        ValueError: a position lies outside the table, where no vector was learned.
        TypeError: the positions are not whole numbers of 32 or 64 bits.

    Source: BERT (Devlin et al. 2018, §3) and GPT learn theirs; Vaswani et al. 2017,
    Table 3 row E, found them as good as sinusoids.

    Taught in: book/04_positions.ipynb
    """

    def __init__(self, max_seq_len: int, d_model: int):
        check_sizes(max_seq_len=max_seq_len, d_model=d_model)
        super().__init__(max_seq_len, d_model)

    def forward(self, positions: Tensor) -> Tensor:
        check_ids("position", positions, self.num_embeddings)
        return super().forward(positions)

    def first(self, T: int) -> Tensor:
        """The vectors of positions 0 … T − 1, in order: (T, d_model).

        Raises:
            ValueError: T is more than the table has rows.
        """
        check_kind("T", T, int)
        if not 0 <= T <= self.num_embeddings:
            raise ValueError(
                f"{T} positions were asked of a learned table of {self.num_embeddings}"
            )
        return self.weight[:T]


class NoPositions(nn.Module):
    """Nothing is added: zeros, for a model that is to do without positions.

    Shapes:
        positions (T,) or (B, T) integers → (T, d_model) or (B, T, d_model), float32

    Raises:
        ValueError: d_model below 1.  TypeError: positions are no integers.

    Source: Haviv et al. 2022 (arXiv:2203.16634), whose decoders have no positions.

    >>> NoPositions(3)(torch.tensor([5]))
    tensor([[0., 0., 0.]])

    Taught in: book/04_positions.ipynb
    """

    def __init__(self, d_model: int):
        super().__init__()
        check_sizes(d_model=d_model)
        self.d_model = d_model

    def forward(self, positions: Tensor) -> Tensor:
        check_positions(positions)
        shape = (*positions.shape, self.d_model)
        return torch.zeros(shape, device=positions.device)
