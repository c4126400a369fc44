# SPDX-License-Identifier: MIT
"""How does a model know the order of its words? One class per answer.

Three places take an answer: the embedding (a vector is added: sinusoidal, learned), the
queries and keys (they are turned: rotary), and the scores (a number is added: T5's
relative bias, ALiBi). Angles and distances are computed in float32 whatever the model's
dtype: float16 cannot tell position 2,048 from 2,049.

Source: Vaswani et al. 2017, §3.5, and what each class names.
"""

from deepdive.positions.added import LearnedPositions, NoPositions, SinusoidalPositions
from deepdive.positions.angles import token_positions
from deepdive.positions.bias import Alibi, RelativeBias, relative_bucket
from deepdive.positions.rotary import (
    Pairing,
    Rotary,
    Rotation,
    half_split,
    interleaved,
)
from deepdive.positions.scaling import magnitude, scaled, yarn_temperature

__all__ = [
    "Alibi",
    "LearnedPositions",
    "NoPositions",
    "Pairing",
    "RelativeBias",
    "Rotary",
    "Rotation",
    "SinusoidalPositions",
    "half_split",
    "interleaved",
    "magnitude",
    "relative_bucket",
    "scaled",
    "token_positions",
    "yarn_temperature",
]
