# SPDX-License-Identifier: MIT
"""Which word comes next? Ways to choose from logits, to be put one after another.

A choice is a function of logits (…, V) that gives logits back: sharper or flatter ones,
or with −∞ where a word is out of the question. `temperature(0.7)`, `top_k(40)`,
`top_p(0.9)` and `min_p(0.05)` make such functions; the plain ones below do the work.

Taught in: book/08_gpt.ipynb
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from deepdive.decoding.steps import check_whole
from deepdive.inputs import check_floats

Choice = Callable[[Tensor], Tensor]
Choices = Choice | Sequence[Choice] | None
ROUNDING = 10  # a sum that is short of p by so many rounding errors has reached it


def temperature(t: float) -> Choice:
    """Divide the logits by t: below 1 the likely words gain, above 1 they lose.

    Raises:
        ValueError: t is negative or not finite.

    Taught in: book/08_gpt.ipynb
    """
    _check_temperature(t)
    return partial(scale_by_temperature, t=t)


def top_k(k: int) -> Choice:
    """Keep the k most probable words.

    Raises:
        TypeError: k is not an integer.  ValueError: k < 1.

    Taught in: book/08_gpt.ipynb
    """
    check_whole("k", k, least=1)
    return partial(top_k_filter, k=k)


def top_p(p: float) -> Choice:
    """Keep the smallest set of words whose probabilities sum to p or more.

    Raises:
        ValueError: p lies outside (0, 1].

    Taught in: book/08_gpt.ipynb
    """
    _check_share(p)
    return partial(top_p_filter, p=p)


def min_p(p: float) -> Choice:
    """Keep the words that are at least p times as probable as the most probable one.

    Raises:
        ValueError: p lies outside (0, 1].

    Taught in: book/08_gpt.ipynb
    """
    _check_share(p)
    return partial(min_p_filter, p=p)


def scale_by_temperature(logits: Tensor, t: float) -> Tensor:
    """(logits − max) / t; at t = 0 its limit: 0 for the most probable word, else −∞.

    Subtracting the maximum changes no probability, and keeps a tiny t from overflowing.

    Shapes:
        (…, V) → (…, V)

    Raises:
        ValueError: t is negative or not finite.

    >>> scale_by_temperature(torch.tensor([1.0, 3.0, 2.0]), 0.0)
    tensor([-inf, 0., -inf])

    Taught in: book/08_gpt.ipynb
    """
    _check_temperature(t)
    check_floats("logits", logits)
    best = logits.argmax(-1, keepdim=True)  # the first one, where several are largest
    if t < torch.finfo(torch.float32).tiny:
        return torch.full_like(logits, -math.inf).scatter(-1, best, 0.0)
    return (logits - logits.gather(-1, best)) / t


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """−∞ for all but the k largest logits; of equal ones the lower ids stay.

    Shapes:
        (…, V) → (…, V); all stay when k ≥ V

    Raises:
        TypeError: k is not an integer.  ValueError: k < 1.

    Source: Fan et al. 2018 (arXiv:1805.04833), §5.4.

    Taught in: book/08_gpt.ipynb
    """
    check_whole("k", k, least=1)
    check_floats("logits", logits)
    return logits.masked_fill(~_among_largest(logits, k), -math.inf)


def nucleus(probs: Tensor, p: float) -> Tensor:
    """True for the smallest set of words whose probabilities sum to p or more.

    A word is in the set when those before it, in falling order, have not reached p: the
    word that reaches p belongs to the set, and the first word always does. Of equally
    probable words the lower ids come first.

    Shapes:
        (…, V), summing to 1 → (…, V) bool

    Raises:
        ValueError: p lies outside (0, 1].

    >>> nucleus(torch.tensor([0.09, 0.5, 0.41]), 0.9)
    tensor([False,  True,  True])

    Source: Holtzman et al. 2019 (arXiv:1904.09751), §3.1.

    Taught in: book/08_gpt.ipynb
    """
    _check_share(p)
    check_floats("probs", probs)
    if p == 1:
        return torch.ones_like(probs, dtype=torch.bool)
    probs = _wide(probs)
    falling, order = probs.sort(dim=-1, descending=True, stable=True)
    inside = torch.ones_like(falling, dtype=torch.bool)
    inside[..., 1:] = falling.cumsum(-1)[..., :-1] < p - _slack(probs)
    return torch.empty_like(inside).scatter(-1, order, inside)


def top_p_filter(logits: Tensor, p: float) -> Tensor:
    """−∞ for every word outside the `nucleus` of softmax(logits).

    Shapes:
        (…, V) → (…, V)

    Raises:
        ValueError: p lies outside (0, 1].

    Taught in: book/08_gpt.ipynb
    """
    check_floats("logits", logits)
    inside = nucleus(_wide(logits).softmax(-1), p)
    return logits.masked_fill(~inside, -math.inf)


def min_p_filter(logits: Tensor, p: float) -> Tensor:
    """−∞ for every word less than p times as probable as the most probable one.

        Pᵢ ≥ p · max P   ⇔   logitᵢ ≥ max logit + log p

    Shapes:
        (…, V) → (…, V)

    Raises:
        ValueError: p lies outside (0, 1].

    Source: Nguyen et al. 2024 (arXiv:2407.01082), §3.

    Taught in: book/08_gpt.ipynb
    """
    _check_share(p)
    check_floats("logits", logits)
    wide = _wide(logits)
    below = wide - wide.amax(-1, keepdim=True) < math.log(p) - _slack(wide)
    return logits.masked_fill(below, -math.inf)


def probabilities(logits: Tensor, choose: Choices = ()) -> Tensor:
    """What the next word is drawn from: softmax of the logits after every choice.

    Args:
        choose: one choice or several, applied in order; () for the model's own
            probabilities; None for all of it on the most probable word.

    Shapes:
        (…, V) → (…, V) float32, or float64 where the logits are

    Raises:
        TypeError: choose is neither.  ValueError: a choice left a NaN, or no word.

    >>> probabilities(torch.tensor([1.0, 3.0, 2.0]), top_k(1))
    tensor([0., 1., 0.])

    Taught in: book/08_gpt.ipynb
    """
    check_choices(choose)
    check_floats("logits", logits)
    if choose is None:
        return scale_by_temperature(_wide(logits), 0.0).softmax(-1)
    wide = _wide(logits)
    for choice in (choose,) if callable(choose) else choose:
        wide = choice(wide)
    if choose != () and not wide.amax(-1).isfinite().all():
        raise ValueError("a choice left logits with a NaN, a +inf, or -inf only")
    return wide.softmax(-1)


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax, not in half precision: (…, V) → (…, V) float32 or float64."""
    return _wide(logits).log_softmax(-1)


