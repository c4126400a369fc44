# SPDX-License-Identifier: MIT
"""As which power of a size does a cost grow? Read off a straight line of logarithms."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Growth(NamedTuple):
    """cost ∝ size ^ exponent, and how sure that is.

    Attributes:
        error: the exponent's standard error: how far the points lie from the line.

    Taught in: book/13_flash_attention.ipynb
    """

    exponent: float
    error: float


def growth(sizes: Sequence[float], costs: Sequence[float]) -> Growth:
    """Fit a power by least squares of the logarithms.

        ln cost = exponent · ln size + constant
        error² = Σ (ln cost − line)² / (n − 2) / Σ (ln size − mean)²

    The error knows scatter only: where a cost is a sum of two powers, the points lie on
    a curve, and the exponent is one between the two.

    Raises:
        ValueError: fewer than 3 points, other numbers of sizes and costs, one that is
            not above 0 and finite, or sizes that are all the same.

    >>> found = growth([1, 2, 4], [5, 20, 80])
    >>> round(found.exponent, 9), round(found.error, 9)
    (2.0, 0.0)

    Taught in: book/13_flash_attention.ipynb
    """
    if len(sizes) != len(costs) or len(sizes) < 3:
        raise ValueError(
            f"a growth needs 3 points or more, got {len(sizes)} sizes and "
            f"{len(costs)} costs"
        )
    for name, values in {"sizes": sizes, "costs": costs}.items():
        if not all(0 < value < math.inf for value in values):
            raise ValueError(f"{name} must be finite and > 0, got {list(values)}")
    if min(sizes) == max(sizes):
        raise ValueError(f"sizes must differ, got {list(sizes)}")
    x, y = _centred(sizes), _centred(costs)
    width = math.fsum(a * a for a in x)
    exponent = math.fsum(a * b for a, b in zip(x, y, strict=True)) / width
    rest = math.fsum((b - exponent * a) ** 2 for a, b in zip(x, y, strict=True))
    error = math.sqrt(rest / (len(x) - 2) / width)
    return Growth(exponent, error)


def _centred(values: Sequence[float]) -> list[float]:
    """Logarithms, less their mean."""
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    return [log - mean for log in logs]
