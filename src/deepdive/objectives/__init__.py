# SPDX-License-Identifier: MIT
"""What is a model asked to guess, and what does a wrong guess cost?

A loss is a pair, the sum over the real tokens and how many they are. Its `mean` is the
usual number; the pair is what lets `training.fit` cut a batch into pieces and still get
the gradient of the whole.
"""

from deepdive.objectives.cloze import fill_spans, masked_lm_batch, span_corruption
from deepdive.objectives.losses import (
    Loss,
    bits_per_byte,
    causal_lm,
    cross_entropy,
    label_smoothed,
    masked_lm,
    perplexity,
)
from deepdive.objectives.projected import projected_cross_entropy
from deepdive.objectives.shifts import (
    IGNORED,
    next_tokens,
    prefix_lm_batch,
    seq2seq_shift,
)

__all__ = [
    "IGNORED",
    "Loss",
    "bits_per_byte",
    "causal_lm",
    "cross_entropy",
    "fill_spans",
    "label_smoothed",
    "masked_lm",
    "masked_lm_batch",
    "next_tokens",
    "perplexity",
    "prefix_lm_batch",
    "projected_cross_entropy",
    "seq2seq_shift",
    "span_corruption",
]