def draw(
    logits: Tensor, choose: Choices = (), generator: torch.Generator | None = None
) -> Tensor:
    """One word for each row: the most probable if choose is None, else drawn.

    Shapes:
        (B, V) → (B,) int64

    Taught in: book/08_gpt.ipynb
    """
    check_floats("logits", logits)
    if logits.dim() != 2:
        raise ValueError(f"logits must be (B, V), got {tuple(logits.shape)}")
    if choose is None:
        return logits.argmax(-1)
    probs = probabilities(logits, choose)
    return torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `Tensor.topk`, but of equal scores the lower index comes first, always.

    Shapes:
        (B, V) → values (B, k), indices (B, k), falling; k ≤ V
    """
    index = _among_largest(scores, k).nonzero()[:, 1].view(-1, k)  # (B, k)
    values, order = scores.gather(1, index).sort(dim=1, descending=True, stable=True)
    return values, index.gather(1, order)


def check_choices(choose: Choices) -> None:
    """None, one callable, or a sequence of them.

    Raises:
        TypeError: anything else.
    """
    several = isinstance(choose, Sequence) and all(callable(c) for c in choose)
    if choose is not None and not callable(choose) and not several:
        raise TypeError(
            f"choose must be a choice, a sequence of choices or None, got {choose!r}"
        )


def _among_largest(scores: Tensor, k: int) -> Tensor:
    """True for exactly min(k, V) entries of each row, the largest."""
    k = min(k, scores.shape[-1])
    least = scores.topk(k, dim=-1).values[..., -1:]
    above, level = scores > least, scores == least
    room = k - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1) <= room))


def _wide(x: Tensor) -> Tensor:
    """Half precision is too coarse for sums of probabilities."""
    return x if x.dtype == torch.float64 else x.float()


def _slack(x: Tensor) -> float:
    return ROUNDING * torch.finfo(x.dtype).eps


def _check_temperature(t: float) -> None:
    if not isinstance(t, int | float) or isinstance(t, bool):
        raise TypeError(f"temperature must be a number, got {t!r}")
    if not 0 <= t < math.inf:
        raise ValueError(f"temperature must be ≥ 0 and finite, got {t}")


def _check_share(p: float) -> None:
    if not isinstance(p, int | float) or isinstance(p, bool):
        raise TypeError(f"p must be a number, got {p!r}")
    if not 0 < p <= 1:
        raise ValueError(f"p must lie in (0, 1], got {p}")
