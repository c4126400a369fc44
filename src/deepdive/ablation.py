# SPDX-License-Identifier: MIT
"""What does one head contribute? Remove it and see what changes.

Taught in: book/03_multi_head.ipynb
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from deepdive.inputs import check_kind


@contextmanager
def ablate(model: nn.Module, layer: int, head: int) -> Iterator[None]:
    """Inside the `with` block, one head's output is zero before it reaches W_O.

        out = [head₁ … 0 … head_H] W_O + b_O

    All else is computed as before, so later layers see the change. Blocks nest: two of
    them remove two heads.

    Args:
        model: has `blocks`, each with an `attention` (`MultiHeadAttention`).
        layer, head: counted from 0.

    Raises:
        ValueError: there is no such layer or head.

    Note:
        Zero is one choice of what to put in a head's place; its mean output over many
        texts is another, and the two can rank heads differently.

    Source: Michel, Levy and Neubig 2019 (arXiv:1905.10650), §3.
    Taught in: book/03_multi_head.ipynb
    """
    check_kind("model", model, nn.Module)
    if not hasattr(model, "blocks"):
        raise TypeError(f"model must have blocks, {type(model).__name__} has none")
    _check("layer", layer, len(model.blocks))
    attention = model.blocks[layer].attention
    _check("head", head, attention.n_heads)
    mine = slice(head * attention.head_dim, (head + 1) * attention.head_dim)

    def without(_, args):
        x = args[0].clone()  # (B, T, H·D)
        x[..., mine] = 0
        return (x,)

    hook = attention.o_proj.register_forward_pre_hook(without)
    try:
        yield
    finally:
        hook.remove()


def _check(what: str, i: int, n: int) -> None:
    if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n:
        raise ValueError(f"{what} must be one of 0 … {n - 1}, got {i!r}")
