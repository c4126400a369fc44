# SPDX-License-Identifier: MIT
"""How does a rotary model read further than it was trained? Slower angles."""

import math
from functools import singledispatch

import torch
from torch import Tensor

from deepdive.configs import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    RopeScaling,
    YarnScaling,
)
from deepdive.positions.angles import (
    frequencies,
)


@singledispatch
def scaled(scaling: RopeScaling, theta: Tensor, base: float) -> Tensor:
    """The angles per position after a rule for longer texts: (D/2,) → (D/2,).

    Taught in: book/11_rope.ipynb
    """
    raise TypeError(f"no rule for {type(scaling).__name__}")


@scaled.register
def _(scaling: LinearScaling, theta: Tensor, base: float) -> Tensor:
    # θ / s: Chen et al. 2023 (arXiv:2306.15595), equation 4.
    return theta / scaling.factor


@scaled.register
def _(scaling: NTKScaling, theta: Tensor, base: float) -> Tensor:
    # base · s^(D/(D−2)): the slowest pair is slowed by s, the fastest not at all
    # (YaRN, arXiv:2309.00071, §3.1).
    D = 2 * theta.numel()
    if D == 2:
        return theta
    return frequencies(D, base * scaling.factor ** (D / (D - 2)), theta.device)


@scaled.register
def _(scaling: YarnScaling, theta: Tensor, base: float) -> Tensor:
    # A ramp from kept (fast) to divided (slow): thresholds of YaRN, §3.2; linear in
    # the pair's number, as in the released code (the paper's is linear in turns).
    n = theta.numel()

    def pair_that_turns(times: float) -> float:
        """The pair, from the fastest on, with so many turns in the trained text."""
        turns = scaling.original_max_seq_len / (times * 2 * math.pi)
        return n * math.log(turns) / math.log(base)

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), 2 * n - 1)
    index = torch.arange(n, dtype=torch.float32, device=theta.device)
    divided = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    return theta / scaling.factor * divided + theta * (1 - divided)


@scaled.register
def _(scaling: Llama3Scaling, theta: Tensor, base: float) -> Tensor:
    # Turns within the trained length decide, as in Meta's released code: below `low`
    # divided, above `high` kept.
    turns = scaling.original_max_seq_len * theta / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * theta / scaling.factor + kept * theta


def magnitude(scaling: RopeScaling | None) -> float:
    """The factor on cos and sin that YaRN adds (its √(1/t), §3.4); 1 for other rules.

    DeepSeek gives two factors, of which this is the quotient: 1 where they are equal.

    Taught in: book/11_rope.ipynb
    """
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.mscale and scaling.mscale_all_dim:
        return yarn_temperature(scaling.factor, scaling.mscale) / yarn_temperature(
            scaling.factor, scaling.mscale_all_dim
        )
    return yarn_temperature(scaling.factor)


def yarn_temperature(factor: float, mscale: float = 1.0) -> float:
    """0.1 · mscale · ln(factor) + 1: how much longer texts sharpen the scores.

    Taught in: book/11_rope.ipynb
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
