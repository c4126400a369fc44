# SPDX-License-Identifier: MIT
"""One text, one budget, three questions: what is hidden, what is next, what is gone?

    austen-bert     4 layers that look both ways, 15 % of the pieces hidden one by one
    austen-gpt      4 layers that look back, every next piece guessed
    austen-t5       2 layers that read and 2 that write, 15 % dropped in spans of 3

Width 128, four heads, 0.92 million weights in word table and blocks. An update of T5,
where each piece passes through one half only, costs half as many multiplications, so it
gets twice as many updates. GPT and T5 are built as their papers build them, BERT is
not: `BothWays` says why. Norms, positions and activation differ with the objective.
`benchmarks/austen.py tune` tries learning rates.

The three `austen-bert-…` beside them are shorter runs that hide in other ways.

Taught in: book/07_bert.ipynb, book/08_gpt.ipynb, book/09_t5.ipynb
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adafactor

from deepdive.blocks import Stack
from deepdive.configs import GptConfig, T5Config
from deepdive.data import Windows, seeded
from deepdive.decoding import CachedStep
from deepdive.inputs import check_batch, check_ids
from deepdive.masks import Everyone
from deepdive.models.gpt import Gpt, build_block
from deepdive.models.t5 import T5
from deepdive.objectives import (
    IGNORED,
    Loss,
    bits_per_byte,
    causal_lm,
    cross_entropy,
    masked_lm,
    masked_lm_batch,
    seq2seq_shift,
    span_corruption,
)
from deepdive.positions import RelativeBias, relative_bucket
from deepdive.recipes.novels import (
    END,
    MASK,
    SENTINELS,
    SPECIAL,
    VOCABULARY,
    byte_lengths,
    stream,
    tokenizer,
)
from deepdive.recipes.recipe import Recipe, Writing
from deepdive.training import adamw, cosine

LENGTH, BATCH = 128, 32  # pieces of a window, windows of an update
STEPS, SHORT, WARMUP = 3_000, 500, 100
OPENING = "It is a truth universally acknowledged, that"
WATCH = 128  # windows by which a training is watched
SIZES = {"vocab_size": VOCABULARY, "d_model": 128, "n_heads": 4}
GPT = GptConfig(**SIZES, n_layers=4, d_ff=512, max_seq_len=LENGTH)
T5_SIZES = T5Config(**SIZES, n_layers=2, head_dim=32, d_ff=384, max_distance=LENGTH)


class BothWays(nn.Module):
    """The layers of the small GPT without the causal mask: BERT's half and question.

        logits = E · norm(blocks(E[tokens]; bias)) + b

    Built as BERT is, the model had learned nothing but how frequent each piece is when
    a quarter of the budget was spent: it had not found its neighbours. Here the norms
    stand in front, and positions are a learned bias for distance, as in T5. So a start
    can show it its neighbours: the model that is trained comes from `both_ways`.

    Shapes:
        tokens (B, T) → logits (B, T, V)

    Raises:
        ValueError: an id outside the vocabulary, or shapes that do not fit.

    Taught in: book/07_bert.ipynb
    """

    def __init__(self, config: GptConfig):
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.bias = RelativeBias(config.n_heads, True, max_distance=config.max_seq_len)
        self.blocks = Stack(build_block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.output = nn.Linear(config.d_model, config.vocab_size)
        self.output.weight = self.token.weight
        for x in self.parameters():
            if x.dim() == 2:
                nn.init.normal_(x, std=0.05)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the last block gives, normalised: (B, T) → (B, T, d_model)."""
        check_batch(tokens)
        check_ids("token", tokens, self.config.vocab_size)
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens)
        return self.norm(self.blocks(x, mask=Everyone(), bias=self.bias(at, at)))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.hidden(tokens))


@torch.no_grad()
def look_near(bias: RelativeBias, least: float = -math.inf) -> None:
    """Let a learned bias begin so that every head looks at its neighbourhood.

        bias[h, t, s] = max(−2^(1 − h)·|s − t|, least),   h = 0 … H − 1

    Where it looks both ways, every second head prefers the left and the others the
    right (−3 on the other side), and none itself (−3): a hidden piece does not know
    what it is. Distances that share a bucket begin as the nearest of them.

    Taught in: book/07_bert.ipynb
    """
    n_heads = bias.table.weight.shape[1]
    slopes = 2.0 ** (1 - torch.arange(n_heads))
    other = torch.tensor([1, -1]).repeat(n_heads)[:n_heads]  # the side it avoids
    ahead = bias.max_distance if bias.bidirectional else 0
    distance = torch.arange(-bias.max_distance, ahead + 1)
    distance = distance[distance.abs().argsort(descending=True)]  # the nearest last
    for d in distance:
        away = (-slopes * d.abs()).clamp(min=least)
        if bias.bidirectional:
            away = away - 3.0 * (other * d.sign() >= 0)
        bucket = relative_bucket(
            d, bias.bidirectional, bias.n_buckets, bias.max_distance
        )
        bias.table.weight[bucket] = away


