# SPDX-License-Identifier: MIT
"""How does each kind of model fill a gap in a text?

    a masked model    one [MASK] for each piece that is gone: all at once, or the surest
                      piece first, the others then knowing it
    a causal model    what stands before the gap, one piece after another; of what
                      follows it learns only by trying candidates
    a span model      one sentinel for each gap; where a filling ends, it says itself

`gone` is True where a piece is missing. What `ids` hold there is never looked at. The
first two are told how many pieces a gap had; the third is not, unless one wishes.

A model should be in `eval()` mode.

Taught in: book/07_bert.ipynb, book/08_gpt.ipynb, book/09_t5.ipynb
"""

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from deepdive.decoding.steps import Step, check_request, check_whole, need, read
from deepdive.inputs import check_batch, check_kind
from deepdive.objectives import span_corruption


def draw_gaps(
    length: int,
    generator: torch.Generator | None = None,
    rate: float = 0.15,
    mean_span: float = 3.0,
) -> Tensor:
    """Where pieces are gone, drawn as `span_corruption` draws its spans.

    Shapes:
        → (length,) bool

    Raises:
        TypeError, ValueError: as `span_corruption`.

    >>> draw_gaps(8, torch.Generator().manual_seed(0), rate=0.4).int()
    tensor([0, 0, 0, 1, 1, 1, 0, 0], dtype=torch.int32)
    """
    check_whole("length", length, least=2)
    check_kind("generator", generator, torch.Generator, type(None))
    places, marks = torch.arange(length), range(length, 2 * length + 1)
    kept, _ = span_corruption(places, marks, generator, rate, mean_span)
    return ~torch.isin(places, kept)


def spans(gone: Tensor) -> list[tuple[int, int]]:
    """First place of each gap, and the place behind its last.

    Shapes:
        gone (T,) bool

    Raises:
        TypeError: no booleans.  ValueError: more axes than one.

    >>> spans(torch.tensor([False, True, True, False, True]))
    [(1, 3), (4, 5)]
    """
    _check_gone(gone)
    if gone.dim() != 1:
        raise ValueError(f"gone must have one axis, got {tuple(gone.shape)}")
    edges = torch.nn.functional.pad(gone.int(), (1, 1)).diff()
    firsts, ends = (edges == 1).nonzero(), (edges == -1).nonzero()
    return list(zip(firsts.flatten().tolist(), ends.flatten().tolist(), strict=True))


# ── Masked ───────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def fill_at_once(
    model: Callable[[Tensor], Tensor], ids: Tensor, gone: Tensor, mask_id: int
) -> Tensor:
    """Ask a masked model for all that is gone, each piece for itself, in one pass.

    Shapes:
        ids (B, T) int64, gone (B, T) bool → (B, T), the gaps filled

    Args:
        model: ids (B, T) → logits (B, T, V).

    Raises:
        TypeError, ValueError: shapes or dtypes do not fit, or an id is negative.

    >>> knows = torch.eye(9)[torch.tensor([[4, 5, 6]])]
    >>> gone = torch.tensor([[False, True, False]])
    >>> fill_at_once(lambda ids: knows, torch.tensor([[4, 0, 6]]), gone, mask_id=8)
    tensor([[4, 5, 6]])
    """
    logits = _read(model, _masked(ids, gone, mask_id))
    return torch.where(gone, logits.argmax(-1), ids)


@torch.no_grad()
def fill_surest_first(
    model: Callable[[Tensor], Tensor], ids: Tensor, gone: Tensor, mask_id: int
) -> Tensor:
    """Ask a masked model again and again; each time its surest piece is put in.

    Shapes:
        ids (B, T) int64, gone (B, T) bool → (B, T), the gaps filled

    Args:
        model: ids (B, T) → logits (B, T, V). It is asked as often as the row with most
            pieces gone has pieces gone.

    Raises:
        TypeError, ValueError: as `fill_at_once`.
    """
    filled, left = _masked(ids, gone, mask_id), gone.clone()
    while left.any():
        rows = left.any(1).nonzero().flatten()
        sure, guess = _read(model, filled[rows]).softmax(-1).max(-1)  # (rows, T)
        place = sure.masked_fill(~left[rows], -1).argmax(1)
        filled[rows, place] = guess[torch.arange(len(rows)), place]
        left[rows, place] = False
    return filled


