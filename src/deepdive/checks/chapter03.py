# SPDX-License-Identifier: MIT
"""The checks of chapter 3, many heads."""

import torch
from torch import Tensor

from deepdive import trace
from deepdive.attention import merge_heads, split_heads
from deepdive.checks.base import Check, Wrong, random_tensors


def _weight(scores: Tensor, key: int) -> float:
    return float(scores.softmax(0)[key])


_CATS = trace.attention()
_HEAD3 = _CATS["Q"][0, 2] * _CATS["K"][:, 2]  # width 1: a score is one product

four_heads = Check(
    right=_weight(_HEAD3, 2),
    praise="with width 1 the scale is 1/√1: scores 0, 1, 1 and weight e / (1 + 2e).",
    wrong=[
        Wrong(
            _weight(_HEAD3 / 2, 2),
            "that divides by √4. The scale follows the head's width, here 1.",
        ),
        Wrong(
            _weight(_HEAD3 / 2**0.5, 2),
            "that divides by √2. Four heads on width 4 have width 1 each.",
        ),
        Wrong(1.0, "that is the score. The softmax is still to come."),
        Wrong(0.5, "the score of 0 counts too: e⁰ = 1."),
        Wrong(_weight(_HEAD3, 0), "that is the weight of cats. Mice is asked."),
        Wrong(
            _weight(_CATS["Q"][0, 3] * _CATS["K"][:, 3], 2),
            "that is head 4. Heads are counted from 1 in the text: head 3 is column 2.",
        ),
    ],
)

t5_parameters = Check(
    right=4 * 1024 * 128 * 128,
    praise="four matrices of 1,024 × 16,384: sixteen times 4 · 1,024².",
    tolerance=0.5,
    wrong=[
        Wrong(4 * 1024**2, "128 heads of width 128 make 16,384 columns, not 1,024."),
        Wrong(3 * 1024 * 128 * 128, "W_O counts too: 16,384 × 1,024 once more."),
        Wrong(1024 * 128 * 128, "that is one matrix. There are four."),
        Wrong(4 * 1024 * 128, "that is one head. There are 128."),
    ],
)

split = Check(
    right=lambda x, n_heads: split_heads(x, n_heads),
    praise="each head has its own columns, for every word.",
    cases=[(*random_tensors((2, 3, 12)), 4), (*random_tensors((1, 5, 12)), 3)],
    wrong=[
        Wrong(
            lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1),
            "the shape is right but words are cut up: split the last axis first, then "
            "exchange the axes of words and heads.",
        ),
        Wrong(
            lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2),
            "each head takes every H-th column; it should take neighbouring columns.",
        ),
        Wrong(
            lambda x, h: x.unflatten(-1, (h, -1)),
            "the axes are (B, T, H, D). Exchange words and heads: (B, H, T, D).",
        ),
    ],
)


def _summed(
    heads: Tensor, W_O: Tensor, rows: bool = True, mean: bool = False
) -> Tensor:
    """Σ over heads of head · (its part of W_O); the flags make the known mistakes."""
    H, _, D = heads.shape
    parts = [slice(h * D, (h + 1) * D) for h in range(H)]
    blocks = [W_O[p] if rows else W_O[:, p].T for p in parts]
    out = torch.stack([heads[h] @ blocks[h] for h in range(H)])
    return out.mean(0) if mean else out.sum(0)


sum_of_heads = Check(
    right=lambda heads, W_O: merge_heads(heads[None])[0] @ W_O,
    praise="the same numbers. Did you manage without concatenating?",
    cases=[random_tensors((2, 3, 2), (4, 4)), random_tensors((3, 2, 4), (12, 12))],
    wrong=[
        Wrong(
            lambda heads, W: _summed(heads, W, rows=False),
            "head h meets rows h·D … (h+1)·D − 1 of W_O, not its columns.",
        ),
        Wrong(
            lambda heads, W: _summed(heads, W, mean=True),
            "add the heads' contributions; do not average them.",
        ),
        Wrong(
            lambda heads, W: heads.reshape(heads.shape[1], -1) @ W,
            "a reshape alone mixes words. Exchange the axes of heads and words first.",
        ),
    ],
)
