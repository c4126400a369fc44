# SPDX-License-Identifier: MIT
"""How are sublayers joined so that they can be stacked?"""

from collections.abc import Callable

from torch import Tensor, nn

Residual = Callable[[Tensor, Callable[[Tensor], Tensor], nn.Module], Tensor]


def post_norm(
    x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module
) -> Tensor:
    """norm(x + sublayer(x)): the order of the 2017 paper (§3.1), and of BERT.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)
    """
    return norm(x + sublayer(x))


def pre_norm(
    x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module
) -> Tensor:
    """x + sublayer(norm(x)): the order of GPT-2 (§2.3) and of almost every model since.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)
    """
    return x + sublayer(norm(x))


class Block(nn.Module):
    """Attention, then a feed-forward network, each with a residual path around it.

    It receives built sublayers, so a new kind of attention or feed-forward network
    needs no change here.

    Shapes:
        x (B, T, d_model) → (B, T, d_model); whatever else is passed, such as a mask,
        goes to the attention

    Args:
        residual: `post_norm` or `pre_norm`.

    Source: Vaswani et al. 2017, §3.1.
    """

    def __init__(
        self,
        attention: nn.Module,
        feedforward: nn.Module,
        attention_norm: nn.Module,
        feedforward_norm: nn.Module,
        residual: Residual,
    ):
        super().__init__()
        self.attention, self.attention_norm = attention, attention_norm
        self.feedforward, self.feedforward_norm = feedforward, feedforward_norm
        self.residual = residual

    def forward(self, x: Tensor, **how) -> Tensor:
        def attend(h: Tensor) -> Tensor:
            return self.attention(h, **how)

        x = self.residual(x, attend, self.attention_norm)
        return self.residual(x, self.feedforward, self.feedforward_norm)
