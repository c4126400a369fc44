# SPDX-License-Identifier: MIT
"""What if a few numbers of a vector are so large that 8 bits drown all others?

Turn it: in other axes no number stands out, and a product of two vectors that were
turned alike is the same as before.

Taught in: book/10_kv_cache.ipynb
"""

import torch
from torch import Tensor

from deepdive.inputs import check_sizes

BLOCK = 64


def hadamard(n: int) -> Tensor:
    """n rows of +1 and −1, each at right angles to every other: H·Hᵀ = n·I.

    Shapes:
        → (n, n) float32; n is a power of two

    Raises:
        ValueError: n is not a power of two.

    Source: Sylvester 1867, by doubling.

    >>> hadamard(2)
    tensor([[ 1.,  1.],
            [ 1., -1.]])

    Taught in: book/10_kv_cache.ipynb
    """
    check_sizes(n=n)
    if n & (n - 1):
        raise ValueError(f"n must be a power of two, got {n}")
    H = torch.ones(1, 1)
    while len(H) < n:
        H = torch.cat((torch.cat((H, H), 1), torch.cat((H, -H), 1)))
    return H


def turning(n: int) -> Tensor:
    """`hadamard(n)` with the signs of some rows changed, the same for every n.

    Without the changes a vector of equal numbers would become a single large one.

    >>> H = turning(4)
    >>> torch.equal(H @ H.T, 4 * torch.eye(4))
    True

    Taught in: book/10_kv_cache.ipynb
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (BLOCK,), generator=generator)[:n] * 2.0 - 1
    return signs[:, None] * hadamard(n)


def block_of(width: int) -> int:
    """How many numbers are turned together: 64, or a power of two ≥ a smaller width.

    >>> block_of(576), block_of(9)
    (64, 16)

    Taught in: book/10_kv_cache.ipynb
    """
    check_sizes(width=width)
    return min(BLOCK, max(2, 1 << (width - 1).bit_length()))
