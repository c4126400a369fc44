# SPDX-License-Identifier: MIT
"""What does each position compute on its own, between two attention layers?"""

from torch import Tensor, nn


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between them, the same at every position.

        y = W_down · activation(W_up · x)

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Raises:
        ValueError: a size below 1, or x of another width.

    Source: Vaswani et al. 2017, §3.3 (ReLU); BERT and GPT use GELU.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module, bias: bool = True
    ):
        super().__init__()
        if min(d_model, d_ff) < 1:
            raise ValueError(f"d_model and d_ff must be ≥ 1, got {d_model}, {d_ff}")
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.up.in_features,):
            raise ValueError(
                f"x must be (…, d_model = {self.up.in_features}), got {tuple(x.shape)}"
            )
        return self.down(self.activation(self.up(x)))