def both_ways() -> BothWays:
    """The small BERT, which begins by looking near and by guessing what is frequent.

    Its bias for distance begins as `look_near` says, b as `log_frequencies`.
    """
    model = BothWays(GPT)
    look_near(model.bias)
    with torch.no_grad():
        model.output.bias.copy_(log_frequencies())
    return model


def t5() -> T5:
    """The small T5, which begins by looking near, too, and from a mark to its like.

    The decoder's keys begin as its queries, times √D since T5's queries begin smaller:
    the mark of a gap is found in the input at once.
    """
    model = T5(T5_SIZES)
    look_near(model.encoder_bias, least=-6.0)
    look_near(model.decoder_bias, least=-6.0)
    with torch.no_grad():
        for block in model.decoder:
            across = block.cross_attention
            across.k_proj.weight.copy_(across.q_proj.weight * T5_SIZES.head_dim**0.5)
    return model


def adafactor(model: T5, lr: float) -> Adafactor:
    """T5's optimiser, with a tenth of the rate for the two tables of distances.

    Its steps are in proportion to a matrix's own size. The tables begin large, and at
    the full rate they were thrown about: some biases grew to hundreds.
    """
    tables = [model.encoder_bias.table.weight, model.decoder_bias.table.weight]
    others = [x for x in model.parameters() if all(x is not table for table in tables)]
    return Adafactor([{"params": others}, {"params": tables, "lr": 0.1 * lr}], lr=lr)


@cache
def log_frequencies() -> Tensor:
    """The logarithm of each piece's share of the training, one added to each: (V,)."""
    counts = torch.bincount(stream("train"), minlength=VOCABULARY) + 1.0
    return (counts / counts.sum()).log()


class Cloze(NamedTuple):
    """Windows with single pieces hidden: (B, T) each, labels −100 where not asked."""

    inputs: Tensor
    labels: Tensor


class Spans(NamedTuple):
    """Windows with spans dropped: what is left, (B, S), and what is gone, (B, T)."""

    inputs: Tensor
    targets: Tensor


def windows(part: str, seed: int) -> Windows:
    """Windows of one part's text, the same for every objective."""
    return Windows(stream(part), LENGTH, BATCH, seed)


class Hidden:
    """Number of a batch → `Cloze`: a function of the number, as `Windows` are."""

    def __init__(self, source: Callable[[int], Tensor], seed: int, **how: float):
        self.source, self.seed, self.how = source, seed, how

    def __call__(self, number: int) -> Cloze:
        special = [tokenizer().id_of(piece) for piece in SPECIAL]
        mask = tokenizer().id_of(MASK)
        draw = seeded(self.seed, number)
        ids = self.source(number)
        return Cloze(*masked_lm_batch(ids, VOCABULARY, mask, special, draw, **self.how))


class Dropped:
    """Number of a batch → `Spans`; all rows of a batch have the same lengths."""

    def __init__(self, source: Callable[[int], Tensor], seed: int):
        self.source, self.seed = source, seed

    def __call__(self, number: int) -> Spans:
        marks = [tokenizer().id_of(piece) for piece in SENTINELS]
        draw = seeded(self.seed, number)
        rows = [span_corruption(ids, marks, draw) for ids in self.source(number)]
        inputs, targets = zip(*rows, strict=True)
        return Spans(torch.stack(inputs), torch.stack(targets))


def masked_loss(model: nn.Module, batch: Cloze) -> Loss:
    """Which piece stood at each hidden place?"""
    return masked_lm(model(batch.inputs), batch.labels)


def causal_loss(model: nn.Module, batch: Tensor) -> Loss:
    """Which piece comes next, at every place?

    Shapes:
        batch (B, T) → `Loss` over B·(T − 1) guesses
    """
    return causal_lm(model(batch), batch)


