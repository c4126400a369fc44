# SPDX-License-Identifier: MIT
"""The checks of chapter 4, positions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deepdive.checks.base import Check, Wrong, random_tensors

one_sinusoid = Check(
    right=math.sin(2),
    praise="the slow hand has turned by 200 · 1/100 = 2 radians, and sin 2 = 0.909.",
    wrong=[
        Wrong(
            math.sin(math.radians(2)),
            "the angle is 2 radians; the calculator took it for degrees.",
        ),
        Wrong(math.cos(2), "that is the fourth number. A pair is sine, then cosine."),
        Wrong(math.sin(200), "that is the first number: the third turns with θ₁."),
        Wrong(
            math.sin(200 / 10_000),
            "the exponent is missing: 10,000 to the power 2/4 is 100.",
        ),
        Wrong(
            math.sin(200 / 10),
            "the exponent is 2i/d = 2/4 for i = 1; you took 1/4.",
        ),
    ],
)

whole_turn = Check(
    right=2 * math.pi * 100,
    praise="θ = 10,000^(−256/512) = 1/100, and a whole turn is 2π radians.",
    tolerance=0.5,  # positions; 628 is right
    wrong=[
        Wrong(
            100, "after 100 positions it has turned by 1 radian. A whole turn is 2π."
        ),
        Wrong(
            2 * math.pi * 10, "the exponent is 2i/d = 256/512, not i/d. Which θ is it?"
        ),
        Wrong(
            2 * math.pi * 10_000,
            "that would be i = d/2, past the last pair. What is 10,000 to the ½?",
        ),
        Wrong(0.01, "that is θ, the angle per position. How many make 2π?"),
    ],
)


def _table(
    exponent: Callable[[Tensor, int], Tensor] = lambda i, d: 2 * i / d,
    order: str = "sin cos",
    start: int = 0,
    sign: int = -1,
) -> Callable:
    """Sinusoids (T, d), right unless told otherwise."""

    def table(positions: Tensor, d: int) -> Tensor:
        i = torch.arange(d // 2).double()
        angles = (positions + start)[:, None] * 10_000 ** (sign * exponent(i, d))
        pair = {"sin": angles.sin(), "cos": angles.cos()}
        first, second = (pair[name] for name in order.split()[:2])
        if order.endswith("apart"):
            return torch.cat((first, second), dim=1)
        return torch.stack((first, second), dim=-1).flatten(1)

    return table


def _by_column(exponent: Callable[[Tensor, int], Tensor]) -> Callable:
    """Sinusoids with an angle for each column, where a pair should share one."""

    def table(positions: Tensor, d: int) -> Tensor:
        j = torch.arange(d).double()
        angles = positions[:, None] / 10_000 ** exponent(j, d)
        return torch.where(j % 2 == 0, angles.sin(), angles.cos())

    return table


sinusoids = Check(
    right=_table(),
    praise="the same numbers as deepdive.positions.SinusoidalPositions.",
    cases=[(torch.arange(3), 4), (torch.tensor([0, 5, 7]), 6)],
    wrong=[
        Wrong(
            _table(order="sin cos apart"),
            "all sines stand before all cosines. The paper has them pair by pair.",
        ),
        Wrong(
            _table(order="cos sin"),
            "sine and cosine are exchanged. Position 0 should be 0, 1, 0, 1.",
        ),
        Wrong(
            _table(exponent=lambda i, d: i / d),
            "the exponent is 2i/d for pair i; yours is i/d.",
        ),
        Wrong(
            _table(exponent=lambda i, d: i / max(d // 2 - 1, 1)),
            "the exponent reaches 1 at the last pair. The paper's formula has 2i/d.",
        ),
        Wrong(
            _table(exponent=lambda i, d: 4 * i / d),
            "the exponent is 4i/d. arange(0, d, 2) already counts in 2i.",
        ),
        Wrong(
            _by_column(lambda j, d: j / d),
            "sine and cosine of a pair share one angle. Yours has one for each column.",
        ),
        Wrong(
            _by_column(lambda j, d: 2 * j / d),
            "i counts the pairs, not the columns: two columns share one angle.",
        ),
        Wrong(
            lambda positions, d: _table()(torch.arange(len(positions)), d),
            "rows 0, 1, 2 … came out. Use the positions given: they may be 0, 5, 7.",
        ),
        Wrong(_table(start=1), "positions are counted from 0. Yours start at 1."),
        Wrong(_table(sign=1), "the angle is p divided by the power, not times it."),
    ],
)

add_positions = Check(
    right=lambda x, table: x + table[: x.shape[1]],
    praise="word t of every sentence gets row t of the table.",
    cases=[random_tensors((2, 3, 4), (30, 4)), random_tensors((5, 5, 2), (30, 2))],
    wrong=[
        Wrong(
            lambda x, table: x + table[: x.shape[0]][:, None],
            "all words of a sentence get the same row: the first axis is the batch.",
        ),
        Wrong(
            lambda x, table: x + table[: x.shape[0] * x.shape[1]].view_as(x),
            "positions run on from one sentence to the next. Each begins at 0.",
        ),
        Wrong(
            lambda x, table: x + table[1 : x.shape[1] + 1],
            "the first word is at position 0. Yours starts at 1.",
        ),
        Wrong(lambda x, table: x + table[0], "every word gets the row of position 0."),
        Wrong(
            lambda x, table: table[: x.shape[1]].expand_as(x),
            "the positions are right. Where are the words?",
        ),
        Wrong(
            lambda x, table: x * table[: x.shape[1]],
            "positions are added, not multiplied.",
        ),
    ],
)
