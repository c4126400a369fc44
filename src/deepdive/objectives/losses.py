# SPDX-License-Identifier: MIT
"""What does a wrong guess cost?

Padding and words nobody asked about never count, and a batch without a single word to
guess costs 0 with zero gradient, not NaN.

Taught in: book/06_transformer_2017.ipynb, book/08_gpt.ipynb
"""

import math
from types import NoneType
from typing import NamedTuple

import torch
from torch import Tensor

from deepdive.inputs import check_ids, check_kind
from deepdive.objectives.rows import (
    cross_entropy_by_rows,
    cross_entropy_sum,
    many,
)
from deepdive.objectives.shifts import IGNORED, next_tokens


class Loss(NamedTuple):
    """A sum over tokens, and over how many: `loss.mean` is what one reads and logs.

        mean = total / count,   0 where count = 0

    Shapes:
        total: a float of no axes;  count: an integer of no axes

    Note:
        Two batches of different lengths: the mean of the two means is not the mean of
        all their tokens. Add totals and counts, then divide.

    >>> short, long = Loss(torch.tensor(3.0), 1), Loss(torch.tensor(5.0), 9)
    >>> Loss(short.total + long.total, short.count + long.count).mean.item()
    0.800000011920929

    Taught in: book/06_transformer_2017.ipynb
    """

    total: Tensor
    count: Tensor | int

    @property
    def mean(self) -> Tensor:
        """The loss per token."""
        return self.total / torch.as_tensor(self.count).clamp(min=1)

    def plus(self, term: Tensor) -> "Loss":
        """The same loss with `term` added to its mean: a balance loss, a penalty."""
        return Loss(self.total + term * self.count, self.count)


def cross_entropy(logits: Tensor, labels: Tensor) -> Loss:
    """How surprised the model is by the labels, in nats.

        total = Σ −log softmax(logits)[label]   over the labels that are not −100

    Shapes:
        logits (…, V), labels (…) integers, −100 = not asked → `Loss`

    Raises:
        ValueError: shapes do not fit, or a label is outside 0 … V − 1 and not −100.
        TypeError: logits are not floats, or labels not integers.

    Note:
        Computed in float32 (float64 for such logits) whatever the logits' dtype.

    Taught in: book/07_bert.ipynb, book/09_t5.ipynb
    """
    check_guesses(logits, labels)
    return _cross_entropy(logits, labels, 0.0)


def label_smoothed(
    logits: Tensor, targets: Tensor, pad: int | None, eps: float
) -> Loss:
    """Cross-entropy against a target that keeps a little doubt.

        total = Σ (1 − ε)(−log p[y]) + ε/V Σᵥ(−log p[v])   where y ≠ pad

    Shapes:
        logits (…, V), targets (…) integers → `Loss`, in float32 or wider

    Args:
        pad: the id whose targets are left out; None: none is.

    Raises:
        ValueError: shapes, ids or eps (0 ≤ ε < 1) do not fit.  TypeError: dtypes.

    Source: Vaswani et al. 2017, §5.4 (ε = 0.1), after Szegedy et al. 2015, §7.

    Note:
        This is torch's `label_smoothing`: every word gets ε/V, so the right one has
        1 − ε + ε/V. Another form, often met beside the 2017 model, is a KL divergence
        to a target with 1 − ε on the right word, ε/(V − 2) on each other and 0 on the
        padding symbol. It subtracts the target's entropy (so a perfect model reaches
        0 there, never here); no entry of the two gradients differs by more than ε/V
        (V ≥ 4).
        The full target, (N, V) numbers, is never made.

    Taught in: book/06_transformer_2017.ipynb
    """
    if not 0 <= eps < 1:
        raise ValueError(f"eps must lie in 0 … 1, 1 excluded, got {eps}")
    check_kind("pad", pad, int, NoneType)
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets must be a tensor, got {type(targets).__name__}")
    labels = targets if pad is None else targets.masked_fill(targets == pad, IGNORED)
    check_guesses(logits, labels)
    return _cross_entropy(logits, labels, eps)


