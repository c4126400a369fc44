# SPDX-License-Identifier: MIT
"""How is the size of a vector kept in bounds? LayerNorm is torch's; RMSNorm is here."""

import math

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Divide by the root mean square; no mean is subtracted and no bias is added.

        y = w · x / √(mean(x²) + eps)

    Shapes:
        x (…, d_model) → (…, d_model)

    Source: Zhang & Sennrich 2019 (arXiv:1910.07467); T5's norm has this form.

    Raises:
        ValueError: x has another width.  TypeError: x holds no floats.

    Note:
        The mean square is computed in float32 for half-precision input.

    Taught in: book/05_block.ipynb, book/08_gpt.ipynb
    """

    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__()
        if d_model < 1 or not 0 <= eps < math.inf:
            raise ValueError(f"d_model must be ≥ 1 and eps ≥ 0, got {d_model}, {eps}")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, got {type(x).__name__}")
        if x.shape[-1:] != self.weight.shape:
            raise ValueError(
                f"x must be (…, {self.weight.numel()}), got {tuple(x.shape)}"
            )
        if not x.is_floating_point():
            raise TypeError(f"x must hold floats, got {x.dtype}")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return self.weight * (wide * scale).to(x.dtype)
