# SPDX-License-Identifier: MIT
"""How few bits of a weight are enough? Eight, if no number stands out.

Taught in: book/10_kv_cache.ipynb
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.inference.products import TOP, fastest_product, row_scales
from deepdive.inference.turning import block_of, turning
from deepdive.inputs import check_last

Product = Callable[[Tensor], Tensor]


class Int8Linear(nn.Module):
    """A linear layer that keeps its weights as 8-bit integers, and rounds its inputs.

        y = W·x = (W·H)·(Hᵀ·x/n),   H of ±1, turning n numbers at a time: H·Hᵀ = n·I
        (W·H)ᵢⱼ ≈ sᵢ·Qᵢⱼ,   sᵢ = max|(W·H)ᵢⱼ|/127 over j
        Hᵀ·x/n ≈ t·X,       t = max|Hᵀ·x/n|/127,   X of 8 bits
        yᵢ ≈ t·sᵢ·Σⱼ Qᵢⱼ·Xⱼ,   the sum exact

    A quarter of float32's bytes are read for a new word. A few numbers of x are much
    larger than the rest, and in steps of their size the rest would be lost. Turned,
    each is spread over n = 64 others, and none stands out.

    Shapes:
        x (…, in) → (…, out), in x's dtype

    Args:
        linear: where the weights come from; they are not changed.
        product: what multiplies: `fastest_product`, `PlainProduct`, or another that
            takes Q and s.

    Raises:
        TypeError: not a linear layer.
        ValueError: weights that are not finite, not on the CPU, or one to a row.

    Note:
        `weight` has no rows: it tells width and dtype to who asks, and holds no number.
        There is no gradient. On SmolLM2 perplexity moves by 0.3 … 0.6 % on four texts
        of over 1,000 pieces, with inputs of 7 bits by 0.5 … 1.3 %. Tried before: not
        turned, 2 … 5 %; with factors on columns, 4 … 8 %; with these and a second
        product for what rounding left, 0.0 … 1.1 % for twice the work
        (benchmarks/quality_int8.py).

    Source: the sums of rounded rows: Dettmers et al. 2022 (arXiv:2208.07339), §2.1; the
        turning: Ashkboos et al. 2024 (arXiv:2404.00456).

    >>> linear = nn.Linear(2, 1, bias=False)
    >>> linear.weight.data = torch.tensor([[0.5, -1.0]])
    >>> y = Int8Linear(linear)(torch.tensor([[1.0, 1.0]]))
    >>> round(y.item(), 2)
    -0.5

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(
        self,
        linear: nn.Linear,
        product: Callable[[Tensor, Tensor], Product] = fastest_product,
    ):
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
        self.block = block_of(self.in_features)
        self.spare = -self.in_features % self.block  # zeros behind x
        H = turning(self.block)
        self.turn = H / self.block  # (n, n), float32 whatever the layer becomes
        self.register_buffer("weight", weight[:0].clone())  # (0, in)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("bias", bias)
        rows = (self._blocks(weight) @ H).view(self.out_features, -1)
        self._make, self.product = product, product(*_rounded(rows))

    def forward(self, x: Tensor) -> Tensor:
        check_last("x", x, self.in_features)
        if not x.is_cpu:
            raise ValueError(f"8-bit products run on the cpu, not on {x.device}")
        turned = self._blocks(x) @ self.turn  # (M·in/n, n)
        out = self.product(turned.view(-1, self.in_features + self.spare))
        out = out.view(*x.shape[:-1], self.out_features)
        if out.dtype != x.dtype:
            out = out.to(x.dtype)
        return out if self.bias is None else out + self.bias

    def as_float(self) -> nn.Linear:
        """The clear form: a linear layer of float32 with the rounded weights."""
        n = self.block
        weight = self.product.scales[:, None] * self.product.rounded
        weight = (weight.view(-1, n) @ self.turn.t()).view(self.out_features, -1)
        made = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, device="meta"
        )
        made.weight = nn.Parameter(weight[:, : self.in_features].contiguous(), False)
        if self.bias is not None:
            made.bias = nn.Parameter(self.bias.float(), False)
        return made

    def _blocks(self, x: Tensor) -> Tensor:
        """The numbers of each row, n at a time: (…, in) → (…·in/n, n) float32."""
        if x.requires_grad or x.dtype != torch.float32:
            x = x.detach().float()
        if self.spare:
            x = F.pad(x, (0, self.spare))
        return x.reshape(-1, self.block)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Q and s, which no buffer holds, for `state_dict`."""
        return {"rounded": self.product.rounded, "scales": self.product.scales}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Take Q and s from a `state_dict`."""
        self.product = self._make(state["rounded"], state["scales"])

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


def _rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each row as whole numbers −127 … 127, and its scale: (out, in) int8, (out,)."""
    scales = row_scales(rows, TOP)
    return (rows / scales).round_().to(torch.int8), scales.squeeze(-1)
