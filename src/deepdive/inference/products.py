# SPDX-License-Identifier: MIT
"""How are numbers of 8 bits multiplied on a processor, and by whom?

    xₘ ≈ tₘ·Xₘ,   tₘ = max|xₘ|/top,   Xₘ whole numbers −top … top
    yₘᵢ = tₘ·sᵢ·Σⱼ Xₘⱼ·Qᵢⱼ,   the sum exact

A product keeps Q and s, and rounds the rows of x as they come. `PlainProduct` says so
in torch's own operations. `PackedProduct` has Q in the order in which the processor
reads it, where torch was built with that library.

Taught in: book/10_kv_cache.ipynb
"""

import functools
import math
import warnings

import torch
from torch import Tensor

TINY = 1e-30  # instead of the largest number where all are 0
TOP = 127  # of 8 bits
SAFE = 63  # of 7: two products of it with a weight fit into 16 bits


class PlainProduct:
    """`product(x)` = x·(s ⊙ Q)ᵀ, x rounded row by row to 8 bits.

    Shapes:
        rounded (out, in) int8, in ≥ 2; scales (out,); x (M, in) float32 → (M, out)

    >>> rounded = torch.tensor([[1, 2]], dtype=torch.int8)
    >>> PlainProduct(rounded, torch.ones(1))(torch.tensor([[127.0, 1.0]]))
    tensor([[129.]])

    Taught in: book/10_kv_cache.ipynb
    """

    top = TOP

    def __init__(self, rounded: Tensor, scales: Tensor):
        self.rounded, self.scales = rounded.contiguous(), scales

    def __call__(self, x: Tensor) -> Tensor:
        t = row_scales(x, self.top)
        whole = (x / t).round_().to(torch.int8)
        return torch._int_mm(whole, self.rounded.t()) * (t * self.scales)


class PackedProduct:
    """The same from FBGEMM, torch's library for 8 bits on x86.

    Shapes:
        rounded (out, in) int8; scales (out,); x (M, in) float32 → (M, out)

    Args:
        top: what the largest number of a row of x becomes: `largest_top()`.

    Raises:
        RuntimeError: torch has no such library here.

    Note:
        30 layers of SmolLM2's linear layers, torch 2.13, one AMD EPYC thread with
        AVX-512 VNNI, against float32 for 1, 2, 8, 16 and 64 rows: 4.3, 4.3, 3.9, 3.4
        and 3.8 times as fast; `PlainProduct` 2.4, 3.5, 2.6, 2.6 and 3.1 times. So no
        number of rows asks for another. Tried beside it: oneDNN's `qlinear_pointwise`
        (105 µs where FBGEMM took 41), and `_weight_int8pack_mm`, which keeps x in
        float32 (1,454 µs; float32 itself takes 195).

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, rounded: Tensor, scales: Tensor, top: int = TOP):
        self.scales, self.top = scales, top
        self._packed = _pack(rounded, scales)

    @property
    def rounded(self) -> Tensor:
        """Q, out of the library's order."""
        with _quietly():
            weight, _ = torch.ops.quantized.linear_unpack(self._packed)
            return weight.int_repr()

    def __call__(self, x: Tensor) -> Tensor:
        top, multiply = self.top, _operation()
        if len(x) == 1:  # its scale can be a plain number
            t = max(float(x.abs().max()), TINY) / top
            return multiply(x, t, top + 1, self._packed)
        t = row_scales(x, top)
        return multiply(x / t, 1.0, top + 1, self._packed).mul_(t)

    def __reduce__(self):
        return PackedProduct, (self.rounded, self.scales, self.top)


def row_scales(x: Tensor, top: int) -> Tensor:
    """Each row's tₘ: (M, in) → (M, 1).

    >>> row_scales(torch.tensor([[254.0, -1.0], [0.0, 127.0]]), 127)
    tensor([[2.],
            [1.]])

    Taught in: book/10_kv_cache.ipynb
    """
    return x.abs().amax(-1, keepdim=True).clamp_(min=TINY).div_(top)


def fastest_product(rounded: Tensor, scales: Tensor) -> PlainProduct | PackedProduct:
    """A packed product where this machine has one, else a plain one.

    Shapes:
        rounded (out, in) int8, scales (out,)

    Taught in: book/10_kv_cache.ipynb
    """
    top = largest_top()
    return PackedProduct(rounded, scales, top) if top else PlainProduct(rounded, scales)


@functools.cache
def largest_top() -> int:
    """The largest whole numbers that FBGEMM multiplies exactly here; 0: not even small.

    Processors without 8-bit instructions (VNNI) add two products in 16 bits, where
    127·127·2 stays but the library's 255·127·2 does not; so it is tried.

    Taught in: book/10_kv_cache.ipynb
    """
    n = 64
    rounded = torch.full((n, n), TOP, dtype=torch.int8)
    for top in (TOP, SAFE):
        try:
            product = PackedProduct(rounded, torch.ones(n), top)
            found = [product(torch.full((rows, n), float(top))) for rows in (1, 8)]
        except (AttributeError, NotImplementedError, RuntimeError):
            return 0
        exact = float(n * TOP * top)
        if all(math.isclose(float(y.min()), exact, rel_tol=1e-6) for y in found):
            return top
    return 0


def _operation():
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32


def _pack(rounded: Tensor, scales: Tensor) -> torch.ScriptObject:
    """Q and s in the library's order."""
    engines, before = torch.backends.quantized, torch.backends.quantized.engine
    zeros = torch.zeros(len(rounded), dtype=torch.int64)
    try:
        engines.engine = "fbgemm"
        with _quietly():
            weight = torch._make_per_channel_quantized_tensor(
                rounded, scales.double(), zeros, 0
            )
            return torch.ops.quantized.linear_prepack(weight, None)
    finally:
        engines.engine = before


def _quietly() -> warnings.catch_warnings:
    """torch announces that these tensors will go; then `fastest_product` falls back."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)
