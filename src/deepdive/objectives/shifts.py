# SPDX-License-Identifier: MIT
"""Which token is asked at which position? Labels stand one place off, once and here."""

from types import NoneType

import torch
from torch import Tensor

from deepdive.inputs import check_batch, check_kind

IGNORED = -100  # the label of a position that is not asked about; torch's own choice


def next_tokens(tokens: Tensor, keep: Tensor | None = None) -> Tensor:
    """The label of each position is the token after it; the last has none.

    Shapes:
        tokens (B, T), keep (B, T) bool, True = real token → labels (B, T)

    Note:
        A guess counts where both the token read last and the one guessed are real, so
        padding on the left or on the right adds nothing. The labels are shifted, not
        the logits: cutting those would copy B·T·V numbers.

    >>> next_tokens(torch.tensor([[7, 8, 9]]))
    tensor([[   8,    9, -100]])

    Taught in: book/08_gpt.ipynb
    """
    check_batch(tokens, keep=keep)
    _check_integers("tokens", tokens)
    if keep is not None and keep.dtype != torch.bool:
        raise TypeError(f"keep must be bool, True = real token, got {keep.dtype}")
    labels = torch.full_like(tokens, IGNORED)
    labels[:, :-1] = tokens[:, 1:]
    if keep is not None:
        labels[:, :-1].masked_fill_(~(keep[:, :-1] & keep[:, 1:]), IGNORED)
    return labels


def prefix_lm_batch(
    tokens: Tensor,
    keep: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[int, Tensor]:
    """Cut the texts at one random place: read the first part freely, guess the rest.

    Shapes:
        tokens, keep (B, T), T ≥ 2 → (prefix, labels (B, T)), 1 ≤ prefix ≤ T − 1

    Note:
        The prefix goes into the mask, `Causal(prefix=prefix)`, the labels into
        `cross_entropy`. The first guess is token number `prefix`, made at the
        position before it. Padding, if any, stands on the right.

    Raises:
        ValueError: T < 2.

    Source: Raffel et al. 2019, §3.2.1 (the model) and §3.3.1 (the objective).

    Taught in: book/09_t5.ipynb
    """
    labels = next_tokens(tokens, keep)
    T = tokens.shape[1]
    if T < 2:
        raise ValueError(f"a prefix and a rest need T ≥ 2, got T = {T}")
    check_kind("generator", generator, torch.Generator, NoneType)
    where = "cpu" if generator is None else generator.device
    prefix = int(torch.randint(1, T, (), generator=generator, device=where))
    labels[:, : prefix - 1] = IGNORED
    return prefix, labels


def seq2seq_shift(labels: Tensor, start: int, pad: int | None = None) -> Tensor:
    """What a decoder reads while it is asked for `labels`: the same, one later.

        inputs = [start, labels[0], …, labels[T − 2]]

    Shapes:
        labels (B, T) → inputs (B, T)

    Args:
        start: the id that begins every text; T5 uses its padding symbol.
        pad: written where a label is −100, which is no word to be read.

    Raises:
        ValueError: labels hold −100 and pad is not given.

    >>> seq2seq_shift(torch.tensor([[7, 8, 1]]), start=0)
    tensor([[0, 7, 8]])

    Taught in: book/06_transformer_2017.ipynb, book/09_t5.ipynb
    """
    check_batch(labels)
    _check_integers("labels", labels)
    check_kind("start", start, int)
    check_kind("pad", pad, int, NoneType)
    inputs = torch.full_like(labels, start)
    inputs[:, 1:] = labels[:, :-1]
    ignored = inputs == IGNORED
    if pad is not None:
        return inputs.masked_fill(ignored, pad)
    if ignored.any():
        raise ValueError(f"{int(ignored.sum())} labels are {IGNORED}: give pad")
    return inputs


def _check_integers(name: str, ids: Tensor) -> None:
    """Ids, whatever the vocabulary."""
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, got {ids.dtype}")
