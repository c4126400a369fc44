# SPDX-License-Identifier: MIT
"""Run a model of `transformers` in float64 throughout.

Norms, routers and softmaxes there are computed in float32 by name, so a float64 model
is exact to about 1e-7 only. Under `wide` those parts are float64 too. The angles of the
rotary positions stay float32, as they are in this book.
"""

from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _InFloat64(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        def swap(x):
            return torch.float64 if x is torch.float32 else x

        func = Tensor.double if func is Tensor.float else func
        kwargs = {name: swap(x) for name, x in (kwargs or {}).items()}
        return func(*map(swap, args), **kwargs)


@contextmanager
def wide(reference: torch.nn.Module):
    """Inside the block everything is float64, but the reference's angles.

    Run only the reference inside: this book's angles would be float64, too.
    """
    rotary = [m for m in reference.modules() if type(m).__name__.endswith("Embedding")]
    rotary = [m for m in rotary if hasattr(m, "inv_freq")]
    for module in rotary:
        module.forward = _as_written(type(module).forward, module)
    try:
        with _InFloat64():
            yield
    finally:
        for module in rotary:
            del module.forward


def _as_written(forward, module):
    """The angles in float32; a complex table rounded as cosine and sine are alone."""

    def polar(size, angle):
        return torch.complex(size * angle.cos(), size * angle.sin())

    def run(*args, **kwargs):
        with torch._C.DisableTorchFunction(), patch("torch.polar", polar):
            return forward(module, *args, **kwargs)

    return run


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Float64 weights large enough that every part matters; norms near 1."""
    model = model.double().eval()
    generator = torch.Generator().manual_seed(seed)

    def draw(x):
        return torch.randn(x.shape, generator=generator, dtype=x.dtype)

    for x in model.parameters():
        x.copy_(1 + 0.2 * draw(x) if x.dim() == 1 else 0.3 * draw(x))
    for name, x in model.named_buffers():
        if name.endswith("correction_bias"):
            x.copy_(0.1 * draw(x))
    return model
