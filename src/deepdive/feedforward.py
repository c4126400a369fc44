# SPDX-License-Identifier: MIT
"""What does each position compute on its own, between two attention layers?"""

from torch import Tensor, nn


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between them, the same at every position.

        y = W_down · activation(W_up · x)

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Source: Vaswani et al. 2017, §3.3 (ReLU); BERT and GPT use GELU.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module, bias: bool = True
    ):
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))
