# SPDX-License-Identifier: MIT
"""Must the logits exist at all? A loss can make them a piece at a time, and forget.

With a large vocabulary logits are the largest tensor of a training step, and so is
their gradient. Neither is needed whole: each row gives its part of the loss, of the
gradient of the row that it was made from, and of the output layer's gradient.

Taught in: book/08_gpt.ipynb
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import linear

from deepdive.inputs import check_kind, check_vectors
from deepdive.objectives.losses import Loss, check_labels, cross_entropy
from deepdive.objectives.rows import cross_entropy_sum, many, slope
from deepdive.objectives.shifts import IGNORED

# Logits that are made at once: 8 MiB in float32, but of 128 rows at least, since every
# piece reads the weights twice and their gradient once. Between 256 and 512 rows of a
# vocabulary of 8192 no difference was seen, 64 were 0.87 × as fast (torch 2.13, one
# thread of an AMD EPYC 9004). 1024 rows of 384 took 0.82 of the time of logits and
# torch's loss, and as long as logits and the loss by rows, or 2 % less; of a GPT's step
# the gain over that lay within the spread, −2 … 4 %. The gain for certain is memory.
PIECE, ROWS = 2**21, 128


def projected_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Loss:
    """`cross_entropy(hidden @ weight.T, labels)`, without ever making all logits.

        logits = hidden weightᵀ
        d_hidden = d_logits weight,   d_weight = d_logitsᵀ hidden

    Shapes:
        hidden (B, T, d_model), weight (V, d_model), labels (B, T) integers, −100 = not
        asked → `Loss`

    Raises:
        ValueError: shapes do not fit, or a label is outside 0 … V − 1 and not −100.
        TypeError: not floats of one dtype, or labels not integers.

    Note:
        The gradients are computed with the loss, so backward only multiplies. Few
        logits, those of another device than the CPU, low precision and autocast take
        the plain way. `torch.nn.functional.linear_cross_entropy` is of the same kind.

    >>> hidden, weight = torch.zeros(1, 3, 8), torch.zeros(20, 8)
    >>> loss = projected_cross_entropy(hidden, weight, torch.tensor([[1, 2, -100]]))
    >>> round(float(loss.mean.exp()), 3)
    20.0

    Taught in: book/08_gpt.ipynb
    """
    check_kind("weight", weight, Tensor)
    if weight.dim() != 2 or not weight.is_floating_point():
        raise ValueError(
            f"weight must be floats (V, d_model), got {weight.dtype} "
            f"{tuple(weight.shape)}"
        )
    check_vectors("hidden", hidden, weight)
    check_labels(labels, hidden.shape[:-1], len(weight))
    if not _worth_it(hidden, weight):
        return cross_entropy(linear(hidden, weight), labels)
    x, its = hidden.flatten(0, 1), labels.flatten().long()
    total = _Projected.apply(x, weight, its, torch.is_grad_enabled())
    return Loss(total, (labels != IGNORED).sum())


def _worth_it(hidden: Tensor, weight: Tensor) -> bool:
    """Many logits, and gradients that can be added up in the weights' own dtype."""
    wide = weight.dtype in (torch.float32, torch.float64)
    plain = not torch.is_autocast_enabled(hidden.device.type)
    rows = hidden.shape[0] * hidden.shape[1]
    return wide and plain and many(rows, len(weight), hidden.device)


class _Projected(torch.autograd.Function):
    """Loss and gradients in one pass; a gradient of these is torch's own."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden: Tensor, weight: Tensor, labels: Tensor, wanted: bool
    ) -> Tensor:
        rows = max(ROWS, PIECE // len(weight))
        pieces = zip(hidden.split(rows), labels.split(rows), strict=True)
        ctx.save_for_backward(hidden, weight, labels)
        d_hidden, d_weight = [], torch.zeros_like(weight) if wanted else None
        one, totals = hidden.new_ones(()), []
        for x, its in pieces:
            logits = linear(x, weight)
            totals.append(cross_entropy_sum(logits, its, 0.0))
            if wanted:
                d_logits = slope(logits, its, 0.0, one)
                d_hidden.append(linear(d_logits, weight.t()))
                d_weight.addmm_(d_logits.T, x)
        ctx.gradients = (torch.cat(d_hidden), d_weight) if wanted else None
        return torch.stack(totals).sum()

    @staticmethod
    def backward(ctx: FunctionCtx, d_total: Tensor) -> tuple:
        if torch.is_grad_enabled():  # somebody wants the gradient of the gradient
            hidden, weight, labels = ctx.saved_tensors
            total = cross_entropy_sum(linear(hidden, weight), labels, 0.0)
            both = [x for x in (hidden, weight) if x.requires_grad]
            found = torch.autograd.grad(total, both, d_total, create_graph=True)
            given = iter(found)
            grads = [next(given) if x.requires_grad else None for x in (hidden, weight)]
            return *grads, None, None
        return *(x * d_total for x in ctx.gradients), None, None
