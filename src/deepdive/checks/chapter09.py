# SPDX-License-Identifier: MIT
"""The checks of chapter 9, T5."""

import math

import torch
from torch import Tensor

from deepdive.checks.base import Check, Wrong
from deepdive.positions import relative_bucket

left_bucket = Check(
    right=10,
    praise="eight exact ones, and ⌊8 · log(20 / 8) / log(128 / 8)⌋ = ⌊2.64⌋ = 2 more.",
    tolerance=0.1,
    wrong=[
        Wrong(
            26,
            "that is for a key to the right: its sixteen buckets come behind the "
            "sixteen of the left.",
        ),
        Wrong(
            17,
            "that is the decoder's, which spends all 32 buckets on looking back. The "
            "encoder has 16 for each side.",
        ),
        Wrong(
            20,
            "that is the distance. Only distances below 8 have a bucket of their own.",
        ),
        Wrong(
            7,
            "those are the page's 8 buckets up to 16. The encoder has 16 for a side, "
            "up to 128.",
        ),
        Wrong(11, "2.64 was rounded up. The step is cut off: ⌊2.64⌋ = 2."),
        Wrong(
            2, "that is the step among the shared ones. Eight exact ones lie before."
        ),
        Wrong(
            9,
            "the logarithm was divided by log 128. The shared part goes from 8 to 128, "
            "a factor of 16.",
        ),
    ],
)

_DROPPED, _SPANS = 154, 51

target_pieces = Check(
    right=_DROPPED + _SPANS + 1,
    praise="154 dropped pieces, 51 marks before them, and one mark at the end.",
    tolerance=0.1,
    wrong=[
        Wrong(
            _DROPPED + _SPANS,
            "one is missing: a last mark says that nothing more is gone.",
        ),
        Wrong(
            _DROPPED,
            "the marks are missing: one before each span and one at the end.",
        ),
        Wrong(
            1024 - _DROPPED + _SPANS,
            "that is what the encoder reads. The decoder writes what is gone.",
        ),
        Wrong(
            2 * _DROPPED + 1,
            "a mark stands before each span of three on average, not before each "
            "piece.",
        ),
        Wrong(
            _DROPPED + _SPANS + 2,
            "154 / 3 = 51.3 was rounded up. It is rounded to the nearest number.",
        ),
        Wrong(1024, "T5 writes what is gone, not the whole text."),
    ],
)


def _looked_back(distance: Tensor, n: int, far: int) -> Tensor:
    """How far back a key stands; 0 for one ahead."""
    return (-distance).clamp(min=0)


def _shared(back: Tensor, n: int, far: int) -> Tensor:
    """The logarithmic part, uncut: a real number, n // 2 at distance n // 2."""
    exact = n // 2
    log = (back.clamp(min=1).double() / exact).log() / math.log(far / exact)
    return exact + log * (n - exact)


def _uncut(distance: Tensor, n: int, far: int) -> Tensor:
    """Without the end: beyond `far` the buckets go on."""
    back = _looked_back(distance, n, far)
    return torch.where(back < n // 2, back, _shared(back, n, far).floor().long())


def _rounded(distance: Tensor, n: int, far: int) -> Tensor:
    back = _looked_back(distance, n, far)
    many = _shared(back, n, far).round().long().clamp(max=n - 1)
    return torch.where(back < n // 2, back, many)


def _all_logarithmic(distance: Tensor, n: int, far: int) -> Tensor:
    back = _looked_back(distance, n, far)
    return _shared(back, n, far).floor().long().clamp(0, n - 1)


_NEAR = torch.arange(-24, 5)
_FAR = torch.arange(-300, 6)

backward_buckets = Check(
    right=lambda distance, n, far: relative_bucket(distance, False, n, far),
    praise="the near half exact, the far half by logarithm, the rest in the last.",
    cases=[(_NEAR, 8, 16), (_FAR, 32, 128)],
    wrong=[
        Wrong(
            lambda distance, n, far: relative_bucket(-distance, False, n, far),
            "the sign is turned round: a key behind the query has a negative distance.",
        ),
        Wrong(
            lambda distance, n, far: relative_bucket(-distance.abs(), False, n, far),
            "keys ahead of the query got buckets of their own. The decoder never sees "
            "them: all are distance 0.",
        ),
        Wrong(_uncut, "beyond the farthest distance the buckets go on. Cut at n − 1."),
        Wrong(_rounded, "the step was rounded to the nearest. It is cut off."),
        Wrong(
            _all_logarithmic,
            "the near half is logarithmic too. Distances below n / 2 are their own "
            "buckets.",
        ),
        Wrong(
            lambda distance, n, far: _looked_back(distance, n, far).clamp(max=n - 1),
            "every bucket is a single distance. The far half is shared, by logarithm.",
        ),
        Wrong(
            lambda distance, n, far: relative_bucket(distance, True, n, far),
            "those are the encoder's buckets. Looking back only, all n serve one side.",
        ),
    ],
)


def _bias_of(table: Tensor, distance: Tensor, far: int) -> Tensor:
    """The table's numbers for some distances, a row for each head."""
    bucket = relative_bucket(distance, False, len(table), far)
    return table[bucket].movedim(-1, 0)


def _table(n_buckets: int, n_heads: int) -> Tensor:
    generator = torch.Generator().manual_seed(2019)
    return torch.randn(n_buckets, n_heads, generator=generator, dtype=torch.float64)


newest_bias = Check(
    right=lambda table, n, far: _bias_of(table, torch.arange(n) - (n - 1), far),
    praise="the newest query stands at place n − 1, beside the newest key.",
    cases=[(_table(8, 2), 4, 16), (_table(8, 3), 30, 16)],
    wrong=[
        Wrong(
            lambda table, n, far: _bias_of(table, torch.arange(n), far),
            "the query was taken to stand at place 0: the first piece comes out right, "
            "and every later one is off.",
        ),
        Wrong(
            lambda table, n, far: _bias_of(table, -torch.arange(n), far),
            "the keys run from the newest to the oldest. A cache keeps the oldest "
            "first.",
        ),
        Wrong(
            lambda table, n, far: _bias_of(table, torch.arange(n) - n, far),
            "one place too far: the newest key is the query's own place, distance 0.",
        ),
        Wrong(
            lambda table, n, far: _bias_of(table, torch.arange(n) - (n - 1), far).T,
            "the numbers are right, heads and keys are exchanged: a row for each head.",
        ),
        Wrong(
            lambda table, n, far: _bias_of(
                table, torch.arange(n)[None] - torch.arange(n)[:, None], far
            ),
            "that is the bias of all n queries. Only the newest asks; the others were "
            "answered before.",
        ),
        Wrong(
            lambda table, n, far: torch.zeros(table.shape[1], n, dtype=table.dtype),
            "without a bias the decoder does not know how far back a key stands.",
        ),
    ],
)
