# SPDX-License-Identifier: MIT
"""How fast is attention over a long text: the formula, torch's kernel, and tiles?

Live: torch's own kernel, called directly. Named only: compiled flex attention, which
compiles for each shape anew.

    python benchmarks/speed/attention.py
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from deepdive.accounting import causal_pairs
from deepdive.kernels import equation, fused, tiled
from deepdive.masks import Causal
from deepdive.timing import Goal, Row, main, multiplying

HEADS, WIDTH = 6, 64
FLEX = (
    "0.6 × the formula at T = 4096 (November 2026, two cores of an x86 machine, "
    "torch 2.13; not run here)"
)


def attention(T: int, least: float | None = None) -> Row:
    """Causal self-attention, forward.

    Args:
        least: how many times as fast as the formula tiles are to be.
    """
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, T, WIDTH)
    ways = {n: partial(f, q, k, v, mask=Causal()) for n, f in kernels().items()}
    # The last two have to be like each other: neither comes behind the formula, which
    # leaves the caches full of scores and gives much memory back.
    ways["torch"] = lambda: scaled_dot_product_attention(q, k, v, is_causal=True)
    ways["fused"] = ways.pop("fused")
    goals = [Goal("fused", "torch", 0.95, "it is torch's kernel, and the default")]
    if least is not None:
        goals.append(Goal("tiled", "formula", least))
    return Row(
        name="attention, forward",
        sizes=sizes(T),
        ways=ways,
        goals=tuple(goals),
        limits={"operations": multiplying(products(T, 2))},
        named={"compiled flex attention": FLEX},
    )


def training(T: int) -> Row:
    """Causal self-attention, forward and backward."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, T, WIDTH)
    d_out = torch.randn(1, HEADS, T, WIDTH)
    ways = {n: gradients(f, (q, k, v), d_out) for n, f in kernels().items()}
    return Row(
        name="attention, both ways",
        sizes=sizes(T),
        ways=ways,
        goals=(Goal("tiled", "formula", 1.0, "less memory should not cost time"),),
        # Backward: the scores again, and a product for each of dv, dp, dq and dk.
        limits={"operations": multiplying(products(T, 7))},
    )


def kernels() -> dict[str, Callable[..., Tensor]]:
    """This book's, by name."""
    return {"formula": equation, "fused": fused, "tiled": tiled}


def gradients(
    kernel: Callable[..., Tensor], inputs: tuple[Tensor, ...], d_out: Tensor
) -> Callable[[], Tensor]:
    """A call that returns the gradients of q, k and v, one below another."""
    leaves = [x.clone().requires_grad_() for x in inputs]

    def call() -> Tensor:
        with torch.enable_grad():
            out = kernel(*leaves, mask=Causal())
            return torch.cat(torch.autograd.grad(out, leaves, d_out))

    return call


def products(T: int, n: int) -> int:
    """Operations of n products of the scores' size, blocked pairs left out."""
    return n * 2 * HEADS * WIDTH * causal_pairs(T)


def sizes(T: int) -> str:
    return f"T = {T}, {HEADS} heads of {WIDTH}"


FULL = (
    lambda: attention(1024),
    lambda: attention(4096, least=4.0),
    lambda: training(1024),
    lambda: training(4096),
)
QUICK = (lambda: attention(256), lambda: training(256))

if __name__ == "__main__":
    main(__doc__, FULL, QUICK)
