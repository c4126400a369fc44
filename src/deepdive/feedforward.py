# SPDX-License-Identifier: MIT
"""What does each position compute on its own, between two attention layers?"""

import torch
from torch import Tensor, nn


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between them, the same at every position.

        y = W_down · activation(W_up · x)

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Raises:
        ValueError: a size below 1, or x of another width.  TypeError: another dtype.

    Source: Vaswani et al. 2017, §3.3 (ReLU); BERT and GPT use GELU.

    Taught in: book/05_block.ipynb
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module, bias: bool = True
    ):
        super().__init__()
        if min(d_model, d_ff) < 1:
            raise ValueError(f"d_model and d_ff must be ≥ 1, got {d_model}, {d_ff}")
        _check_activation(activation)
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.up)
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(nn.Module):
    """A feed-forward network where one linear map decides how much of another passes.

        y = W_down · (activation(W_gate · x) ⊙ W_up · x)

    With `nn.SiLU()` it is SwiGLU (Llama, Mixtral, DeepSeek), with `nn.GELU()` GEGLU
    (T5 version 1.1, whose GELU is the tanh approximation). Three matrices instead of
    two: at ⅔ of the width d_ff it has the parameters of the plain network.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Raises:
        ValueError: a size below 1, or x of another width.  TypeError: another dtype.

    Source: Shazeer 2020 (arXiv:2002.05202), §2.

    >>> import torch
    >>> GatedFeedForward(8, 16, nn.SiLU())(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])

    Taught in: book/09_t5.ipynb, book/11_rope.ipynb
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: nn.Module, bias: bool = False
    ):
        super().__init__()
        if min(d_model, d_ff) < 1:
            raise ValueError(f"d_model and d_ff must be ≥ 1, got {d_model}, {d_ff}")
        _check_activation(activation)
        self.gate = nn.Linear(d_model, d_ff, bias=bias)
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.activation = activation
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.up)
        return self.down(self.activation(self.gate(x)) * self.up(x))


def _check_activation(activation: nn.Module) -> None:
    if not callable(activation):
        raise TypeError(f"activation must be a module, got {activation!r}")


def _check(x: Tensor, up: nn.Linear) -> None:
    """x must be floats of the width and dtype that the first map reads."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.shape[-1:] != (up.in_features,):
        raise ValueError(
            f"x must be (…, d_model = {up.in_features}), got {tuple(x.shape)}"
        )
    if x.dtype != up.weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"x is {x.dtype}, the layer's weights are {up.weight.dtype}")
