# SPDX-License-Identifier: MIT
"""What does one new word cost beside reading the weights? Many small calls.

For one word each operation works on a few hundred numbers, and starting it takes longer
than doing it. These parts compute what the plain ones do in fewer operations.

Taught in: book/10_kv_cache.ipynb
"""

import torch
from torch import Tensor, nn

from deepdive.blocks import Block, pre_norm
from deepdive.cache import Cache
from deepdive.inputs import check_kind, check_last
from deepdive.norms import RMSNorm
from deepdive.positions.rotary import Rotary, Rotation, half_split, interleaved


class LeanBlock(nn.Module):
    """A pre-norm `Block` without cross-attention and dropout.

        x ← x + attention(norm(x)),   x ← x + feedforward(norm(x))

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Args:
        block: where the parts come from; they are shared.

    Raises:
        TypeError: not a `Block`.  ValueError: it is post-norm, or reads an encoder.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, block: Block):
        super().__init__()
        check_kind("block", block, Block)
        if not self.fits(block):
            raise ValueError(f"a lean block is pre-norm and reads no encoder: {block}")
        self.attention_norm, self.attention = block.attention_norm, block.attention
        self.feedforward_norm = block.feedforward_norm
        self.feedforward = block.feedforward

    @staticmethod
    def fits(block: Block) -> bool:
        """Is there nothing in a block but what a lean one computes?"""
        return block.residual is pre_norm and block.cross_attention is None

    def forward(self, x: Tensor, cache: Cache | None = None, **how) -> Tensor:
        if cache is not None:
            how["cache"] = cache
        x = x + self.attention(self.attention_norm(x), **how)
        return x + self.feedforward(self.feedforward_norm(x))


class LeanRMSNorm(nn.Module):
    """`RMSNorm` by torch's own function: the same numbers in one call.

    Shapes:
        x (…, d_model) → (…, d_model)

    Args:
        norm: where the weights come from; they are shared.

    Raises:
        TypeError: not an `RMSNorm`; x holds no floats.  ValueError: another width.

    Note:
        Half precision and mixed dtypes go the plain way, whose roundings they keep.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, norm: RMSNorm):
        super().__init__()
        check_kind("norm", norm, RMSNorm)
        self.weight, self.eps = norm.weight, norm.eps
        self.shape, self.plain = norm.weight.shape, norm

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if x.dtype != weight.dtype or x.dtype not in (torch.float32, torch.float64):
            return self.plain(x)
        if x.shape[-1:] != self.shape:
            check_last("x", x, *self.shape)
        return nn.functional.rms_norm(x, self.shape, weight, self.eps)


class LeanRotary(Rotary):
    """`Rotary` whose turn takes three operations: the signs stand beside the sines.

        (a, b) ↦ (a, b) ⊙ (cos, cos) + (b, a) ⊙ (−sin, sin)

    Args:
        rotary: whose angles they are.

    Raises:
        TypeError: not a `Rotary`.  ValueError: a pairing of your own.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, rotary: Rotary):
        check_kind("rotary", rotary, Rotary)
        if rotary.pairing not in (half_split, interleaved):
            raise ValueError(f"the pairing {rotary.pairing} has no lean form")
        super().__init__(rotary.head_dim, rotary.base, rotary.pairing, rotary.scaling)

    def forward(self, positions: Tensor) -> "LeanRotation":
        made = super().forward(positions)
        signs = self.pairing(torch.ones_like(made.sin[..., :1, :]))
        return LeanRotation(made.cos, made.sin * signs, self.pairing)


class LeanRotation(Rotation):
    """One forward pass's turn, with the signs in the sines.

    Shapes:
        x (B, H, T, D) → (B, H, T, D), in x's dtype

    Taught in: book/10_kv_cache.ipynb
    """

    def __call__(self, x: Tensor) -> Tensor:
        self.check(x)
        cos, sin = self.angles(x.dtype)
        if self.pairing is half_split:
            partner = x.roll(x.shape[-1] // 2, -1)
        else:
            partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return torch.addcmul(x * cos, partner, sin)
