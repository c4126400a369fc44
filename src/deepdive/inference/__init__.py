# SPDX-License-Identifier: MIT
"""How can trained weights be laid out so that writing a text reads them faster?

One new word needs every weight once, so decoding is bound by reading them. The model's
own file stays plain; here a prepared copy of it is made after loading: projections of
the same input become one matrix product, and a matrix may be kept in 8-bit integers.

Taught in: book/10_kv_cache.ipynb
"""

from deepdive.inference.float32 import Float32Linear, bands, fastest
from deepdive.inference.int8 import Int8Linear
from deepdive.inference.joined import JoinedAttention, JoinedFeedForward, joined
from deepdive.inference.latent import JoinedLatentAttention
from deepdive.inference.lean import (
    LeanBlock,
    LeanRMSNorm,
    LeanRotary,
    LeanRotation,
)
from deepdive.inference.pages import LargePages, rounded_up
from deepdive.inference.prepare import as_it_is, for_inference

__all__ = [
    "Float32Linear",
    "Int8Linear",
    "JoinedAttention",
    "JoinedFeedForward",
    "JoinedLatentAttention",
    "LargePages",
    "LeanBlock",
    "LeanRMSNorm",
    "LeanRotary",
    "LeanRotation",
    "as_it_is",
    "bands",
    "fastest",
    "for_inference",
    "joined",
    "rounded_up",
]
