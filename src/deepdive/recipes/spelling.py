# SPDX-License-Identifier: MIT
"""How is an English word pronounced? The task of chapter 6, and how it is judged.

    through → TH R UW

Letters in, phonemes out: a translation with short sentences and two small alphabets, so
that it can be learned on a laptop. The words are CMUdict's, without stress; those that
judge are no words of the training, whatever their pronunciations.

Taught in: book/06_transformer_2017.ipynb
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepdive import shelf
from deepdive.data import padded, read_pronunciations, split_items, without_stress
from deepdive.decoding import CachedStep, Step, beam_search, greedy
from deepdive.halves import EncoderDecoder
from deepdive.recipes.recipe import Symbols, Writing
from deepdive.scoring import fewest_edits

LETTERS = Symbols(["<pad>", *"abcdefghijklmnopqrstuvwxyz'"])
SOUNDS = """
    AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH
    UH UW V W Y Z ZH
"""
PHONEMES = Symbols(["<pad>", "<start>", "<end>", *SOUNDS.split()], between=" ")
PAD, START, END = range(3)
SHORTEST, LONGEST = 2, 22  # letters of a word
DEV, TEST = 2_000, 5_000  # words held out: to watch a training, and to judge it
MOST = 30  # phonemes that are written at most; the longest in the data has 20


@cache
def pronunciations() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Each word of 2 to 22 letters (or ') and its pronunciations, without stress."""
    found = read_pronunciations(shelf.data("cmudict.dict"))
    form = re.compile(rf"[a-z']{{{SHORTEST},{LONGEST}}}")
    return {
        word: tuple(dict.fromkeys(without_stress(way) for way in ways))
        for word, ways in found.items()
        if form.fullmatch(word)
    }


class Split(NamedTuple):
    """Words for training, for watching it, and for judging: no word stands in two."""

    train: list[str]
    dev: list[str]
    test: list[str]


@cache
def split() -> Split:
    """The same words every time: 117,899, 2,000 and 5,000."""
    return Split(*split_items(sorted(pronunciations()), DEV, TEST))


@cache
def _trained() -> frozenset[str]:
    return frozenset(split().train)


def has_relative(word: str) -> bool:
    """Does a word of the training differ from this one by an s or 's at the end?

    >>> has_relative("transformers")  # transformer is there
    True
    """
    ends = ("s", "'s")
    longer = (word + end for end in ends)
    shorter = (word.removesuffix(end) for end in ends if word.endswith(end))
    return any(other in _trained() for other in (*longer, *shorter))


def pairs(words: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """Source and target ids, a pair for each pronunciation of each word."""
    known = pronunciations()
    return [
        (LETTERS.encode(word), [START, *map(PHONEMES.ids.get, way), END])
        for word in words
        for way in known[word]
    ]


def begin(model: nn.Module, src: Tensor, keep: Tensor | None = None) -> Step:
    """Read the sources: what a decoding function goes on from, for either kind.

    Shapes:
        src (B, S) ids, keep (B, S) bool
    """
    if not isinstance(model, EncoderDecoder):
        return model.start(src, keep)
    memory = model.encode(src, keep)
    caches = model.new_caches()
    return CachedStep(model.decode, caches, memory=memory, memory_keep=keep)


def begin_one(
    model: nn.Module, src: list[int], marks: tuple[int, int], symbols: Symbols
) -> Writing:
    """Read one source and write behind a mark, up to another; marks are no text.

    Args:
        src: its ids.
        marks: the ids that stand before and behind a target; all text has higher ones.
        symbols: of the target.
    """
    start, end = marks
    device = next(model.parameters()).device
    step = begin(model, torch.tensor([src], device=device))
    prompt = torch.tensor([[start]], device=device)
    return Writing(
        step, prompt, (end,), lambda ids: symbols.decode([i for i in ids if i > end])
    )


def spell(
    model: nn.Module, words: Sequence[str], beams: int = 1, batch: int = 500
) -> list[tuple[str, ...]]:
    """The phonemes that a model writes for each word, in the order of the words.

    Written in eval mode; afterwards the model has the mode that it had.

    Args:
        beams: 1 takes the likeliest next phoneme each time; more is a beam search.
        batch: words side by side; it changes nothing but the time.

    Raises:
        ValueError: a word with another sign than a–z and ', or an empty one.
    """
    training = model.training
    model.eval()
    try:
        return _spelled(model, words, beams, batch)
    finally:
        model.train(training)


@torch.no_grad()
def _spelled(
    model: nn.Module, words: Sequence[str], beams: int, batch: int
) -> list[tuple[str, ...]]:
    """The same in the mode that the model is in: words of like lengths side by side."""
    device = next(model.parameters()).device
    order = sorted(range(len(words)), key=lambda i: len(words[i]))
    found: dict[int, tuple[str, ...]] = {}
    for first in range(0, len(order), batch):
        chosen = order[first : first + batch]
        src, keep = padded([LETTERS.encode(words[i]) for i in chosen], PAD)
        step = begin(model, src.to(device), keep.to(device))
        prompt = torch.full((len(chosen), 1), START, device=device)
        how = {"max_new": MOST, "stop": (END,), "pad": PAD}
        if beams == 1:
            written = greedy(step, prompt, **how)
        else:
            written = beam_search(step, prompt, beams=beams, **how)
        for i, ids in zip(chosen, written.rows(), strict=True):
            found[i] = tuple(PHONEMES.symbols[n] for n in ids if n > END)
    return [found[i] for i in range(len(words))]


class Errors(NamedTuple):
    """Shares of 1: wrong phonemes and wrong words, and over how many."""

    per: float
    wer: float
    phonemes: int
    words: int


def count_errors(words: Sequence[str], written: Sequence[tuple[str, ...]]) -> Errors:
    """Compare what was written with the nearest pronunciation that is listed.

        PER = Σ edits / Σ phonemes,   WER = words with an edit / words

    An edit puts in, takes out or changes one phoneme; of a word's listed
    pronunciations the one with the fewest edits counts.

    Raises:
        ValueError: the two lists differ in length, or a word is not in the dictionary.
    """
    if len(words) != len(written) or not words:
        raise ValueError(f"{len(words)} words do not fit {len(written)} answers")
    known = pronunciations()
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"{unknown[0]!r} is not among the dictionary's words")
    edits = phonemes = wrong = 0
    for word, said in zip(words, written, strict=True):
        least, length = fewest_edits(said, known[word])
        edits, phonemes, wrong = edits + least, phonemes + length, wrong + (least > 0)
    return Errors(edits / phonemes, wrong / len(words), phonemes, len(words))
