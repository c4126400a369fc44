# SPDX-License-Identifier: MIT
"""One signature, several ways: how scores become outputs.

    kernel(q, k, v, mask=None, bias=None, scale=None) → out

q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) → (B, H, T, Dv); G divides H.

`kernels.triton` is imported by name only: it needs a package that exists for Linux.
"""

from deepdive.kernels.equation import attention_weights, equation
from deepdive.kernels.fused import fused
from deepdive.kernels.tiled import tiled

__all__ = ["attention_weights", "equation", "fused", "tiled"]
