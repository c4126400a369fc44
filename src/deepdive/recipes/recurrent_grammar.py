# SPDX-License-Identifier: MIT
"""How far does a trained model carry one bit? Four readers, one text, one budget.

    the dogs that the cat hears that the bird sees sleep .

The grammar is that of `recipes.grammar`, but a noun may carry several clauses, one
after the other, each four or five words long. Whether the dogs are one or several must
be known when their verb comes, and each clause brings another noun and another verb in
between. A plain recurrent network, a GRU, an LSTM and a small GPT learn to guess the
next word of the same text, with as many parameters and updates each.

Taught in: book/01_recurrence.ipynb
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn

from deepdive.configs import GptConfig
from deepdive.data import Windows
from deepdive.decoding import CachedStep
from deepdive.fading import equal_width
from deepdive.inputs import check_ids, check_kind
from deepdive.masks import Causal
from deepdive.models.gpt import Gpt
from deepdive.objectives import Loss, causal_lm
from deepdive.recipes import grammar as g
from deepdive.recipes.recipe import Recipe, Writing
from deepdive.recurrent import Carry, Cell, ElmanCell, GruCell, LstmCell, unroll
from deepdive.training import adamw, cosine

CLAUSES = 4  # behind a noun, at most, in the text that is learnt
FAR = 8  # and in the test of agreement
LENGTH = 48  # words of a window
D_WORD = 48  # width of a word's vector
CONFIG = GptConfig(
    len(g.SYMBOLS), D_WORD, n_layers=2, n_heads=4, d_ff=4 * D_WORD, max_seq_len=64
)


class RecurrentLm(nn.Module):
    """Guess the next word from the state of a cell.

        h_t = cell(E[w_t], h_{t−1}),      logits = U h_t

    Shapes:
        tokens (B, T) → logits (B, T, V); V = vocab_size

    Args:
        kind: the class of the cell.
        caches: what `new_caches` gave; tokens are then the new ones behind those seen.

    Raises:
        ValueError: an id outside the vocabulary, or a size below 1.
        TypeError: ids that are not integers, or no kind of cell.

    >>> RecurrentLm(9, d_word=4, d_hidden=6)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 9])

    Taught in: book/01_recurrence.ipynb
    """

    def __init__(
        self, vocab_size: int, d_word: int, d_hidden: int, kind: type[Cell] = ElmanCell
    ):
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_word)
        self.cell = kind(d_word, d_hidden)
        self.output = nn.Linear(d_hidden, vocab_size, bias=False)

    def forward(self, tokens: Tensor, caches: Carry | None = None) -> Tensor:
        return self.logits(self.hidden(tokens, caches))

    def hidden(self, tokens: Tensor, caches: Carry | None = None) -> Tensor:
        """What the cell shows after each word: (B, T) → (B, T, d_hidden)."""
        check_ids("token", tokens, self.token.num_embeddings)
        before = None if caches is None else caches.state
        states = unroll(self.cell, self.token(tokens), before)
        if caches is not None:
            caches.state, caches.seen = states[:, -1], caches.seen + tokens.shape[1]
        return self.cell.read(states)

    def logits(self, hidden: Tensor) -> Tensor:
        """A score for each word as the next: (B, T, d_hidden) → (B, T, V)."""
        return self.output(hidden)

    def new_caches(self) -> Carry:
        """What is carried from word to word; empty."""
        return Carry()


def vectors(model: nn.Module, tokens: Tensor) -> Tensor:
    """The words' own vectors, x of `fading.influence`: (1, T) → (1, T, d_word)."""
    return model.token(tokens).detach()


