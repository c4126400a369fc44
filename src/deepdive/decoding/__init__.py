# SPDX-License-Identifier: MIT
"""How does a model that predicts one word write a text? Several answers, over any step.

A step is `step(ids (B, T)) → logits (B, T, V)`, remembering what it was given before.
"""

from deepdive.decoding.beam import Found, beam_search, length_penalty
from deepdive.decoding.generate import Generated, greedy, sample, stream
from deepdive.decoding.sampling import (
    draw,
    min_p,
    min_p_filter,
    nucleus,
    probabilities,
    scale_by_temperature,
    temperature,
    top_k,
    top_k_filter,
    top_p,
    top_p_filter,
)
from deepdive.decoding.speculative import Speculated, speculative
from deepdive.decoding.steps import CachedStep, Step, UncachedStep

__all__ = [
    "CachedStep",
    "Found",
    "Generated",
    "Speculated",
    "Step",
    "UncachedStep",
    "beam_search",
    "draw",
    "greedy",
    "length_penalty",
    "min_p",
    "min_p_filter",
    "nucleus",
    "probabilities",
    "sample",
    "scale_by_temperature",
    "speculative",
    "stream",
    "temperature",
    "top_k",
    "top_k_filter",
    "top_p",
    "top_p_filter",
]
