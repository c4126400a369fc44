# SPDX-License-Identifier: MIT
"""Which whole continuation is the most probable? Follow several at once.

Source: Vaswani et al. 2017, §6.1 (4 beams, α = 0.6), with the length penalty of Wu et
al. 2016 (arXiv:1609.08144), eq. 14.

Taught in: book/06_transformer_2017.ipynb
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from deepdive.decoding.generate import Generated
from deepdive.decoding.sampling import largest, log_probabilities
from deepdive.decoding.steps import (
    Step,
    check_ids_below,
    check_request,
    check_whole,
    need,
    read,
)


@dataclass(frozen=True, eq=False)
class Found(Generated):
    """The best continuation of each prompt, and its score.

    Shapes:
        ids (B, N), lengths (B,), scores (B,) = log P(Y | X) / lp(Y)

    Taught in: book/06_transformer_2017.ipynb
    """

    scores: Tensor


def length_penalty(length: int, alpha: float) -> float:
    """What a continuation's log-probability is divided by, so that long ones may win.

        lp(Y) = ((5 + |Y|) / 6)^α

    |Y| counts the new tokens, a stop token included; α = 0 compares plain
    probabilities.

    >>> length_penalty(1, 0.6), length_penalty(7, 1.0)
    (1.0, 2.0)

    Source: Wu et al. 2016 (arXiv:1609.08144), eq. 14.

    Taught in: book/06_transformer_2017.ipynb
    """
    check_whole("length", length, least=0)
    if not math.isfinite(alpha):
        raise ValueError(f"alpha must be finite, got {alpha}")
    return ((5 + length) / 6) ** alpha


def beam_search(
    step: Step,
    prompt: Tensor,
    max_new: int,
    beams: int = 4,
    stop: Collection[int] = (),
    alpha: float = 0.6,
    pad: int = 0,
) -> Found:
    """Keep the `beams` most probable beginnings at each step; return the best ending.

    A candidate ends when it stands among the best `beams` of its step and its last word
    is a stop token, or at `max_new` tokens. The best ending of each prompt is kept. The
    search stops when no living beam could still overtake it: log-probabilities only
    fall, so that log P / (the largest penalty ahead) bounds what a beam can reach.

    Shapes:
        prompt (B, T) → ids (B, N), N ≤ max_new

    Note:
        One beam with α = 0 is `greedy`. The step is asked for B·beams rows, so it needs
        a `reorder`; it is left in the order of the last beams.

    Raises:
        TypeError, ValueError: as for `stream`; beams < 1; α not finite; a step without
            `reorder`.

    Taught in: book/06_transformer_2017.ipynb
    """
    check_request(step, prompt, max_new, stop, pad)
    check_whole("beams", beams, least=1)
    if not math.isfinite(alpha):
        raise ValueError(f"alpha must be finite, got {alpha}")
    need(step, "reorder", "beam search")
    B, ids = prompt.shape[0], prompt.long()
    best = _Best(B, max_new, pad, prompt.device)
    text = ids.new_zeros(B, 1, 0)  # (B, beams, n): at first one beam, still empty
    total = torch.zeros(B, 1, device=ids.device)  # (B, beams) log P
    if max_new == 0:
        best.offer(text, total)
    for n in range(1, max_new + 1):
        logits = read(step, ids)[:, -1]  # (B·beams, V)
        check_ids_below(stop, pad, logits.shape[-1])
        totals = total[..., None] + log_probabilities(logits).unflatten(0, (B, -1))
        _, ended, total = _extend(text, totals, beams)
        best.offer(ended, total / length_penalty(n, alpha), among=stop)
        totals[..., list(stop)] = -math.inf  # (B, beams, V): those that go on
        parent, text, total = _extend(text, totals, beams)
        if n == max_new:
            best.offer(text, total / length_penalty(n, alpha))
            break
        ahead = max(length_penalty(n + 1, alpha), length_penalty(max_new, alpha))
        if (best.score >= total.amax(1) / ahead).all():
            break
        first = torch.arange(B, device=ids.device)[:, None] * totals.shape[1]
        step.reorder((first + parent).flatten())
        ids = text[..., -1].reshape(-1, 1)  # (B·beams, 1)
    return best.found()


def _extend(text: Tensor, totals: Tensor, beams: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best beginnings that are one word longer: parents, texts, log P.

    Shapes:
        text (B, w, n), totals (B, w, V) → (B, w'), (B, w', n + 1), (B, w'), where
        w' = min(beams, w·V)
    """
    V = totals.shape[-1]
    flat = totals.flatten(1)  # (B, w·V)
    total, index = largest(flat, min(beams, flat.shape[1]))
    parent, token = index // V, index % V
    older = text.gather(1, parent[..., None].expand(-1, -1, text.shape[-1]))
    return parent, torch.cat([older, token[..., None]], dim=-1), total


class _Best:
    """The best ending of each prompt so far."""

    def __init__(self, B: int, max_new: int, pad: int, device):
        self.ids = torch.full((B, max_new), pad, device=device)
        self.length = torch.zeros(B, dtype=torch.int64, device=device)
        self.score = torch.full((B,), -math.inf, device=device)
        self.pad = pad

    def offer(self, text: Tensor, score: Tensor, among: Collection[int] | None = None):
        """Take what is better: text (B, w, n), score (B, w); `among`: last words."""
        n = text.shape[-1]
        if among is not None:
            last = torch.tensor(list(among), dtype=torch.int64, device=text.device)
            score = score.masked_fill(~torch.isin(text[..., -1], last), -math.inf)
        row = torch.arange(len(text), device=text.device)
        which = score.argmax(1)
        better = score[row, which] > self.score
        ids = torch.full_like(self.ids, self.pad)
        ids[:, :n] = text[row, which]
        self.ids = torch.where(better[:, None], ids, self.ids)
        self.length = self.length.masked_fill(better, n)
        self.score = torch.where(better, score[row, which], self.score)

    def found(self) -> Found:
        longest = int(self.length.max())
        return Found(self.ids[:, :longest], self.length, self.score)