def reader(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """From words' vectors to what the output layer reads: `fading.influence`'s reader.

    Shapes:
        x (B, T, d_word) → (B, T, d_hidden)

    Raises:
        TypeError: neither a `RecurrentLm` nor a `Gpt`.
    """
    check_kind("model", model, RecurrentLm, Gpt)
    if isinstance(model, RecurrentLm):
        return lambda x: model.cell.read(unroll(model.cell, x))

    def read(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return model.norm(model.blocks(x + model.position(places), mask=Causal()))

    return read


def sentence(dice: g.Dice) -> list[str]:
    """Noun, up to `CLAUSES` clauses, and a verb in the noun's number."""
    words, number = g.noun(dice)
    for _ in range(CLAUSES):
        if not dice.chance(0.6):
            break
        other, its = g.noun(dice)
        words += ["that", *other, dice.one_of(g.SEES[its])]
    if dice.chance(0.5):
        return [*words, dice.one_of(g.SLEEPS[number]), "."]
    return [*words, dice.one_of(g.SEES[number]), *g.noun(dice)[0], "."]


def text(sentences: int, seed: int) -> tuple[Tensor, float]:
    """So many sentences as ids (N,), and the dice's surprise per word, in nats."""
    dice = g.Dice(seed)
    ids = [g.SYMBOLS.ids[w] for _ in range(sentences) for w in sentence(dice)]
    return torch.tensor(ids), dice.surprise / len(ids)


@cache
def texts() -> tuple[Tensor, Tensor, float]:
    """For the training (N,), for the test (M,), and the test's true entropy."""
    return (text(g.TRAIN, seed=2020)[0], *text(g.TEST, seed=2021))


def batches(seed: int) -> Windows:
    """32 windows of 48 words."""
    return Windows(texts()[0], LENGTH, batch=32, seed=seed)


def far(clauses: int, many: int = 96, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Texts that stop before the verb, and whether that verb is for several.

    Every noun in between has the other number, so whoever looks at the nearest noun, or
    at most of them, is wrong each time. The verb stands 4 · clauses + 1 words behind
    its noun.

    Shapes:
        → (many, 3 + 4 · clauses) ids from the full stop before on, and (many,) of 0, 1

    Raises:
        ValueError: clauses below 0, or more than fit in a window.
    """
    if not isinstance(clauses, int) or not 0 <= clauses <= (LENGTH - 3) // 4:
        raise ValueError(f"clauses must be 0 … {(LENGTH - 3) // 4}, got {clauses!r}")
    dice, rows, right = g.Dice(seed), [], []
    for i in range(many):
        number = i % 2
        words = [".", "the", dice.one_of(g.NOUNS[number])]
        for _ in range(clauses):
            other = dice.one_of(g.NOUNS[1 - number])
            words += ["that", "the", other, dice.one_of(g.SEES[1 - number])]
        rows.append([g.SYMBOLS.ids[word] for word in words])
        right.append(number)
    return torch.tensor(rows), torch.tensor(right)


@torch.no_grad()
def agreement(model: nn.Module, clauses: int) -> float:
    """How often the verb of the far noun is given the right number.

    “sleep” and “run” against “sleeps” and “runs”: which two are more likely, taken
    together, after a text of `far`?
    """
    ids, right = far(clauses)
    logits = model(ids.to(next(model.parameters()).device))[:, -1].cpu()
    one, several = (
        logits[:, [g.SYMBOLS.ids[verb] for verb in verbs]].logsumexp(-1)
        for verbs in g.SLEEPS
    )
    return ((several > one).long() == right).float().mean().item()


@torch.no_grad()
def evaluate(model: nn.Module) -> dict[str, float]:
    """Nats per word on the test text, as in `grammar`; agreement at four distances."""
    train, test, entropy = texts()
    width, read = LENGTH, LENGTH // 3
    rows = test.unfold(0, width, width - read).to(next(model.parameters()).device)
    logits, labels = model(rows)[:, read - 1 : -1], rows[:, read:]
    nats = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return {
        "nats": nats.item(),
        "bigram_nats": g.bigram_loss(train, test),
        "entropy": entropy,
        **{f"agreement_{n}": agreement(model, n) for n in (0, 1, 2, CLAUSES)},
    }


def loss(model: nn.Module, tokens: Tensor) -> Loss:
    """Each word is guessed from those before it.

    Shapes:
        tokens (B, T) → `Loss`
    """
    return causal_lm(model(tokens), tokens)


def write(model: nn.Module, text: str) -> Writing:
    """Go on from some words, or from the beginning of a sentence."""
    ids = [g.STOP, *g.SYMBOLS.encode(text)]
    prompt = torch.tensor([ids], device=next(model.parameters()).device)
    step = CachedStep(model, model.new_caches())
    return Writing(step, prompt, (g.STOP,), g.SYMBOLS.decode)


def gpt() -> Gpt:
    """Two layers of attention: 60,864 parameters."""
    return Gpt(CONFIG)


def recurrent_lm(kind: type[Cell]) -> RecurrentLm:
    """A model around this cell, with as many parameters as `gpt` has, to 3 %."""
    V = len(g.SYMBOLS)
    with torch.device("meta"):
        cells = sum(p.numel() for p in gpt().parameters()) - V * D_WORD
    return RecurrentLm(V, D_WORD, equal_width(kind, D_WORD, cells, beside=V), kind)


def recipe(
    name: str, what: str, seconds: int, model: Callable[[], nn.Module]
) -> Recipe:
    """One of the four, which differ in the model alone."""
    return Recipe(
        name=name,
        what=f"{what} learns agreement across up to {CLAUSES} clauses",
        expect=f"1.18 nats a word (word pairs 1.53, dice 1.17) in {seconds} s of "
        f"one x86 thread",
        steps=600,
        model=model,
        batches=batches,
        loss=loss,
        optimiser=lambda model: adamw(model, lr=3e-3),
        schedule=lambda steps: cosine(min(50, steps // 2), steps, floor=0.05),
        evaluate=evaluate,
        write=write,
    )


FADING = tuple(
    recipe(f"grammar-{name}", what, seconds, model)
    for name, what, seconds, model in (
        ("elman", "a plain recurrent network", 13, partial(recurrent_lm, ElmanCell)),
        ("gru", "a GRU", 20, partial(recurrent_lm, GruCell)),
        ("lstm", "an LSTM", 20, partial(recurrent_lm, LstmCell)),
        ("attention", "a GPT, two layers of 48,", 14, gpt),
    )
)
