# SPDX-License-Identifier: MIT
"""How well does each of the three go on, where nothing stands on the right?

    GPT     reads what is there: this is what it was trained for
    BERT    fills a [MASK] put behind the text
    T5      fills a gap put behind the text, and says itself where it ends

Measured on the next piece, and on what 60 pieces look like: how many of their groups of
four differ, how soon a group comes again, which words are words.

Taught in: book/07_bert.ipynb, book/08_gpt.ipynb, book/09_t5.ipynb
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepdive.decoding import CachedStep, sample
from deepdive.decoding.sampling import Choices
from deepdive.models.gpt import Gpt
from deepdive.models.t5 import T5
from deepdive.objectives import Loss, bits_per_byte
from deepdive.recipes.austen import LENGTH, BothWays, LastHidden
from deepdive.recipes.novels import END, MASK, SENTINELS, byte_lengths, split, tokenizer

PLACES = tuple(range(64, LENGTH, 9))  # 64, 73 … 127: the pieces that are asked for
OPENING, NEW, OPENINGS = 64, 60, 20  # pieces given, pieces written, texts
GROUP = 4  # pieces that are looked for again
ROWS = 64


@torch.no_grad()
def log_p_next(model: nn.Module, ids: Tensor, places: Sequence[int] = PLACES) -> Tensor:
    """How likely is each piece at a place, given only what stands before it?

    Shapes:
        ids (W, T) → log-probabilities (W, places, V)

    Raises:
        TypeError: a model of another kind.
    """
    kinds = {Gpt: _next_causal, BothWays: _next_masked, T5: _next_span}
    for kind, way in kinds.items():
        if isinstance(model, kind):
            rows = [way(model, part, places) for part in ids.split(ROWS)]
            return torch.cat(rows).log_softmax(-1)
    raise TypeError(f"model must be a BothWays, Gpt or T5, got {type(model).__name__}")


def _next_causal(model: Gpt, ids: Tensor, places: Sequence[int]) -> Tensor:
    x = model.hidden(ids[:, : max(places)])
    return model.logits(x[:, [place - 1 for place in places]])


def _behind(ids: Tensor, place: int, piece: str) -> Tensor:
    """The text before a place, with one piece put behind it."""
    end = ids.new_full((len(ids), 1), tokenizer().id_of(piece))
    return torch.cat([ids[:, :place], end], dim=1)


def _next_masked(model: BothWays, ids: Tensor, places: Sequence[int]) -> Tensor:
    texts = (_behind(ids, place, MASK) for place in places)
    return torch.stack([model(text)[:, -1] for text in texts], dim=1)


def _next_span(model: T5, ids: Tensor, places: Sequence[int]) -> Tensor:
    begin = torch.tensor([[tokenizer().id_of(END), tokenizer().id_of(SENTINELS[0])]])
    begin = begin.expand(len(ids), -1)
    texts = (_behind(ids, place, SENTINELS[0]) for place in places)
    return torch.stack([model(text, begin)[:, -1] for text in texts], dim=1)


class Guesses(NamedTuple):
    """Share of right guesses, bits a byte of the right pieces, and both by place."""

    accuracy: float
    bits_per_byte: float
    accuracy_by_place: list[float]
    bits_by_place: list[float]


def judge_next(log_p: Tensor, ids: Tensor, places: Sequence[int] = PLACES) -> Guesses:
    """Compare with the pieces that stand there.

    Shapes:
        log_p (W, places, V), ids (W, T)
    """
    truth = ids[:, list(places)]  # (W, places)
    right = (log_p.argmax(-1) == truth).double()
    cost = -log_p.double().gather(-1, truth[..., None])[..., 0]
    n_bytes = byte_lengths()[truth]

    def bits(cost: Tensor, n_bytes: Tensor) -> float:
        return bits_per_byte(Loss(cost.sum(), cost.numel()), int(n_bytes.sum()))

    return Guesses(
        right.mean().item(),
        bits(cost, n_bytes),
        right.mean(0).tolist(),
        [bits(*pair) for pair in zip(cost.T, n_bytes.T, strict=True)],
    )


# ── Writing ──────────────────────────────────────────────────────────────────────────


def openings(ids: Tensor) -> Tensor:
    """Twenty of the windows, spread over them; they begin with the opening.

    Shapes:
        ids (W, T) → (20, T)
    """
    return ids[torch.linspace(0, len(ids) - 1, OPENINGS).long()]


@torch.no_grad()
def go_on(
    model: nn.Module,
    text: Tensor,
    choose: Choices = None,
    generator: torch.Generator | None = None,
    most: int = NEW,
) -> list[list[int]]:
    """What a model writes behind each row; T5 may end before `most` pieces.

    Shapes:
        text (B, T) ids

    Args:
        choose: how the next piece is chosen, as `sample` takes it; None for the
            likeliest.

    Raises:
        TypeError: a model of another kind.
    """
    how = {"choose": choose, "generator": generator}
    if isinstance(model, Gpt):
        step = CachedStep(model, model.new_caches())
    elif isinstance(model, BothWays):
        step = LastHidden(model, tokenizer().id_of(MASK))
    elif isinstance(model, T5):
        return _write_span(model, text, most, how)
    else:
        name = type(model).__name__
        raise TypeError(f"model must be a BothWays, Gpt or T5, got {name}")
    return sample(step, text, most, **how).rows()


def _write_span(model: T5, text: Tensor, most: int, how: dict) -> list[list[int]]:
    end, first, *others = map(tokenizer().id_of, (END, *SENTINELS))
    memory = model.encode(_behind(text, text.shape[1], SENTINELS[0]))
    step = CachedStep(model.decode, model.new_caches(), memory=memory)
    prompt = torch.tensor([[end, first]]).expand(len(text), -1)
    stop = (end, first, *others)
    rows = sample(step, prompt, most, stop=stop, **how).rows()
    return [row[:-1] if row and row[-1] in stop else row for row in rows]


def distinct(ids: Sequence[int], n: int = GROUP) -> float | None:
    """Share of the groups of n pieces that differ; None where there is no group.

    >>> distinct([1, 2, 1, 2, 1], n=2)
    0.5
    """
    groups = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(groups)) / len(groups) if groups else None


def before_repeat(ids: Sequence[int], n: int = GROUP) -> int:
    """Pieces before a group of n comes for the second time; all of them if none does.

    >>> before_repeat([1, 2, 3, 1, 2, 4], n=2), before_repeat([1, 2, 3], n=2)
    (3, 3)
    """
    seen = set()
    for i in range(len(ids) - n + 1):
        group = tuple(ids[i : i + n])
        if group in seen:
            return i
        seen.add(group)
    return len(ids)


_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


@cache
def known_words() -> frozenset[str]:
    """All words of the chapters of the training, in small letters."""
    text = "\n".join(chapter.text for chapter in split().train)
    return frozenset(_WORD.findall(text.lower()))


def words(text: str) -> list[str]:
    """The whole words of a piece of text: what its ends may have cut is left out.

    >>> words("ness of the house, and th")
    ['of', 'the', 'house', 'and']
    """
    found = list(_WORD.finditer(text.lower()))
    return [m[0] for m in found if m.start() > 0 and m.end() < len(text)]


class Written(NamedTuple):
    """Means over texts: pieces, differing groups, pieces before a repeat; known words.

    `texts` have at least one group; `words` is the number of whole words of all texts.
    """

    pieces: float
    distinct: float | None
    before_repeat: float
    known: float | None
    texts: int
    words: int


def judge_written(rows: Sequence[Sequence[int]]) -> Written:
    """How do some texts, each a row of ids, repeat themselves, and what are words?"""
    shares = [share for row in rows if (share := distinct(row)) is not None]
    found = [word for row in rows for word in words(tokenizer().decode(row))]
    known = sum(word in known_words() for word in found)
    return Written(
        sum(map(len, rows)) / len(rows),
        sum(shares) / len(shares) if shares else None,
        sum(map(before_repeat, rows)) / len(rows),
        known / len(found) if found else None,
        len(shares),
        len(found),
    )
