# SPDX-License-Identifier: MIT
"""Can a distance be a number that is added to the score? T5 and ALiBi."""

import math

import torch
from torch import Tensor, nn

from deepdive.inputs import check_sizes
from deepdive.positions.angles import (
    check_positions,
)


class RelativeBias(nn.Module):
    """T5's: a learned number per head for each bucket of distances.

        bias[h, t, s] = table[bucket(s − t), h]

    Near distances have a bucket each, farther ones share, logarithmically, and all
    beyond `max_distance` are one. The first layer of a stack holds the table; all of
    the stack's layers add it.

    Shapes:
        queries (T,), keys (S,) integer positions → (1, H, T, S)

    Args:
        bidirectional: half of the buckets for keys to the right (the encoder); without
            it every key to the right counts as distance 0 (the decoder).

    Raises:
        ValueError: a count is out of range.  TypeError: positions are no integers.

    Source: Raffel et al. 2019, §2.1; the formula is that of the released code.

    Taught in: book/09_t5.ipynb
    """

    def __init__(
        self,
        n_heads: int,
        bidirectional: bool,
        n_buckets: int = 32,
        max_distance: int = 128,
    ):
        super().__init__()
        check_sizes(n_heads=n_heads)
        _check_buckets(bidirectional, n_buckets, max_distance)
        self.bidirectional = bidirectional
        self.n_buckets, self.max_distance = n_buckets, max_distance
        self.table = nn.Embedding(n_buckets, n_heads)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = _distances(queries, keys)
        bucket = relative_bucket(
            distance, self.bidirectional, self.n_buckets, self.max_distance
        )
        return self.table(bucket).permute(2, 0, 1)[None]  # (1, H, T, S)


def relative_bucket(
    distance: Tensor, bidirectional: bool, n_buckets: int = 32, max_distance: int = 128
) -> Tensor:
    """The bucket of each distance, key minus query.

    Shapes:
        distance (…) integers → (…) integers in 0 … n_buckets − 1

    >>> relative_bucket(torch.tensor([-128, -8, -1, 0, 1, 8, 1000]), True).tolist()
    [15, 8, 1, 0, 17, 24, 31]

    Taught in: book/09_t5.ipynb
    """
    check_positions(distance)
    _check_buckets(bidirectional, n_buckets, max_distance)
    offset = torch.zeros_like(distance)
    if bidirectional:
        n_buckets //= 2
        offset = (distance > 0) * n_buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = n_buckets // 2
    # float32, as the released code has it: at the borders a wider type rounds elsewhere
    log = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = (exact + (log * (n_buckets - exact)).long()).clamp(max=n_buckets - 1)
    return offset + torch.where(distance < exact, distance, far)


class Alibi(nn.Module):
    """Each head subtracts its own multiple of the distance; nothing is learned.

        bias[h, t, s] = −m_h · |t − s|,   m_h = 2^(−8h/H) for h = 1 … H, H a power of 2

    Shapes:
        queries (T,), keys (S,) integer positions → (1, H, T, S) float32

    Raises:
        ValueError: n_heads below 1.  TypeError: positions are no integers.

    Source: Press et al. 2021 (arXiv:2108.12409), §3; for other H the released code
    takes every second slope of the next power of two, as here.

    >>> Alibi(8).slopes()
    tensor([0.5000, 0.2500, 0.1250, 0.0625, 0.0312, 0.0156, 0.0078, 0.0039])

    Taught in: book/11_rope.ipynb
    """

    def __init__(self, n_heads: int):
        super().__init__()
        check_sizes(n_heads=n_heads)
        self.n_heads = n_heads

    def slopes(self, device=None) -> Tensor:
        """m, one for each head: (H,) float32."""
        H = self.n_heads
        power = 2 ** math.floor(math.log2(H))
        slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
        slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (H - power) + 1, 2)]
        return torch.tensor(slopes, dtype=torch.float32, device=device)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = _distances(queries, keys).abs()
        return (-self.slopes(distance.device)[:, None, None] * distance)[None]


def _distances(queries: Tensor, keys: Tensor) -> Tensor:
    """Key minus query: (T,), (S,) → (T, S)."""
    for name, x in (("queries", queries), ("keys", keys)):
        check_positions(x)
        if x.dim() != 1:
            raise ValueError(f"{name} must be (length,), got {tuple(x.shape)}")
    return keys[None, :] - queries[:, None]


def _check_buckets(bidirectional: bool, n_buckets: int, max_distance: int) -> None:
    check_sizes(n_buckets=n_buckets, max_distance=max_distance)
    exact = n_buckets // (4 if bidirectional else 2)
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"n_buckets {n_buckets} must be large enough, and max_distance "
            f"{max_distance} above {max(exact, 1)}"
        )
