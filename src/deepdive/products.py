# SPDX-License-Identifier: MIT
"""Whose product of matrices is the fastest here, and can a model have it unchanged?

torch multiplies with MKL, which keeps to older instructions (AVX2) on processors that
Intel did not make. oneDNN, which torch also has, uses the newer ones (AVX-512). Inside
`FastProducts`, `torch.nn.functional.linear` and its gradients go to oneDNN where that
was measured to be faster; everything else stays as it is.

Taught in: book/08_gpt.ipynb
"""

import functools
import math
import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx
from torch.overrides import TorchFunctionMode

# Times as fast as MKL, medians (torch 2.13, one thread of an AMD EPYC 9004), of y and
# dx: rows × in → out 256 × 256 → 1024, 1.09 and 1.09; 1024 × 256 → 256, 1.07 and 1.07;
# 1024 × 384 → 384, 1.11 and 1.11; 1024 × 384 → 1536, 1.24 and 1.21; 512 × 768 → 768,
# 1.13 and 1.16; 1024 × 1536 → 384, 1.12 and 1.02; 1024 × 384 → 8192, 1.10 and 1.05.
# Of 128 × 256 → 256, 0.96 and 1.03.
LEAST = 2**26  # rows · in · out
SIDE = 256  # of a weight: narrower ones were not measured, and keep their bits
# dW with more inputs than outputs: 1024 × 1536 → 384, 1.10; 512 × 2048 → 512, 1.10;
# 256 × 1024 → 256, 1.03; 128 × 8192 → 384, 1.16. With fewer, or as many: 0.78 … 1.07,
# but 1.17 of 64 × 768 → 3072.


class FastProducts(TorchFunctionMode):
    """Inside, large products of `torch.nn.functional.linear` are oneDNN's.

        y = x Wᵀ + b
        dx = dy W,   dW = dyᵀ x,   db = Σ dy over the rows

    Large are products of at least 2²⁶ multiplications with a weight of at least 256
    rows and columns, in float32 on the CPU. Low precision, autocast, transforms and
    forward derivatives, what is compiled, and subclasses of `Tensor` stay torch's.

    Shapes:
        x (..., in), W (out, in), b (out,) → y (..., out)

    Note:
        dW with in ≤ out stays MKL's, which is as fast there or faster. Gradients of
        gradients are torch's own, and so is what a checkpoint computes anew.

        Which product is used depends on sizes only, so that a run can be repeated to
        the last bit. Inside, each of torch's calls takes 4 µs more, which is why
        `fast_products` leaves small batches alone.

    >>> with FastProducts():
    ...     y = F.linear(torch.ones(2, 3), torch.ones(4, 3))
    >>> y.shape
    torch.Size([2, 4])

    Taught in: book/08_gpt.ipynb
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear and _worth_it(*args, **kwargs):
            return _linear(*args, **kwargs)
        return func(*args, **kwargs)


def fast_products(model: nn.Module) -> Callable[[object], AbstractContextManager]:
    """For training a model: from a batch to `FastProducts`, or to nothing.

    Something it is where the processor has more than MKL uses, and where the batch has
    so many numbers (tokens) that a product of so many rows with any of the model's wide
    weights is large. Then the mode's own time was less than 1 % of a step.

    >>> type(fast_products(nn.Linear(128, 512))(torch.ones(1024)))  # too narrow
    <class 'contextlib.nullcontext'>

    Taught in: book/08_gpt.ipynb
    """
    sizes = [w.shape[-2] * w.shape[-1] for w in model.parameters() if _wide(w)]
    least = LEAST / min(sizes) if sizes and held_back() else math.inf

    def around(batch: object) -> AbstractContextManager:
        return FastProducts() if _rows(batch) >= least else nullcontext()

    return around


@functools.cache
def held_back() -> bool:
    """Does MKL leave instructions unused here that oneDNN would use?

    Taught in: book/08_gpt.ipynb
    """
    newer = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return newer and "AuthenticAMD" in _vendor() and has_onednn()


@functools.cache
def has_onednn() -> bool:
    """Has torch the product of oneDNN that its compiler uses, and does it work here?

    Taught in: book/08_gpt.ipynb
    """
    x, W, b = torch.eye(3)[:2], torch.arange(12.0).view(4, 3), torch.ones(4)
    try:
        found = onednn_linear(x, W, b)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return torch.equal(found, x @ W.t() + b)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b without gradients; it would read a bias with gaps as if it had none.

    Shapes:
        x (..., in), weight (out, in), bias (out,), float32 → (..., out)

    Taught in: book/08_gpt.ipynb
    """
    bias = None if bias is None else bias.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Kept for the backward pass are tensors of the shapes that torch's own keeps.

    A checkpoint compares them when it computes anew, in a backward pass: for that torch
    leaves the mode.
    """
    y = _Linear.apply(input.flatten(0, -2), weight.t(), bias)
    return y.unflatten(0, input.shape[:-1])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, turned: Tensor, bias: Tensor | None
    ) -> Tensor:
        wants_x, wants_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if wants_weight else None, turned if wants_x else None)
        return onednn_linear(x, turned.t(), bias)

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, turned = ctx.saved_tensors
        dx = d_turned = d_bias = None
        # With gradients on, somebody wants the gradient of the gradient.
        times = F.linear if torch.is_grad_enabled() else onednn_linear
        if turned is not None:
            dx = times(dy, turned)
        if x is not None:
            narrows = x.shape[1] > dy.shape[1]
            d_turned = (times(dy.t(), x.t()) if narrows else dy.t() @ x).t()
        if ctx.needs_input_grad[2]:
            d_bias = dy.sum(0)
        return dx, d_turned, d_bias


def _worth_it(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Is it a large product of tensors that oneDNN can read?"""
    if not _wide(weight) or weight.dim() != 2 or torch.compiler.is_compiling():
        return False
    out, width = weight.shape
    if not _plain(input) or input.dim() < 2 or input.shape[-1] != width:
        return False
    if bias is not None and not (_plain(bias) and bias.shape == (out,)):
        return False
    return input.numel() * out >= LEAST and not _transformed() and _there()


def _there() -> bool:
    return torch.backends.mkldnn.enabled and has_onednn()


def _wide(weight: Tensor) -> bool:
    return _plain(weight) and weight.dim() >= 2 and min(weight.shape[-2:]) >= SIDE


def _plain(x: Tensor) -> bool:
    """Float32 in the CPU's memory, and of no class with ideas of its own."""
    strided = x.dtype == torch.float32 and x.layout == torch.strided
    return type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" and strided


def _transformed() -> bool:
    """Is more asked than the numbers and their gradients, or less precise ones?"""
    return (
        torch.is_autocast_enabled("cpu")
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _rows(batch: object) -> int:
    """How many numbers the largest tensor of a batch has."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        return max(map(_rows, batch), default=0)
    return batch.numel() if isinstance(batch, Tensor) else 0


def _vendor() -> str:
    """What the system says of the processor's maker."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    made = [line for line in lines if line.startswith("vendor_id")]
    return made[0] if made else platform.processor()
