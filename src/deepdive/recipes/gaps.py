# SPDX-License-Identifier: MIT
"""Who fills a gap best: the model that hid pieces, dropped spans, or read on?

Windows of the test chapters, in two forms:

    usual gaps    19 of 128 pieces gone in 6 spans, as T5 met them in training, and so
                  many as BERT met, though BERT's were single ones
    one gap       one piece gone, all others there, as none of the three ever met it

All models get the same windows, all gaps open at once. A gap near a window's edge is
open too, but not judged. BERT and GPT are told how many pieces are gone, T5 is not.

Taught in: book/07_bert.ipynb, book/08_gpt.ipynb, book/09_t5.ipynb
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepdive.data import seeded
from deepdive.decoding import CachedStep, greedy
from deepdive.filling import (
    draw_gaps,
    fill_at_once,
    fill_from_left,
    fill_surest_first,
    name_gaps,
    read_spans,
    rerank,
    spans,
)
from deepdive.models.gpt import Gpt
from deepdive.models.t5 import T5
from deepdive.recipes.austen import LENGTH, BothWays
from deepdive.recipes.novels import END, MASK, SENTINELS, SPECIAL, stream, tokenizer

EDGE = 16  # pieces that stand on both sides of a gap that is judged, in its window
CANDIDATES, FOLLOWING = 32, 16  # tried for a gap, and pieces behind it that decide
SPARE = 32  # pieces that T5 may write beyond those that are gone
ROWS = 64  # windows side by side; it changes nothing but the time

Fillings = list[list[list[int]]]  # of each window, of each gap, the pieces


class Gapped(NamedTuple):
    """Windows, and where their pieces are gone: (W, T) each."""

    ids: Tensor
    gone: Tensor


class Gap(NamedTuple):
    """A gap that is judged: which window, its which gap, first place, place behind."""

    window: int
    number: int
    first: int
    end: int


@cache
def test_windows() -> Tensor:
    """The test chapters, cut into windows side by side: (501, 128)."""
    ids = stream("test")
    return ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)


def usual_gaps(ids: Tensor, seed: int = 0) -> Gapped:
    """Drop spans as T5's training does, each window by a draw of its own.

    A draw that takes a window's first piece is made again: GPT needs something before.

    Shapes:
        ids (W, T) → ids and gone, (W, T) each
    """

    def drawn(row: int) -> Tensor:
        draw = seeded(seed, row)
        while (gone := draw_gaps(ids.shape[1], draw))[0]:
            pass
        return gone

    return Gapped(ids, torch.stack([drawn(row) for row in range(len(ids))]))


def one_gap(ids: Tensor, seed: int = 0) -> Gapped:
    """Drop one piece of each window, at least `EDGE` from both ends.

    Shapes:
        ids (W, T) → ids and gone, (W, T) each
    """
    T, gone = ids.shape[1], torch.zeros_like(ids, dtype=torch.bool)
    places = torch.randint(EDGE, T - EDGE, (len(ids),), generator=seeded(seed))
    gone[torch.arange(len(ids)), places] = True
    return Gapped(ids, gone)


def judged(gone: Tensor) -> list[Gap]:
    """The gaps that have `EDGE` places of their window on both sides.

    Shapes:
        gone (W, T) bool
    """
    T = gone.shape[1]
    return [
        Gap(window, number, first, end)
        for window, row in enumerate(gone)
        for number, (first, end) in enumerate(spans(row))
        if first >= EDGE and end <= T - EDGE
    ]


class Judgement(NamedTuple):
    """Gaps, and how many were filled exactly; pieces, right ones; lengths that fit."""

    gaps: int
    exact: int
    pieces: int
    right: int
    length: int


def judge(test: Gapped, fillings: Fillings, lengths: Sequence[int]) -> Judgement:
    """Compare with what stood in the gaps of these lengths, piece by piece in place.

    Shapes:
        test: ids and gone (W, T)
    """
    found = [0] * len(Judgement._fields)
    for window, number, first, end in judged(test.gone):
        if end - first not in lengths:
            continue
        truth = test.ids[window, first:end].tolist()
        guess = fillings[window][number]
        right = sum(a == b for a, b in zip(truth, guess, strict=False))
        fits = len(guess) == len(truth)
        one = 1, guess == truth, len(truth), right, fits
        found = [a + b for a, b in zip(found, one, strict=True)]
    return Judgement(*found)


# ── Each model's ways ────────────────────────────────────────────────────────────────


def ways(model: nn.Module) -> dict[str, Callable[..., Fillings]]:
    """What a model of this kind can do with gaps.

        BERT    "at once", "surest first"
        GPT     "from left"
        T5      "free"; "told", where each filling must have the right length

    Raises:
        TypeError: a model of another kind.
    """
    for kind, found in WAYS.items():
        if isinstance(model, kind):
            return found
    raise TypeError(f"model must be a BothWays, Gpt or T5, got {type(model).__name__}")


def fill(model: nn.Module, test: Gapped, way: str) -> Fillings:
    """Fill all gaps of all windows, in one of the model's `ways`.

    Shapes:
        test: ids and gone (W, T), as many pieces in as many gaps gone from each row

    Raises:
        TypeError: a model of another kind.  ValueError: another way.
    """
    if way not in ways(model):
        raise ValueError(f"way must be one of {list(ways(model))}, got {way!r}")
    parts = zip(test.ids.split(ROWS), test.gone.split(ROWS), strict=True)
    return [row for part in parts for row in ways(model)[way](model, *part)]


def _cut_out(filled: Tensor, gone: Tensor) -> Fillings:
    """What stands in each gap of filled windows."""
    return [
        [row[first:end].tolist() for first, end in spans(holes)]
        for row, holes in zip(filled, gone, strict=True)
    ]


def _at_once(model: BothWays, ids: Tensor, gone: Tensor) -> Fillings:
    return _cut_out(fill_at_once(model, ids, gone, tokenizer().id_of(MASK)), gone)


def _surest_first(model: BothWays, ids: Tensor, gone: Tensor) -> Fillings:
    return _cut_out(fill_surest_first(model, ids, gone, tokenizer().id_of(MASK)), gone)


def _from_left(model: Gpt, ids: Tensor, gone: Tensor) -> Fillings:
    step = CachedStep(model, model.new_caches(capacity=LENGTH))
    return _cut_out(fill_from_left(step, ids, gone), gone)


def _named(ids: Tensor, gone: Tensor) -> tuple[Tensor, Tensor]:
    """What T5 reads; what it writes behind a first piece, −1 where it is asked."""
    hidden = ids.masked_fill(gone, -1)
    pairs = [name_gaps(a, b, sentinels()) for a, b in zip(hidden, gone, strict=True)]
    inputs, targets = map(torch.stack, zip(*pairs, strict=True))
    start = targets.new_full((len(targets), 1), tokenizer().id_of(END))
    return inputs, torch.cat([start, targets], dim=1)


@torch.no_grad()
def _free(model: T5, ids: Tensor, gone: Tensor) -> Fillings:
    inputs, targets = _named(ids, gone)
    marks = sentinels()[: len(spans(gone[0])) + 1]
    step = CachedStep(model.decode, model.new_caches(), memory=model.encode(inputs))
    most, stop = targets.shape[1] - 2 + SPARE, sentinels()[len(marks) - 1 :]
    rows = greedy(step, targets[:, :2], most, stop=stop).rows()
    return [read_spans([marks[0], *row], marks)[:-1] for row in rows]


@torch.no_grad()
def _told(model: T5, ids: Tensor, gone: Tensor) -> Fillings:
    inputs, targets = _named(ids, gone)
    asked, banned = targets < 0, [tokenizer().id_of(piece) for piece in SPECIAL]
    step = CachedStep(model.decode, model.new_caches(), memory=model.encode(inputs))
    filled = fill_from_left(step, targets.masked_fill(asked, 0), asked, banned)
    marks = sentinels()[: len(spans(gone[0]))]
    return [read_spans(row, marks) for row in filled[:, :-1].tolist()]


WAYS = {
    BothWays: {"at once": _at_once, "surest first": _surest_first},
    Gpt: {"from left": _from_left},
    T5: {"free": _free, "told": _told},
}


@cache
def sentinels() -> list[int]:
    """The ids of `<|0|>`, `<|1|>` …"""
    return [tokenizer().id_of(piece) for piece in SENTINELS]


def rerank_single(model: Gpt, test: Gapped, fillings: Fillings) -> Fillings:
    """Fill the judged gaps of one piece by trying candidates, the others as they were.

    What stands before has earlier gaps filled as in `fillings`; what follows counts up
    to the next gap, 16 pieces at most.

    Shapes:
        test: ids and gone (W, T)
    """
    filled, better = test.ids.clone(), [list(row) for row in fillings]
    for row, holes, found in zip(filled, test.gone, fillings, strict=True):
        row[holes] = row.new_tensor([id for gap in found for id in gap])
    for window, number, first, end in judged(test.gone):
        if end - first > 1:
            continue
        next_gap = test.gone[window, end:].nonzero().flatten().tolist()
        to = min([end + FOLLOWING, test.ids.shape[1], *(end + n for n in next_gap[:1])])
        step = CachedStep(model, model.new_caches())
        row = filled[window]
        best = rerank(step, row[:first], row[end:to], CANDIDATES).ids[0]
        better[window][number] = [int(best)]
    return better


@contextmanager
def pieces_read(model: nn.Module) -> Iterator[list[int]]:
    """Count the pieces that pass through a model, a piece again each time it is read.

    Inside the `with` block and after it, the list's one number says how many. A T5's
    piece passes through one half of the layers.
    """
    seen = [0]
    tables = [x for name, x in model.named_modules() if name.split(".")[-1] == "token"]

    def look(table: nn.Module, inputs: tuple[Tensor]) -> None:
        seen[0] += inputs[0].numel()

    hooks = [table.register_forward_pre_hook(look) for table in tables]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
