# SPDX-License-Identifier: MIT
"""What does training experts cost beside their products, and what of it can go?

Left to autograd, every expert's gradient is a tensor of its own until all are copied
into the stack's, and each number between two operations goes to memory and back. Here
the backward pass is written out: an expert's gradients go straight to their place, and
its block of rows stays in the cache from the first product to the last.

Taught in: book/14_mixture_of_experts.ipynb
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn


def _silu(activation: nn.SiLU, d: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward(d, x)


def _gelu(activation: nn.GELU, d: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(d, x, approximate=activation.approximate)


def _relu(activation: nn.ReLU, d: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(d, x, 0)


DERIVATIVES = {nn.SiLU: _silu, nn.GELU: _gelu, nn.ReLU: _relu}


class SortedExperts(torch.autograd.Function):
    """Experts of two layers on choices that are sorted by expert, forward and backward.

        h = activation(first x)  [⊙ second x];   y = Σ down (gate · h)

        ∂gate = h · ∂h,   ∂h = downᵀ ∂y;   ∂down = ∂y (gate · h)ᵀ
        ∂first = ∂p xᵀ,   ∂x = firstᵀ ∂p,  where p = first x and
        ∂p = gate · ∂h ⊙ activation′(p)  [⊙ second x];   the same for second

    Shapes:
        sizes, E numbers with sum M; token (M,) int64, gates (M, 1); x (N, d_model);
        down (E, d_model, d_expert), one or two readers (E, d_expert, d_model)
        → (N, d_model)

    Raises:
        RuntimeError: a derivative of the derivative is asked for.

    Note:
        The gate multiplies h, not y: d_expert numbers, not d_model. Kept for the
        backward pass are the readers' products; rows and h are computed again.
        1,024 tokens, 4 of 32 experts of 512 × 256, torch 2.13, one AMD EPYC thread:
        forward and backward 1.14 times as fast as autograd's, forward alone 1.08 times
        (256 × 512: 1.04 and 0.97). Of the rest, about a sixth is the system
        handing out 50 MB of pages for the gradients. Tried beside it,
        forward: `grouped_mm` (0.93 times as fast), products of transposed blocks
        (0.85), gate and up in one product (1.0).

    Taught in: book/14_mixture_of_experts.ipynb
    """

    @staticmethod
    def forward(
        ctx,
        activation: nn.Module,
        sizes: list[int],
        token: Tensor,
        x: Tensor,
        gates: Tensor,
        down: Tensor,
        *readers: Tensor,
    ) -> Tensor:
        width = readers[0].shape[1]
        products = [x.new_empty(len(token), width) for _ in readers]
        out = torch.zeros_like(x)
        rows, stacks = (token, gates, *products), (down, *readers)
        for (token_e, gate_e, *its), (down_e, *read) in _blocks(sizes, rows, stacks):
            x_e = x.index_select(0, token_e)
            for product, reader in zip(its, read, strict=True):
                torch.mm(x_e, reader.t(), out=product)
            h = _hidden(activation, its).mul_(gate_e)
            out.index_add_(0, token_e, h @ down_e.t())
        ctx.activation, ctx.sizes = activation, sizes
        ctx.save_for_backward(token, x, gates, down, *readers, *products)
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("no second derivatives here: differentiate `dense`")
        token, x, gates, down, *rest = ctx.saved_tensors
        readers, products = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        d_x, d_gates = torch.zeros_like(x), torch.empty_like(gates)
        stacks = down, *readers
        d_stacks = [torch.empty_like(stack) for stack in stacks]
        rows = token, gates, d_gates, *products
        for (token_e, gate_e, d_gate, *its), matrices in _blocks(
            ctx.sizes, rows, (*stacks, *d_stacks)
        ):
            down_e, *read = matrices[: len(stacks)]
            d_down, *d_read = matrices[len(stacks) :]
            x_e, d_e = x.index_select(0, token_e), d_out.index_select(0, token_e)
            h, d_h = _hidden(ctx.activation, its), d_e @ down_e
            torch.sum(h * d_h, 1, keepdim=True, out=d_gate)
            torch.mm(d_e.t(), h.mul_(gate_e), out=d_down)
            d_its = _hidden_backward(ctx.activation, d_h.mul_(gate_e), its)
            for d, reader, d_reader in zip(d_its, read, d_read, strict=True):
                torch.mm(d.t(), x_e, out=d_reader)
                d_x.index_add_(0, token_e, d @ reader)
        for e, size in enumerate(ctx.sizes):
            if not size:
                for d_stack in d_stacks:
                    d_stack[e] = 0.0
        return None, None, None, d_x, d_gates, *d_stacks


def fits(activation: nn.Module, *tensors: Tensor) -> bool:
    """Can `SortedExperts` compute this, and does it pay?

    Not where autograd must see the activation at work, where the dtypes differ (a
    half-precision model has float32 gates), or where some gradient is not wanted.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    if type(activation) not in DERIVATIVES or getattr(activation, "inplace", False):
        return False
    hooks = activation._forward_hooks, activation._forward_pre_hooks
    if any(hooks) or activation._backward_hooks or activation._backward_pre_hooks:
        return False
    if torch.is_autocast_enabled(tensors[0].device.type):
        return False
    wanted = [x.requires_grad for x in tensors]
    every = all(wanted) or not any(wanted) or not torch.is_grad_enabled()
    return every and len({x.dtype for x in tensors}) == 1


def _blocks(
    sizes: list[int], rows: Sequence[Tensor], stacks: Sequence[Tensor]
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """For each expert that is visited: its block of each of `rows`, its matrices."""
    blocks = zip(*(x.split(sizes) for x in rows), strict=True)
    matrices = zip(*(stack.unbind() for stack in stacks), strict=True)
    for size, block, its in zip(sizes, blocks, matrices, strict=True):
        if size:
            yield block, its


def _hidden(activation: nn.Module, products: Sequence[Tensor]) -> Tensor:
    """What stands between the layers, in a new tensor."""
    first, *second = products
    h = activation(first)
    return h.mul_(second[0]) if second else h


def _hidden_backward(
    activation: nn.Module, d: Tensor, products: Sequence[Tensor]
) -> list[Tensor]:
    """The gradient of each product, from that of `_hidden`."""
    first, *second = products
    derivative = DERIVATIVES[type(activation)]
    if not second:
        return [derivative(activation, d, first)]
    d_first = derivative(activation, d * second[0], first)
    return [d_first, d.mul_(activation(first))]