def _masked(ids: Tensor, gone: Tensor, mask_id: int) -> Tensor:
    """The text with a mask for each piece that is gone."""
    _check_gaps(ids, gone)
    check_whole("mask_id", mask_id, least=0)
    return ids.masked_fill(gone, mask_id)


# ── Causal ───────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def fill_from_left(
    step: Step, ids: Tensor, gone: Tensor, banned: Collection[int] = ()
) -> Tensor:
    """Read from left to right; where a piece is gone, write the likeliest.

    What stands behind a gap is read after it, with the own filling before it.

    Shapes:
        ids (B, T) int64, gone (B, T) bool → (B, T), the gaps filled

    Args:
        step: has read nothing yet: `CachedStep(gpt, gpt.new_caches())`.
        banned: ids that are never written.

    Raises:
        TypeError, ValueError: shapes, dtypes or ids do not fit, or a first piece is
            gone: nothing stands before it.

    >>> after = torch.eye(9).roll(1, dims=1)  # the next number, always
    >>> gone = torch.tensor([[False, True, True, False, True]])
    >>> fill_from_left(lambda ids: after[ids], torch.tensor([[2, 0, 0, 7, 0]]), gone)
    tensor([[2, 3, 4, 7, 8]])
    """
    _check_gaps(ids, gone)
    check_request(step, ids, 0, banned)
    if gone[:, 0].any():
        raise ValueError("gone holds a row's first piece: nothing stands before it")
    filled = ids.clone()
    for known, place in pairwise([0, *gone.any(0).nonzero().flatten().tolist()]):
        logits = read(step, filled[:, known:place])[:, -1].clone()  # (B, V)
        if any(id >= logits.shape[-1] for id in banned):
            raise ValueError(f"banned ids {banned} need 0 … {logits.shape[-1] - 1}")
        logits[:, list(banned)] = -torch.inf
        filled[:, place] = torch.where(
            gone[:, place], logits.argmax(-1), filled[:, place]
        )
    return filled


class Ranked(NamedTuple):
    """Candidates for one missing piece, the best first.

    Shapes:
        ids (K,), scores (K,): log p(candidate and what follows | what stands before)
    """

    ids: Tensor
    scores: Tensor


@torch.no_grad()
def rerank(step: Step, before: Tensor, after: Tensor, candidates: int = 32) -> Ranked:
    """Let a causal model look right: which candidate makes what follows likely?

        score(w) = log p(w | before) + log p(after | before, w)

    for the likeliest candidates by the first term. With all pieces as candidates this
    is the exact answer of the model, at the price of reading `after` for each.

    Shapes:
        before (T,), after (R,) int64, T, R ≥ 1 → ids and scores (K,)

    Args:
        step: has read nothing yet, and can put its rows in another order.
        candidates: at most so many, K.

    Raises:
        TypeError, ValueError: shapes, dtypes or numbers do not fit.
    """
    for name, text in (("before", before), ("after", after)):
        _check_whole(name, text)
        if text.dim() != 1 or not len(text):
            raise ValueError(f"{name} must be (n,), n ≥ 1, got {tuple(text.shape)}")
    check_whole("candidates", candidates, least=1)
    check_request(step, before[None], len(after), ())
    need(step, "reorder", "ranking candidates")
    first = read(step, before[None])[0, -1].log_softmax(-1)  # (V,)
    if after.min() < 0 or after.max() >= len(first):
        raise ValueError(f"after must hold ids in 0 … {len(first) - 1}, got {after}")
    scores, ids = first.topk(min(candidates, len(first)))
    step.reorder(ids.new_zeros(len(ids)))
    follows = after.to(ids).expand(len(ids), -1)  # (K, R)
    logits = read(step, torch.cat([ids[:, None], follows[:, :-1]], 1), len(after))
    found = logits.log_softmax(-1).gather(-1, follows[..., None])[..., 0]
    total = scores + found.sum(1)
    order = total.argsort(descending=True, stable=True)
    return Ranked(ids[order], total[order])


