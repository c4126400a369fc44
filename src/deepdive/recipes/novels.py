# SPDX-License-Identifier: MIT
"""Which text do the language models of this book read? The six novels of Jane Austen.

4.0 million characters, in the public domain. Fourteen whole chapters are kept to watch
the training by, fourteen others for the test: no model has read a page of them.

Taught in: book/07_bert.ipynb, book/08_gpt.ipynb, book/09_t5.ipynb
"""

import re
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from deepdive import shelf
from deepdive.data import split_items
from deepdive.tokenizers import Tokenizer, load_tokenizer

END, MASK = "<|end|>", "<|mask|>"
SENTINELS = tuple(f"<|{i}|>" for i in range(8))
SPECIAL = END, MASK, *SENTINELS
VOCABULARY = 1_024  # pieces: those above, 256 bytes, 758 merges
HELD_OUT = 14  # chapters to watch by, and as many for the test
NOVELS = (
    "emma",
    "mansfield_park",
    "northanger_abbey",
    "persuasion",
    "pride_and_prejudice",
    "sense_and_sensibility",
)


class Chapter(NamedTuple):
    """A chapter: its novel's name, its number there, and its paragraphs, one a line."""

    novel: str
    number: int
    text: str


class Split(NamedTuple):
    """The chapters of the training, those that watch it, and those of the test."""

    train: list[Chapter]
    dev: list[Chapter]
    test: list[Chapter]


@cache
def chapters() -> list[Chapter]:
    """All 269 chapters, in the order of the novels' names.

    Raises:
        FileNotFoundError: the book's folder `data` is not there.
    """
    found = []
    for novel in NOVELS:
        text = (shelf.data("austen") / f"{novel}.txt").read_text(encoding="utf-8")
        parts = re.split(r"^Chapter (\d+)\n", text, flags=re.MULTILINE)[1:]
        for number, body in zip(parts[::2], parts[1::2], strict=True):
            found.append(Chapter(novel, int(number), body.strip("\n")))
    return found


@cache
def split() -> Split:
    """Whole chapters, drawn at random once and for all: 241, 14 and 14."""
    return Split(*split_items(chapters(), HELD_OUT, HELD_OUT, seed=0))


@cache
def tokenizer() -> Tokenizer:
    """Byte pairs learned from the chapters of the training."""
    return load_tokenizer(shelf.data("austen") / "tokenizer.json")


@cache
def stream(part: str) -> Tensor:
    """The pieces of one part's chapters, each begun by the piece that ends a text.

    Shapes:
        → (N,) int64

    Raises:
        ValueError: part is not "train", "dev" or "test".
    """
    if part not in Split._fields:
        raise ValueError(f"part must be one of {Split._fields}, got {part!r}")
    cut, end = tokenizer(), tokenizer().id_of(END)
    ids = []
    for chapter in getattr(split(), part):
        ids += [end, *cut.encode(chapter.text).ids[0].tolist()]
    return torch.tensor(ids)


@cache
def byte_lengths() -> Tensor:
    """How many bytes of text each piece stands for, 0 for the special ones: (V,)."""
    raw = tokenizer().raw
    special = set(map(raw.token_to_id, SPECIAL))
    return torch.tensor(
        [
            0 if i in special else len(raw.id_to_token(i))
            for i in range(raw.get_vocab_size())
        ]
    )
