# SPDX-License-Identifier: MIT
"""Where do the heads lie? As bands of one row, seen as an axis of their own."""

from torch import Tensor

from deepdive.inputs import check_kind


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Cut the width into heads: a view of the same numbers, nothing is copied.

    Shapes:
        x (B, T, H·D) → (B, H, T, D)

    Raises:
        ValueError: x has not three axes, or n_heads does not divide its width.

    Taught in: book/03_multi_head.ipynb
    """
    check_kind("x", x, Tensor)
    if x.dim() != 3:
        raise ValueError(f"x must be (B, T, width), got {tuple(x.shape)}")
    if n_heads < 1 or x.shape[-1] % n_heads:
        raise ValueError(f"width {x.shape[-1]} is not a multiple of {n_heads} heads")
    return x.unflatten(-1, (n_heads, x.shape[-1] // n_heads)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Lay the heads side by side again: (B, H, T, D) → (B, T, H·D).

    Raises:
        ValueError: x has not four axes.

    Taught in: book/03_multi_head.ipynb
    """
    check_kind("x", x, Tensor)
    if x.dim() != 4:
        raise ValueError(f"x must be (B, H, T, D), got {tuple(x.shape)}")
    return x.transpose(1, 2).flatten(2)
