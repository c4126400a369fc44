# SPDX-License-Identifier: MIT
"""Are these the tensors that a model can read? Asked before any work is done."""

import torch
from torch import Tensor


def check_kind(name: str, value, *kinds: type) -> None:
    """A value must be one of these kinds of object.

    Raises:
        TypeError: it is another one.
    """
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be a {wanted}, got {type(value).__name__}")


def check_sizes(least: int = 1, **sizes: int) -> None:
    """Every size must be an integer, and not below `least`.

    Raises:
        TypeError: not an integer.  ValueError: too small.
    """
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{name} must be an integer, got {size!r}")
        if size < least:
            raise ValueError(f"{name} must be ≥ {least}, got {size}")


def check_floats(name: str, x: Tensor) -> None:
    """x must be a tensor of floats with numbers along its last axis.

    Raises:
        TypeError: no tensor, or none of floats.  ValueError: nothing on the last axis.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{name} must be a tensor of floats, got {kind}")
    if not x.dim() or not x.shape[-1]:
        raise ValueError(f"{name} must be (…, n) with n ≥ 1, got {tuple(x.shape)}")


def check_last(name: str, x: Tensor, width: int) -> None:
    """x must be floats (…, width).

    Raises:
        TypeError: no tensor, or none of floats.  ValueError: another width.
    """
    check_floats(name, x)
    if x.shape[-1] != width:
        raise ValueError(f"{name} must be (…, {width}), got {tuple(x.shape)}")


def check_ids(name: str, ids: Tensor, size: int) -> None:
    """Every id must be the number of a row in a table of `size` rows.

    The range is read back from the device once. It is not read where there are no
    numbers to read: on the meta device, and while a graph is compiled.

    Raises:
        TypeError: not a tensor of 32- or 64-bit integers.
        ValueError: an id lies outside 0 … size − 1.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name} must be a tensor of ids, got {type(ids).__name__}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} ids must be int32 or int64, got {ids.dtype}")
    if ids.is_meta or torch.compiler.is_compiling() or ids.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(ids)).tolist()
    if low < 0 or high >= size:
        raise ValueError(f"{name} ids must lie in 0 … {size - 1}, got {low} … {high}")


def check_batch(tokens: Tensor, **beside: Tensor | None) -> None:
    """Tokens must be (B, T) with B, T ≥ 1, and whatever stands beside them as large.

    Raises:
        TypeError: not a tensor.  ValueError: a shape is wrong.
    """
    if not isinstance(tokens, Tensor):
        raise TypeError(f"token ids must be a tensor, got {type(tokens).__name__}")
    shape = tuple(tokens.shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"tokens must be (B, T) with B, T ≥ 1, got {shape}")
    for name, x in beside.items():
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x is not None and tuple(x.shape) != shape:
            raise ValueError(
                f"{name} must be {shape}, as the tokens are, got {tuple(x.shape)}"
            )


def check_vectors(name: str, x: Tensor, weight: Tensor) -> None:
    """x must be (batch, length, width), of the width and dtype that a weight reads.

    Shapes:
        weight (any, width), as `nn.Linear` keeps it

    Raises:
        TypeError: not a tensor, or another dtype (autocast may mix them).
        ValueError: another shape.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    width = weight.shape[1]
    if x.dim() != 3 or x.shape[-1] != width:
        raise ValueError(
            f"{name} must have shape (batch, length, d_model = {width}), got "
            f"{tuple(x.shape)}"
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"{name} is {x.dtype}, the layer's weights are {weight.dtype}")
