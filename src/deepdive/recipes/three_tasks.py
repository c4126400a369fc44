# SPDX-License-Identifier: MIT
"""Can one model do three tasks, told apart by the first word of its input?

    pronounce: a t t e n t i o n     →  AH T EH N SH AH N
    spell: AH T EH N SH AH N         →  a t t e n t i o n
    stress: a t t e n t i o n        →  0 1 0

Text in, text out, as in T5: even the stress of a word is written, a sign for each
vowel (1 main, 2 second, 0 none), not chosen by a layer of its own.

    three-tasks           one T5 of 0.94 million weights reads all three
    three-tasks-<task>    a T5 of a third of that reads one

The three small ones together have the weights of the one and four fifths of its
multiplications, and have seen each task three times as often; after a third of their
updates they have seen it as often. All learn at one rate, which was not tuned for each.

Taught in: book/09_t5.ipynb
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import nn
from torch.optim import Adafactor

from deepdive import shelf
from deepdive.configs import T5Config
from deepdive.data import (
    PairBatch,
    PairBatches,
    padded,
    read_pronunciations,
    without_stress,
)
from deepdive.decoding import greedy
from deepdive.models.t5 import T5
from deepdive.objectives import Loss, label_smoothed
from deepdive.recipes.recipe import Recipe, Symbols, Writing
from deepdive.recipes.spelling import (
    LONGEST,
    SHORTEST,
    SOUNDS,
    begin,
    begin_one,
    split,
)
from deepdive.training import inverse_sqrt

TASKS = "pronounce", "spell", "stress"
PAD, END = range(2)
SYMBOLS = Symbols(
    [
        "<pad>",
        "<end>",
        *(f"{task}:" for task in TASKS),
        *"012",
        *"abcdefghijklmnopqrstuvwxyz'",
        *SOUNDS.split(),
    ],
    between=" ",
)
BATCH, SMOOTHING, WARMUP, STEPS = 128, 0.1, 300, 4_500
WATCHED, MOST = 500, 26  # words by which a training is watched; symbols written at most
LARGE = T5Config(
    len(SYMBOLS), d_model=128, n_layers=2, n_heads=4, head_dim=32, d_ff=524
)
SMALL = replace(LARGE, d_model=80, head_dim=20, d_ff=240)


@cache
def entries() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Each word of 2 to 22 letters and its pronunciations, stress included."""
    found = read_pronunciations(shelf.data("cmudict.dict"))
    return {word: tuple(found[word]) for part in split() for word in part}


@cache
def _spelled() -> dict[tuple[str, ...], frozenset[str]]:
    """Each pronunciation, without stress, and all words that have it."""
    found: dict[tuple[str, ...], set[str]] = {}
    for word, ways in entries().items():
        for way in ways:
            found.setdefault(without_stress(way), set()).add(word)
    return {way: frozenset(words) for way, words in found.items()}


def stress(phonemes: Sequence[str]) -> tuple[str, ...]:
    """The stress of each vowel, in order.

    >>> stress(("AH0", "T", "EH1", "N", "SH", "AH0", "N"))
    ('0', '1', '0')
    """
    return tuple(phoneme[-1] for phoneme in phonemes if phoneme[-1] in "012")


