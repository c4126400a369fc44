# SPDX-License-Identifier: MIT
"""What every kernel asks of its input, checked before any work is done."""

import math
from numbers import Real

import torch
from torch import Tensor

from deepdive.masks import Rule

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_inputs(named: dict[str, Tensor], mask, bias, scale) -> None:
    """Raise an error that names the sizes, unless q, k, v, mask and bias fit together.

    Shapes:
        named["q"] (B, H, T, D), "k" (B, G, S, D), with G dividing H; "v" (B, G, S, Dv)
        where there are values

    Raises:
        ValueError: a size is wrong.  TypeError: a type is wrong.
    """
    q, k, v = named["q"], named["k"], named.get("v", named["k"])
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(
                f"{name} must have 4 axes (B, heads, length, width), got shape "
                f"{tuple(x.shape)}"
            )
        if x.dtype not in FLOATS or x.dtype != q.dtype:
            raise TypeError(
                f"q, k and v must share one floating dtype, got {name} {x.dtype} "
                f"beside q {q.dtype}"
            )
    (B, H, T, D), (B_k, G, S, D_k) = q.shape, k.shape
    if B_k != B or D_k != D or D == 0 or v.shape[:3] != k.shape[:3]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
        raise ValueError(f"batch, key length or head width do not fit: {shapes}")
    if min(H, G) == 0 or H % G:
        raise ValueError(f"{H} query heads cannot share {G} key/value heads evenly")
    check_mask(mask, (B, H, T, S))
    check_bias(bias, (B, H, T, S))
    check_scale(scale)


def check_scale(scale: float | None) -> None:
    """None, or a finite number."""
    if scale is not None and not isinstance(scale, Real):
        raise TypeError(f"scale must be a number, got {type(scale).__name__}")
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")


def check_mask(mask, shape: tuple[int, ...]) -> None:
    """None, a rule whose padding covers the batch, or booleans that broadcast.

    A 0/1 mask of numbers is refused: some libraries would *add* it to the scores, which
    barely masks at all.
    """
    if isinstance(mask, Rule):
        if mask.keep is not None and tuple(mask.keep.shape) != (shape[0], shape[3]):
            raise ValueError(
                f"keep {tuple(mask.keep.shape)} does not cover batch {shape[0]} and "
                f"{shape[3]} keys"
            )
    elif mask is not None:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        if got != torch.bool:
            raise TypeError(f"mask must be a rule or a bool tensor, got {got}")
        check_broadcast("mask", mask, shape)


def check_bias(bias, shape: tuple[int, ...]) -> None:
    """None, or floats that broadcast."""
    check_broadcast("bias", bias, shape)
    if bias is not None and bias.dtype not in FLOATS:
        raise TypeError(
            f"bias is added to the scores: a float tensor, got {bias.dtype}"
        )


def check_broadcast(name: str, x, shape: tuple[int, ...]) -> None:
    """A tensor must broadcast to (B, H, T, S) without widening it."""
    if x is None:
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    try:
        fits = torch.broadcast_shapes(tuple(x.shape), shape) == torch.Size(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} {tuple(x.shape)} does not broadcast to {shape}")
