# SPDX-License-Identifier: MIT
"""What does a language model learn that a table of word pairs cannot? A small grammar.

    the old dogs that the cat hears sleep .

The verb agrees with its noun across what stands between. The text is made by rolling
dice, so its true entropy is known: the sum of the surprises of the rolls. No model can
be better than that, and a model that sees one word back cannot come near.

Taught in: book/06_transformer_2017.ipynb, book/08_gpt.ipynb
"""

import math
import random
from functools import cache

import torch
from torch import Tensor, nn

from deepdive.configs import GptConfig
from deepdive.data import Windows
from deepdive.decoding import CachedStep
from deepdive.models.gpt import Gpt
from deepdive.objectives import Loss, causal_lm
from deepdive.recipes.recipe import Recipe, Symbols, Writing
from deepdive.training import adamw, cosine

NOUNS = (("cat", "dog", "mouse", "bird"), ("cats", "dogs", "mice", "birds"))
SEES = (("sees", "hears", "chases"), ("see", "hear", "chase"))
SLEEPS = (("sleeps", "runs"), ("sleep", "run"))
ADJECTIVES = ("old", "small", "white")
WORDS = ["the", "that", ".", *ADJECTIVES]
WORDS += [word for kind in (NOUNS, SEES, SLEEPS) for number in kind for word in number]
SYMBOLS = Symbols(WORDS, between=" ")
STOP = SYMBOLS.ids["."]
LENGTH, TRAIN, TEST = 48, 20_000, 1_000  # words of a window; sentences
CONFIG = GptConfig(
    len(SYMBOLS), d_model=64, n_layers=2, n_heads=4, d_ff=256, max_seq_len=128
)


class Dice:
    """Random choices, and how surprising they were: −log p, summed."""

    def __init__(self, seed: int):
        self.draw, self.surprise = random.Random(seed), 0.0

    def one_of(self, things):
        """One of several things, all equally likely."""
        self.surprise += math.log(len(things))
        return self.draw.choice(things)

    def chance(self, p: float) -> bool:
        """True with probability p."""
        yes = self.draw.random() < p
        self.surprise -= math.log(p if yes else 1 - p)
        return yes


def noun(dice: Dice) -> tuple[list[str], int]:
    """“the old cats” and its number: 0 for one, 1 for several."""
    words = ["the"] + ([dice.one_of(ADJECTIVES)] if dice.chance(0.3) else [])
    number = dice.one_of((0, 1))
    return [*words, dice.one_of(NOUNS[number])], number


def sentence(dice: Dice) -> list[str]:
    """Noun, perhaps “that the dog sees”, and a verb in the first noun's number."""
    words, number = noun(dice)
    if dice.chance(0.5):
        other, its = noun(dice)
        words += ["that", *other, dice.one_of(SEES[its])]
    if dice.chance(0.5):
        return [*words, dice.one_of(SLEEPS[number]), "."]
    return [*words, dice.one_of(SEES[number]), *noun(dice)[0], "."]


def text(sentences: int, seed: int) -> tuple[Tensor, float]:
    """So many sentences as ids (N,), and the dice's surprise per word, in nats."""
    dice = Dice(seed)
    ids = [SYMBOLS.ids[w] for _ in range(sentences) for w in sentence(dice)]
    return torch.tensor(ids), dice.surprise / len(ids)


@cache
def texts() -> tuple[Tensor, Tensor, float]:
    """For the training (N,), for the test (M,), and the test's true entropy."""
    return (text(TRAIN, seed=2018)[0], *text(TEST, seed=2019))


def bigram_loss(train: Tensor, test: Tensor) -> float:
    """Nats per word of a table of word pairs, counted in `train`, on `test`.

    Shapes:
        train (N,), test (M,)
    """
    V = len(SYMBOLS)
    counts = torch.ones(V, V, dtype=torch.float64)  # no pair is impossible
    counts.index_put_((train[:-1], train[1:]), torch.ones(()).double(), accumulate=True)
    table = counts / counts.sum(1, keepdim=True)
    return -table[test[:-1], test[1:]].log().mean().item()


def batches(seed: int) -> Windows:
    """32 windows of 48 words."""
    return Windows(texts()[0], LENGTH, batch=32, seed=seed)


def loss(model: nn.Module, tokens: Tensor) -> Loss:
    """Each word is guessed from those before it.

    Shapes:
        tokens (B, T) → `Loss`
    """
    return causal_lm(model(tokens), tokens)


@torch.no_grad()
def evaluate(model: nn.Module) -> dict[str, float]:
    """Nats per word on the test text, beside the word pairs' and the dice's own.

    The first 16 words of a window are only read: they say where a sentence begins.
    """
    train, test, entropy = texts()
    device = next(model.parameters()).device
    width, read = LENGTH, LENGTH // 3
    rows = test.unfold(0, width, width - read).to(device)  # (B, T), overlapping
    logits = model(rows)[:, read - 1 : -1]
    labels = rows[:, read:]
    nats = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return {
        "nats": nats.item(),
        "bigram_nats": bigram_loss(train, test),
        "entropy": entropy,
        "agreement": agreement(model),
    }


@torch.no_grad()
def agreement(model: nn.Module) -> float:
    """How often the verb's number is right although another noun stands between.

    All 96 sentences “the N that the M sees …” whose nouns differ in number, each after
    a sentence that gives nothing away: which of “sleeps” and “sleep” is more likely?
    """
    rows, right = [], []
    for first, its in ((0, 1), (1, 0)):
        for n in NOUNS[first]:
            for m in NOUNS[its]:
                for verb in SEES[its]:
                    rows.append(f"the cat runs . the {n} that the {m} {verb}")
                    right.append(first)
    ids = torch.tensor([SYMBOLS.encode(row) for row in rows])
    logits = model(ids.to(next(model.parameters()).device))[:, -1].cpu()
    one, several = (SYMBOLS.ids[verbs[0]] for verbs in SLEEPS)
    said = (logits[:, several] > logits[:, one]).long()
    return (said == torch.tensor(right)).float().mean().item()


def write(model: nn.Module, text: str) -> Writing:
    """Go on from some words, or from the beginning of a sentence."""
    ids = [STOP, *SYMBOLS.encode(text)]
    prompt = torch.tensor([ids], device=next(model.parameters()).device)
    step = CachedStep(model, model.new_caches())
    return Writing(step, prompt, (STOP,), SYMBOLS.decode)


GRAMMAR = Recipe(
    name="grammar",
    what="a GPT, two layers of 64, learns a small grammar with agreement at a distance",
    expect="1.173 nats a word (word pairs 1.521, dice 1.168) in 10 s of one x86 thread",
    steps=400,
    model=lambda: Gpt(CONFIG),
    batches=batches,
    loss=loss,
    optimiser=lambda model: adamw(model, lr=3e-3),
    schedule=lambda steps: cosine(min(50, steps // 2), steps, floor=0.05),
    evaluate=evaluate,
    write=write,
)