def masked_lm(logits: Tensor, labels: Tensor) -> Loss:
    """BERT's loss: `cross_entropy` at the positions that `masked_lm_batch` chose.

    Shapes:
        logits (B, T, V), labels (B, T), −100 = not chosen → `Loss`

    Source: Devlin et al. 2018, §3.1.

    Taught in: book/07_bert.ipynb
    """
    return cross_entropy(logits, labels)


def causal_lm(logits: Tensor, tokens: Tensor, keep: Tensor | None = None) -> Loss:
    """GPT's loss: position t guesses token t + 1.

        total = Σₜ −log softmax(logits[t])[tokens[t + 1]]

    Shapes:
        logits (B, T, V), tokens (B, T), keep (B, T) bool, True = real token → `Loss`
        over at most B·(T − 1) guesses

    Raises:
        ValueError: shapes or ids do not fit.  TypeError: dtypes.

    Note:
        Give the model and this function the **same** tokens: the shift is made here,
        once, by `next_tokens`. Data that is shifted already is for `cross_entropy`.

    Source: Radford et al. 2018, §3.1, equation 1.

    Taught in: book/08_gpt.ipynb
    """
    return cross_entropy(logits, next_tokens(tokens, keep))


def perplexity(loss: Loss) -> float:
    """Among how many equally likely words the model seems to hesitate.

        perplexity = exp(total / count)

    Raises:
        ValueError: the loss counts no token.

    >>> perplexity(Loss(torch.tensor(2 * math.log(5)), 2))  # doctest: +ELLIPSIS
    5.0000...

    Taught in: book/08_gpt.ipynb
    """
    _check_loss(loss)
    if int(loss.count) < 1:
        raise ValueError("perplexity needs at least 1 token, the loss counts 0")
    mean = float(loss.total) / int(loss.count)
    return math.inf if mean > 709 else math.exp(mean)  # exp(710) is past float64


def bits_per_byte(loss: Loss, n_bytes: int) -> float:
    """Perplexity's fair sister: models with different tokenizers can be compared.

        bits = total / ln 2 / n_bytes,   n_bytes = length of the same text in UTF-8

    Raises:
        ValueError: n_bytes < 1.

    Taught in: book/08_gpt.ipynb
    """
    _check_loss(loss)
    if n_bytes < 1:
        raise ValueError(f"n_bytes must be ≥ 1, got {n_bytes}")
    return float(loss.total) / math.log(2) / n_bytes


def _check_loss(loss: Loss) -> None:
    """A pair, not its mean: the count is needed."""
    if not isinstance(loss, Loss):
        raise TypeError(f"loss must be a Loss, got {type(loss).__name__}")


def check_guesses(logits: Tensor, labels: Tensor) -> None:
    """Logits must be floats (…, V), labels (…) ids below V or −100.

    Raises:
        TypeError, ValueError: as said, with the numbers.
    """
    for name, x in {"logits": logits, "labels": labels}.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floats, got {logits.dtype}")
    if logits.dim() < 1 or logits.shape[:-1] != labels.shape or logits.shape[-1] < 1:
        raise ValueError(
            f"logits must be (…, V) and labels (…), got {tuple(logits.shape)} and "
            f"{tuple(labels.shape)}"
        )
    check_labels(labels, labels.shape, logits.shape[-1])


def check_labels(labels: Tensor, shape: tuple[int, ...], vocab_size: int) -> None:
    """Labels must be of this shape, ids below vocab_size or −100.

    Raises:
        TypeError, ValueError: as said, with the numbers.
    """
    check_kind("labels", labels, Tensor)
    if labels.shape != shape:
        raise ValueError(f"labels must be {tuple(shape)}, got {tuple(labels.shape)}")
    check_ids("label", labels.masked_fill(labels == IGNORED, 0), vocab_size)


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Loss:
    """Both losses: torch's own kernel, for many logits some rows at a time."""
    flat, V = labels.reshape(-1).long(), logits.shape[-1]
    by_rows = many(len(flat), V, logits.device)
    summed = cross_entropy_by_rows if by_rows else cross_entropy_sum
    total = summed(logits.reshape(-1, V), flat, smoothing)
    return Loss(total, (labels != IGNORED).sum())