def examples(task: str, word: str) -> list[tuple[str, str]]:
    """What is read and what is to be written, for each pronunciation of a word.

    >>> examples("stress", "cats")
    [('stress: c a t s', '1')]

    Raises:
        ValueError: an unknown task or word.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {TASKS}, got {task!r}")
    if word not in entries():
        raise ValueError(f"{word!r} is not among the dictionary's words")
    letters, pairs = " ".join(word), []
    for way in entries()[word]:
        sounds = " ".join(without_stress(way))
        pairs.append(
            {
                "pronounce": (letters, sounds),
                "spell": (sounds, letters),
                "stress": (letters, " ".join(stress(way))),
            }[task]
        )
    return [(f"{task}: {read}", write) for read, write in dict.fromkeys(pairs)]


def right_answers(task: str, read: str) -> frozenset[str]:
    """All that the dictionary accepts: other pronunciations, words that sound alike.

    Raises:
        ValueError: an unknown task, or a text that is not an example of it.
    """
    what = read.removeprefix(f"{task}: ")
    if task != "spell":
        return frozenset(answer for _, answer in examples(task, what.replace(" ", "")))
    if tuple(what.split()) not in _spelled():
        raise ValueError(f"no word is pronounced {what!r}")
    return frozenset(" ".join(word) for word in _spelled()[tuple(what.split())])


def batches(seed: int, tasks: Sequence[str] = TASKS) -> PairBatches:
    """Pairs of the training words, of all tasks mixed, 128 at a time."""
    pairs = [
        (SYMBOLS.encode(read), [PAD, *SYMBOLS.encode(write), END])
        for task in tasks
        for word in split().train
        for read, write in examples(task, word)
    ]
    return PairBatches(pairs, BATCH, PAD, seed)


def loss(model: nn.Module, batch: PairBatch) -> Loss:
    """Each symbol is guessed from the input and the symbols before it."""
    src, tgt, src_keep, tgt_keep = batch
    logits = model(src, tgt[:, :-1], src_keep, tgt_keep[:, :-1])
    return label_smoothed(logits, tgt[:, 1:], PAD, SMOOTHING)


@torch.no_grad()
def answer(model: nn.Module, texts: Sequence[str]) -> list[str]:
    """What the model writes for each text, greedily, in the order of the texts.

    Raises:
        ValueError: no text, or a symbol that is not in the vocabulary.
    """
    device = next(model.parameters()).device
    src, keep = padded([SYMBOLS.encode(text) for text in texts], PAD)
    step = begin(model, src.to(device), keep.to(device))
    prompt = torch.full((len(texts), 1), PAD, device=device)
    rows = greedy(step, prompt, MOST, stop=(END,), pad=PAD).rows()
    return [SYMBOLS.decode([i for i in row if i > END]) for row in rows]


def exact(model: nn.Module, task: str, words: Sequence[str]) -> float:
    """Share of the words whose first example is answered without a fault."""
    texts = [examples(task, word)[0][0] for word in words]
    pairs = zip(texts, answer(model, texts), strict=True)
    return sum(said in right_answers(task, read) for read, said in pairs) / len(words)


@cache
def _heard() -> frozenset[tuple[str, ...]]:
    """The pronunciations, without stress, of the training words."""
    return frozenset(
        without_stress(way) for word in split().train for way in entries()[word]
    )


def unheard(words: Sequence[str]) -> list[str]:
    """Those words whose first pronunciation no training word has.

    The words are apart, but their sounds are not: *bin* sounds like *been*, and who has
    learned to spell the one can spell the other, rightly, from memory.

    Raises:
        KeyError: a word that is not in the dictionary.
    """
    return [
        word for word in words if without_stress(entries()[word][0]) not in _heard()
    ]


def evaluate(model: nn.Module, tasks: Sequence[str] = TASKS) -> dict[str, float]:
    """Share of 500 words that watch, answered without a fault, for each task.

    For spelling, words are among them that sound like a training word: see `unheard`.
    """
    words = split().dev[:WATCHED]
    return {task: exact(model, task, words) for task in tasks}


def write(model: nn.Module, text: str) -> Writing:
    """Answer a text such as `stress: attention`; sounds stand in capitals.

    Raises:
        ValueError: no task in front, or a symbol that is not in the vocabulary.
    """
    task, _, what = (text.strip() or "pronounce: attention").partition(":")
    if task not in TASKS:
        raise ValueError(
            f"the text must begin with one of {', '.join(TASKS)} and a colon, got "
            f"{text!r}"
        )
    what = what.split() if task == "spell" else list(what.strip().lower())
    if not SHORTEST <= len(what) <= LONGEST:
        raise ValueError(
            f"{len(what)} letters or sounds; it learned {SHORTEST} to {LONGEST}"
        )
    src = SYMBOLS.encode(f"{task}: {' '.join(what)}")
    return begin_one(model, src, (PAD, END), SYMBOLS)


def recipe(
    name: str,
    what: str,
    expect: str,
    model: Callable[[], nn.Module],
    lr: float,
    tasks: Sequence[str],
) -> Recipe:
    """What the four have in common."""
    return Recipe(
        name=name,
        what=what,
        expect=expect,
        steps=STEPS,
        model=model,
        batches=partial(batches, tasks=tasks),
        loss=loss,
        optimiser=lambda model: Adafactor(model.parameters(), lr=lr),
        schedule=lambda steps: inverse_sqrt(min(WARMUP, steps)),
        evaluate=partial(evaluate, tasks=tasks),
        write=write,
        average=0.999,
        every=250,
        evaluate_every=500,
    )


TOGETHER = recipe(
    "three-tasks",
    "T5 in small, 2 + 2 layers of 128: pronounces, spells and stresses by prefix",
    "10 minutes of one x86 thread; benchmarks/three_tasks.py says how well",
    model=lambda: T5(LARGE),
    lr=2e-2,
    tasks=TASKS,
)
ALONE = tuple(
    recipe(
        f"three-tasks-{task}",
        f"T5 of a third of the size, 2 + 2 layers of 80: {task} only",
        "5 minutes of one x86 thread; benchmarks/three_tasks.py says how well",
        model=lambda: T5(SMALL),
        lr=2e-2,
        tasks=(task,),
    )
    for task in TASKS
)
THREE_TASKS = TOGETHER, *ALONE
