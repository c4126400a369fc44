# SPDX-License-Identifier: MIT
"""How large a step, when? A schedule is a function: number of the update → factor.

The factor multiplies the learning rate that the optimiser was built with. Updates count
from 1, as in the 2017 paper (torch's `LambdaLR` counts from 0).
"""

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(warmup: int = 0) -> Schedule:
    """Rise in a straight line for `warmup` updates, then stay at 1.

    Taught in: book/06_transformer_2017.ipynb
    """
    _check_warmup(warmup, least=0)
    return lambda step: _rise(step, warmup)


def linear(warmup: int, total: int, floor: float = 0.0) -> Schedule:
    """Rise to 1 at `warmup`, fall in a straight line to `floor` at `total`, stay.

    Taught in: book/07_bert.ipynb
    """
    _check_range(warmup, total, floor)

    def factor(step: int) -> float:
        left = 1 - _progress(step, warmup, total)
        return _rise(step, warmup) * (floor + (1 - floor) * left)

    return factor


def cosine(warmup: int, total: int, floor: float = 0.0) -> Schedule:
    """Rise to 1 at `warmup`, fall along half a cosine to `floor` at `total`, stay.

        floor + (1 − floor)·½(1 + cos(π·(step − warmup)/(total − warmup)))

    Source: Loshchilov and Hutter 2016, equation 5, one period.

    >>> [round(cosine(warmup=2, total=6)(step), 2) for step in range(1, 8)]
    [0.5, 1.0, 0.85, 0.5, 0.15, 0.0, 0.0]

    Taught in: book/08_gpt.ipynb
    """
    _check_range(warmup, total, floor)

    def factor(step: int) -> float:
        left = (1 + math.cos(math.pi * _progress(step, warmup, total))) / 2
        return _rise(step, warmup) * (floor + (1 - floor) * left)

    return factor


def inverse_sqrt(warmup: int) -> Schedule:
    """Rise to 1 at `warmup`, then fall as 1/√step: the 2017 shape, its peak set to 1.

        min(step / warmup, √(warmup / step))

    Taught in: book/06_transformer_2017.ipynb
    """
    _check_warmup(warmup, least=1)

    def factor(step: int) -> float:
        return min(_rise(step, warmup), math.sqrt(warmup / step))

    return factor


def noam(d_model: int, warmup: int) -> Schedule:
    """The 2017 paper's rate itself, for an optimiser built with lr = 1.

        d_model^−½ · min(step^−½, step · warmup^−³⸍²)

    The same as `inverse_sqrt(warmup)` with lr = 1/√(d_model · warmup).

    Source: Vaswani et al. 2017, §5.3, equation 3 (warmup = 4000).

    >>> f"{noam(d_model=512, warmup=4000)(4000):.2e}"   # the peak
    '6.99e-04'

    Taught in: book/06_transformer_2017.ipynb
    """
    if d_model < 1:
        raise ValueError(f"d_model must be ≥ 1, got {d_model}")
    shape = inverse_sqrt(warmup)
    return lambda step: shape(step) / math.sqrt(d_model * warmup)


def _rise(step: int, warmup: int) -> float:
    """The way up: 1/warmup at the first update, 1 from number `warmup` on."""
    if step < 1:
        raise ValueError(f"updates count from 1, got step {step}")
    return min(step / warmup, 1.0) if warmup else 1.0


def _progress(step: int, warmup: int, total: int) -> float:
    """The way down: 0 until `warmup`, 1 from `total` on."""
    return min(max((step - warmup) / (total - warmup), 0.0), 1.0)


def _check_warmup(warmup: int, least: int) -> None:
    """A number of updates."""
    if warmup < least:
        raise ValueError(f"warmup must be ≥ {least}, got {warmup}")


def _check_range(warmup: int, total: int, floor: float) -> None:
    """A way up, a way down, and where it ends."""
    _check_warmup(warmup, least=0)
    if total <= warmup:
        raise ValueError(f"total {total} must be above warmup {warmup}")
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must lie in 0 … 1, got {floor}")