def span_loss(model: nn.Module, batch: Spans) -> Loss:
    """What stood in each gap, one piece after another?"""
    start = tokenizer().id_of(END)
    logits = model(batch.inputs, seq2seq_shift(batch.targets, start))
    return cross_entropy(logits, batch.targets)


@cache
def dev_windows() -> Tensor:
    """Windows of the chapters that watch, spread over them: (128, 128)."""
    ids = stream("dev")
    rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    return rows[torch.linspace(0, len(rows) - 1, WATCH).long()]


@torch.no_grad()
def judge_masked(model: nn.Module) -> dict[str, float]:
    """Loss and share of right guesses where every chosen piece is hidden."""
    device = next(model.parameters()).device
    batch = Hidden(lambda number: dev_windows(), seed=0, masked=1.0, swapped=0.0)(0)
    logits = model(batch.inputs.to(device)).cpu()
    asked = batch.labels != IGNORED
    right = logits.argmax(-1)[asked] == batch.labels[asked]
    loss = masked_lm(logits, batch.labels)
    return {"dev_loss": loss.mean.item(), "accuracy": right.float().mean().item()}


@torch.no_grad()
def judge_causal(model: nn.Module) -> dict[str, float]:
    """Bits that the next pieces cost, for each byte of their text; right guesses."""
    device = next(model.parameters()).device
    ids = dev_windows()
    logits = model(ids.to(device)).cpu()
    loss = causal_lm(logits, ids)
    n_bytes = int(byte_lengths()[ids[:, 1:]].sum())
    right = logits[:, :-1].argmax(-1) == ids[:, 1:]
    return {
        "dev_loss": loss.mean.item(),
        "bits_per_byte": bits_per_byte(loss, n_bytes),
        "accuracy": right.float().mean().item(),
    }


@torch.no_grad()
def judge_spans(model: nn.Module) -> dict[str, float]:
    """Loss and right guesses for the dropped pieces, those before them being given."""
    device = next(model.parameters()).device
    batch = Dropped(lambda number: dev_windows(), seed=0)(0)
    read = seq2seq_shift(batch.targets, tokenizer().id_of(END))
    logits = model(batch.inputs.to(device), read.to(device)).cpu()
    marks = torch.tensor([tokenizer().id_of(piece) for piece in SENTINELS])
    labels = batch.targets.masked_fill(torch.isin(batch.targets, marks), IGNORED)
    asked = labels != IGNORED
    right = logits.argmax(-1)[asked] == labels[asked]
    loss = cross_entropy(logits, labels)
    return {"dev_loss": loss.mean.item(), "accuracy": right.float().mean().item()}