# ── Spans ────────────────────────────────────────────────────────────────────────────


def name_gaps(
    ids: Tensor, gone: Tensor, sentinels: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """`span_corruption` with these gaps: the text with sentinels, and what is gone.

    Shapes:
        ids (T,), gone (T,) bool, N pieces in n gaps → inputs (T − N + n,), targets
        (N + n + 1,)

    Raises:
        TypeError, ValueError: shapes or dtypes do not fit, or too few sentinels.

    >>> gone = torch.tensor([False, True, True, False, True])
    >>> name_gaps(torch.tensor([10, 11, 12, 13, 14]), gone, [0, 1, 2])
    (tensor([10,  0, 13,  1]), tensor([ 0, 11, 12,  1, 14,  2]))
    """
    _check_gone(gone)
    _check_whole("ids", ids)
    if ids.dim() != 1 or ids.shape != gone.shape:
        raise ValueError(
            f"ids and gone must be (T,), got {tuple(ids.shape)}, {tuple(gone.shape)}"
        )
    found = spans(gone)
    if len(sentinels) < len(found) + 1:
        raise ValueError(
            f"{len(found)} gaps need {len(found) + 1} sentinels, got {len(sentinels)}"
        )
    marks = ids.new_tensor(sentinels[: len(found) + 1]).split(1)
    inputs, targets, read_to = [], [], 0
    for mark, (first, end) in zip(marks, found, strict=False):
        inputs += [ids[read_to:first], mark]
        targets += [mark, ids[first:end]]
        read_to = end
    return torch.cat([*inputs, ids[read_to:]]), torch.cat([*targets, marks[-1]])


def read_spans(written: Sequence[int], sentinels: Sequence[int]) -> list[list[int]]:
    """What stands behind each sentinel, up to the next; nothing where it is missing.

    What a model writes need not be in order. Of a sentinel written twice the first
    counts, and what stands before all of them is dropped.

    Raises:
        TypeError: not integers.

    >>> read_spans([0, 11, 12, 2, 14], sentinels=[0, 1, 2])
    [[11, 12], [], [14]]
    """
    for name, numbers in (("written", written), ("sentinels", sentinels)):
        check_kind(name, numbers, Sequence)
        if not all(isinstance(n, int) for n in numbers):
            raise TypeError(f"{name} must hold integers, got {list(numbers)}")
    found: dict[int, list[int]] = {}
    current: list[int] = []
    for id in written:
        if id in sentinels:
            current = []
            found.setdefault(id, current)
        else:
            current.append(id)
    return [found.get(id, []) for id in sentinels]


# ── What is asked ────────────────────────────────────────────────────────────────────


def _check_gone(gone: Tensor) -> None:
    check_kind("gone", gone, Tensor)
    if gone.dtype != torch.bool:
        raise TypeError(f"gone must be bool, got {gone.dtype}")


def _check_whole(name: str, ids: Tensor) -> None:
    check_kind(name, ids, Tensor)
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, got {ids.dtype}")


def _check_gaps(ids: Tensor, gone: Tensor) -> None:
    """Rows of pieces, and beside each whether it is gone."""
    check_batch(ids, gone=gone)
    _check_gone(gone)
    if ids.dtype != torch.int64:
        raise TypeError(f"ids must be int64, got {ids.dtype}")
    if ids.min() < 0:
        raise ValueError(f"ids must be ≥ 0, got {int(ids.min())}")


def _read(model: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
    """The model's logits, one row for each piece."""
    if not callable(model):
        raise TypeError(f"model must be callable, got {type(model).__name__}")
    logits = model(ids)
    check_kind("the model's logits", logits, Tensor)
    if logits.dim() != 3 or logits.shape[:2] != ids.shape:
        raise ValueError(
            f"model read {tuple(ids.shape)} and gave logits {tuple(logits.shape)}"
        )
    return logits
