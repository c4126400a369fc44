# SPDX-License-Identifier: MIT
"""What every kernel asks of its input, checked before any work is done."""

import torch
from torch import Tensor

from deepdive.masks import Everyone


def check_inputs(q: Tensor, k: Tensor, v: Tensor | None, mask, bias) -> None:
    """Raise an error that names the sizes, unless q, k, v, mask and bias fit together.

    Shapes:
        q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) with G dividing H

    Raises:
        ValueError: a size is wrong.  TypeError: a dtype is wrong.
    """
    named = {"q": q, "k": k} | ({} if v is None else {"v": v})
    for name, x in named.items():
        if x.dim() != 4:
            raise ValueError(
                f"{name} must have 4 axes (B, heads, length, width), got shape "
                f"{tuple(x.shape)}"
            )
        if not x.is_floating_point() or x.dtype != q.dtype:
            raise TypeError(
                f"q, k and v must share one floating dtype, got {name} {x.dtype} "
                f"beside q {q.dtype}"
            )
    (B, H, T, D), (B_k, G, S, D_k) = q.shape, k.shape
    if B_k != B or D_k != D or (v is not None and v.shape[:3] != k.shape[:3]):
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
        raise ValueError(f"batch, key length or head width differ: {shapes}")
    if G == 0 or H % G:
        raise ValueError(f"{H} query heads cannot share {G} key/value heads evenly")
    check_broadcast("mask", mask, (B, H, T, S))
    check_broadcast("bias", bias, (B, H, T, S))
    if bias is not None and not bias.is_floating_point():
        raise TypeError(
            f"bias is added to the scores: a float tensor, got {bias.dtype}"
        )


def check_broadcast(name: str, x, shape: tuple[int, ...]) -> None:
    """A tensor must broadcast to (B, H, T, S) without widening it."""
    if x is None or isinstance(x, Everyone):
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    try:
        fits = torch.broadcast_shapes(tuple(x.shape), shape) == torch.Size(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} {tuple(x.shape)} does not broadcast to {shape}")


def repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """H/G query heads in a row read one key/value head: (B, G, …) → (B, H, …)."""
    return x.repeat_interleave(n_heads // x.shape[1], dim=1)
