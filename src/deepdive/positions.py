# SPDX-License-Identifier: MIT
"""How does a model know the order of its words? One class per answer."""

from torch import Tensor, nn

from deepdive.inputs import check_ids


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
        check_ids("position", positions, self.num_embeddings)
        return super().forward(positions)

    def first(self, T: int) -> Tensor:
        """The vectors of positions 0 … T − 1, in order: (T, d_model).

        Raises:
            ValueError: T is more than the table has rows.
        """
        if not 0 <= T <= self.num_embeddings:
            raise ValueError(
                f"{T} positions were asked of a learned table of {self.num_embeddings}"
            )
        return self.weight[:T]
