# SPDX-License-Identifier: MIT
"""What must a loss keep of the logits? Nothing that is as large: it reads them twice.

torch's cross-entropy makes three tensors of the logits' size: their logarithms, a
gradient of these that is zero but for one number a row, and the logits' own. Here some
rows at a time are worked on in the processor's cache, and only the last one is made.

Taught in: book/08_gpt.ipynb
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from deepdive.objectives.shifts import IGNORED

# Logits that are worked on at once: 1 MiB in float32. From 2^16 to 2^21 little changed.
PIECE = 2**18
# Logits below which torch's own is faster, forward and backward (torch 2.13, one thread
# of an AMD EPYC 9004, medians): 0.8–0.9 × its speed here at 1024 × 1000; 1.1 × at
# 64 × 32000; 1.4–2 × at 512 × 8192; 1.5–1.7 × at 1024 × 8192 and 4096 × 2048, 1.9–2 ×
# with smoothing. Of a whole step of a GPT (6 layers of 384, 1024 × 8192) it is 2 %.
MANY = 2**21


def many(rows: int, vocab_size: int, device: torch.device) -> bool:
    """Are there so many logits that pieces are faster? Measured on CPUs only."""
    return device.type == "cpu" and rows * vocab_size >= MANY


def cross_entropy_by_rows(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The same as `cross_entropy_sum`, some rows at a time.

    Shapes:
        logits (N, V), labels (N,), −100 = not asked → a float of no axes

    Note:
        Logits are kept for the backward pass, which computes the softmax again: with
        them in cache that takes less time than reading it from memory.
    """
    return _ByRows.apply(logits, labels, smoothing)


def cross_entropy_sum(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """torch's own loss, in float32 or wider, added up over the labels.

    Shapes:
        logits (N, V), labels (N,), −100 = not asked → a float of no axes
    """
    return F.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)),
        labels,
        ignore_index=IGNORED,
        label_smoothing=smoothing,
        reduction="sum",
    )


def slope(logits: Tensor, labels: Tensor, smoothing: float, factor: Tensor) -> Tensor:
    """How `factor` times the sum changes with each logit.

        factor · (softmax(logits) − (1 − ε)·[label] − ε/V),   0 where not asked

    Shapes:
        logits (N, V), labels (N,), factor a number → (N, V), of factor's dtype
    """
    asked = labels != IGNORED
    weight = torch.where(asked, factor, 0.0)[:, None]
    p = torch.softmax(logits, -1, dtype=factor.dtype).mul_(weight)
    if smoothing:
        p.sub_(weight * (smoothing / logits.shape[-1]))
    label = labels.where(asked, 0)[:, None]
    return p.scatter_add_(1, label, weight * (smoothing - 1))


class _ByRows(torch.autograd.Function):
    """Its backward pass is spelt out; a backward pass through that is torch's own."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        pieces = zip(*_split(logits, labels), strict=True)
        return torch.stack([cross_entropy_sum(*p, smoothing) for p in pieces]).sum()

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple, output: Tensor) -> None:
        logits, labels, ctx.smoothing = inputs
        ctx.save_for_backward(logits, labels)

    @staticmethod
    def backward(ctx: FunctionCtx, d_total: Tensor) -> tuple:
        logits, labels = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants the gradient of the gradient
            total = cross_entropy_sum(logits, labels, ctx.smoothing)
            grad = torch.autograd.grad(total, logits, d_total, create_graph=True)
            return *grad, None, None
        d_logits = torch.empty_like(logits)
        for x, its, out in zip(*_split(logits, labels, d_logits), strict=True):
            out.copy_(slope(x, its, ctx.smoothing, d_total))
        return d_logits, None, None


def _split(logits: Tensor, *beside: Tensor) -> list[tuple[Tensor, ...]]:
    """Pieces of some rows each, as views."""
    rows = max(1, PIECE // logits.shape[-1])
    return [x.split(rows) for x in (logits, *beside)]