def recipe(
    name: str, what: str, expect: str, steps: int = STEPS, **parts: Any
) -> Recipe:
    """What the three have in common."""
    adam = partial(adamw, lr=4e-3, weight_decay=0.1, betas=(0.9, 0.98))
    return Recipe(
        name=name,
        what=what,
        expect=expect,
        steps=steps,
        **{"optimiser": adam, **parts},
        schedule=lambda steps: cosine(min(WARMUP, steps // 2), steps, floor=0.1),
        every=250,
        evaluate_every=250,
    )


def _text(text: str, least: str) -> str:
    """What is to be gone on with."""
    return text.strip("\n") or least


def _ids(text: str, longest: int) -> list[int]:
    """The pieces of a text that fits into a window.

    Raises:
        ValueError: it does not.
    """
    ids = tokenizer().encode(text).ids[0].tolist()
    if len(ids) > longest:
        raise ValueError(
            f"the text has {len(ids)} pieces; the model has read at most {LENGTH} at "
            f"once, so give it up to {longest}"
        )
    return ids


class LastHidden:
    """A step for a model that only fills gaps: a hidden piece is put behind the text.

        logits of the piece behind everything given so far

    Args:
        model: ids (B, T) → logits (B, T, V).
        mask: the id that hides a piece.
        window: only so many of the last pieces are read, the hidden one included.

    Taught in: book/07_bert.ipynb
    """

    def __init__(self, model: nn.Module, mask: int, window: int = LENGTH):
        self.model, self.mask, self.window = model, mask, window
        self.ids: Tensor | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        """What may come after each of some new pieces: (B, T) → (B, T, V)."""
        return torch.cat([self.last(piece) for piece in ids.split(1, dim=1)], dim=1)

    def last(self, ids: Tensor, count: int = 1) -> Tensor:
        """What may come after all of them: (B, T) → (B, 1, V).

        Raises:
            ValueError: count is not 1: a reading answers for one place.
        """
        if count != 1:
            raise ValueError(f"one reading answers for 1 place, not for {count}")
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)
        hidden = self.ids.new_full((len(self.ids), 1), self.mask)
        text = torch.cat([self.ids, hidden], dim=1)[:, -self.window :]
        return self.model(text)[:, -1:]


def write_masked(model: nn.Module, text: str) -> Writing:
    """Go on from a text by filling a gap behind it, again and again.

    Raises:
        ValueError: more pieces than the model has read at once.
    """
    ids = _ids(_text(text, OPENING), LENGTH - 1)
    device = next(model.parameters()).device
    step = LastHidden(model, tokenizer().id_of(MASK))
    return Writing(step, torch.tensor([ids], device=device), (), tokenizer().decode)


def write_causal(model: nn.Module, text: str) -> Writing:
    """Go on from a text, up to the end of a window.

    Raises:
        ValueError: more pieces than the model has read at once.
    """
    ids = _ids(END + _text(text, OPENING), LENGTH - 1)
    device, end = next(model.parameters()).device, tokenizer().id_of(END)
    step = CachedStep(model, model.new_caches())
    prompt = torch.tensor([ids], device=device)
    return Writing(step, prompt, (end,), tokenizer().decode)


def write_spans(model: nn.Module, text: str) -> Writing:
    """Fill the gap `<|0|>` of a text; without one, a gap behind it.

    Raises:
        ValueError: more pieces than the model has read at once.
    """
    text = _text(text, OPENING)
    if SENTINELS[0] not in text:
        text += SENTINELS[0]
    device = next(model.parameters()).device
    cut = tokenizer()
    memory = model.encode(torch.tensor([_ids(text, LENGTH)], device=device))
    step = CachedStep(model.decode, model.new_caches(), memory=memory)
    begin = [cut.id_of(END), cut.id_of(SENTINELS[0])]
    prompt = torch.tensor([begin], device=device)
    stop = tuple(cut.id_of(piece) for piece in SENTINELS[1:])
    return Writing(step, prompt, stop, cut.decode)


MASKED = recipe(
    "austen-bert",
    "BERT's question for 4 layers of 128: fill gaps in Jane Austen's novels",
    "53 % of single hidden pieces right; 23 minutes of one x86 thread",
    model=both_ways,
    batches=lambda seed: Hidden(windows("train", seed), seed),
    loss=masked_loss,
    evaluate=judge_masked,
    write=write_masked,
)
CAUSAL = recipe(
    "austen-gpt",
    "GPT-2 in small, 4 layers of 128, goes on writing in the manner of Jane Austen",
    "1.46 bits per byte, 36 % of next pieces right; 21 minutes of one x86 thread",
    model=lambda: Gpt(GPT),
    batches=lambda seed: windows("train", seed),
    loss=causal_loss,
    evaluate=judge_causal,
    write=write_causal,
)
SPANS = recipe(
    "austen-t5",
    "T5 in small, 2 + 2 layers of 128, fills gaps of any length in the same novels",
    "30 % of dropped pieces right; 25 minutes of one x86 thread",
    optimiser=partial(adafactor, lr=3e-2),
    steps=2 * STEPS,
    model=t5,
    batches=lambda seed: Dropped(windows("train", seed), seed),
    loss=span_loss,
    evaluate=judge_spans,
    write=write_spans,
)


def hidden_otherwise(name: str, how: str, masked: float, swapped: float) -> Recipe:
    """The small BERT, other shares of its chosen pieces hidden, replaced, left."""
    return replace(
        MASKED,
        name=f"austen-bert-{name}",
        what=f"austen-bert, shorter, {how}",
        expect="4 minutes of one x86 thread; benchmarks/masking.py compares them",
        steps=SHORT,
        batches=lambda seed: Hidden(
            windows("train", seed), seed, masked=masked, swapped=swapped
        ),
    )


OTHERWISE = (
    hidden_otherwise("masks-only", "every chosen piece hidden", 1.0, 0.0),
    hidden_otherwise("no-swap", "80 % hidden and 20 % left as they are", 0.8, 0.0),
    hidden_otherwise("no-same", "80 % hidden and 20 % replaced by another", 0.8, 0.2),
)
AUSTEN = MASKED, CAUSAL, SPANS, *OTHERWISE
