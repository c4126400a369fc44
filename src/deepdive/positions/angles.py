# SPDX-License-Identifier: MIT
"""How fast does each pair of a vector turn, and which positions are asked of it?

Taught in: book/04_positions.ipynb
"""

import math

import torch
from torch import Tensor

from deepdive.inputs import check_kind, check_sizes


def frequencies(width: int, base: float, device) -> Tensor:
    """base^(−2i/width), i = 0 … width/2 − 1, in float32."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    return 1.0 / base**exponents


def check_positions(positions: Tensor) -> None:
    """Positions are whole numbers, in a tensor.

    Shapes:
        positions (…)
    """
    if not isinstance(positions, Tensor) or positions.dtype not in (
        torch.int32,
        torch.int64,
    ):
        got = getattr(positions, "dtype", type(positions).__name__)
        raise TypeError(f"positions must be a tensor of whole numbers, got {got}")


def check_width(name: str, width: int) -> None:
    """A width that is cut into pairs is even."""
    if not isinstance(width, int) or width < 2 or width % 2:
        raise ValueError(f"{name} must be even and ≥ 2, got {width}")


def check_base(base: float) -> None:
    """The base of the powers is finite and above 0."""
    if not (base > 0 and math.isfinite(base)):
        raise ValueError(f"base must be finite and > 0, got {base}")


def token_positions(T: int, seen: int, keep: Tensor | None = None, device=None):
    """The positions of T new tokens after `seen` older ones.

        with padding: position = number of real tokens up to and with this one, − 1

    Shapes:
        keep (B, seen + T) bool or None → (B, T) or (T,) int64; padding gets 0 or more

    Raises:
        ValueError: keep covers another number of tokens.

    Taught in: book/10_kv_cache.ipynb
    """
    check_sizes(0, T=T, seen=seen)
    if keep is None:
        return torch.arange(seen, seen + T, device=device)
    check_kind("keep", keep, Tensor)
    if keep.dtype != torch.bool:
        raise TypeError(f"keep must be bool, True = a real token, got {keep.dtype}")
    if keep.dim() != 2 or keep.shape[1] != seen + T:
        raise ValueError(
            f"keep must be (B, {seen + T}), {seen} tokens seen and {T} new, got "
            f"{tuple(keep.shape)}"
        )
    return (keep.long().cumsum(1) - 1).clamp(min=0)[:, seen:]
