# SPDX-License-Identifier: MIT
"""Does attention beat recurrence at the same size? Three models, one task, one recipe.

    g2p                 the 2017 Transformer, 3 + 3 layers of width 128
    g2p-gru-attention   a GRU that reads both ways, one that writes, additive attention
    g2p-gru             the same without attention: one vector between them

1.40 million weights each (± 1 %), the same words in the same order, the same optimiser,
schedule and label smoothing. The widths of reader and writer, 176 and 338 with
attention, 240 and 392 without, were solved so that the three have equal weights.
Dropout is 0.1 for all, but has more places in the Transformer: behind every sublayer.
Each model's learning rate is the best of four after 1,000 updates, on the words that
watch (`benchmarks/g2p.py tune`), by phoneme errors as by word errors.

Taught in: book/01_recurrence.ipynb, book/06_transformer_2017.ipynb
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from deepdive.blocks import post_norm, pre_norm
from deepdive.configs import T5Config, TransformerConfig
from deepdive.data import PairBatch, PairBatches
from deepdive.models.t5 import T5
from deepdive.models.transformer2017 import Transformer
from deepdive.objectives import Loss, label_smoothed
from deepdive.recipes.recipe import Recipe, Writing
from deepdive.recipes.spelling import (
    END,
    LETTERS,
    LONGEST,
    PAD,
    PHONEMES,
    SHORTEST,
    START,
    begin_one,
    count_errors,
    pairs,
    spell,
    split,
)
from deepdive.recurrent import (
    BahdanauAttention,
    Decoder,
    Encoder,
    GruCell,
    Seq2Seq,
    TiedHead,
    backward_end,
    both_ends,
)
from deepdive.training import adamw, inverse_sqrt
from deepdive.training.schedules import Schedule

BATCH, DROPOUT, SMOOTHING, WARMUP = 128, 0.1, 0.1, 300
BETAS = 0.9, 0.98  # the paper's
CONFIG = TransformerConfig(
    len(LETTERS), len(PHONEMES), d_model=128, n_layers=3, n_heads=4, d_ff=512,
    dropout=DROPOUT, tied=False,
)  # fmt: skip


def gru(reader: int, writer: int, d_attention: int | None = None) -> Seq2Seq:
    """A GRU translator: `reader` numbers in each direction, `writer` in its state.

    Without attention the writer starts from both ends of the reading, so that no weight
    is idle.
    """
    width = CONFIG.d_model
    letters, phonemes = (nn.Embedding(len(s), width) for s in (LETTERS, PHONEMES))
    cells = GruCell(width, reader), GruCell(width, reader)
    hand_over = both_ends if d_attention is None else backward_end
    encoder = Encoder(letters, *cells, nn.Dropout(DROPOUT), hand_over)
    attention, d_context = None, 0
    if d_attention is not None:
        d_context = encoder.d_annotation
        attention = BahdanauAttention(writer, d_context, d_attention)
    head = nn.Sequential(nn.Dropout(DROPOUT), TiedHead(phonemes, writer + d_context))
    cell = GruCell(width + d_context, writer)
    decoder = Decoder(phonemes, cell, head, attention, nn.Dropout(DROPOUT))
    bridge = nn.Sequential(nn.Linear(encoder.d_state, writer), nn.Tanh())
    return Seq2Seq(encoder, decoder, bridge)


class Relative(T5):
    """T5's attention for this task: it sees how far apart two signs are, not where.

    One table holds phonemes and letters, the letters behind.

    Shapes:
        src (B, S) letters, tgt (B, T) phonemes → logits (B, T, V)
    """

    def __init__(self):
        names = "d_model", "n_layers", "n_heads", "d_ff", "dropout", "tied"
        sizes = {name: getattr(CONFIG, name) for name in names}
        sizes["head_dim"] = CONFIG.d_model // CONFIG.n_heads
        super().__init__(T5Config(len(PHONEMES) + len(LETTERS), **sizes))

    def encode(self, src: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().encode(src + len(PHONEMES), keep)

    def decode(self, *args, **how) -> Tensor:
        logits = super().decode(*args, **how)
        return logits[..., : len(PHONEMES)]  # no letter is written


def batches(seed: int) -> PairBatches:
    """128 pairs of the training words; for one seed the same for every model."""
    return PairBatches(pairs(split().train), BATCH, PAD, seed)


def loss(model: nn.Module, batch: PairBatch, smoothing: float = SMOOTHING) -> Loss:
    """Each phoneme is guessed from the letters and the phonemes before it."""
    src, tgt, src_keep, tgt_keep = batch
    logits = model(src, tgt[:, :-1], src_keep, tgt_keep[:, :-1])
    return label_smoothed(logits, tgt[:, 1:], PAD, smoothing)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Phoneme and word error rate on the 2,000 words that watch, written greedily."""
    words = split().dev
    errors = count_errors(words, spell(model, words))
    return {"per": errors.per, "wer": errors.wer}


def write(model: nn.Module, text: str) -> Writing:
    """Pronounce a word.

    Raises:
        ValueError: a sign that no word of the training has, or too many of them.
    """
    text = text.strip().lower() or "attention"
    if not SHORTEST <= len(text) <= LONGEST:
        raise ValueError(
            f"{text!r} has {len(text)} letters; it learned words of {SHORTEST} to "
            f"{LONGEST}"
        )
    return begin_one(model, LETTERS.encode(text), (START, END), PHONEMES)


def recipe(
    name: str,
    what: str,
    expect: str,
    steps: int,
    model: Callable[[], nn.Module],
    lr: float,
) -> Recipe:
    """What the three have in common."""
    return Recipe(
        name=name,
        what=what,
        expect=expect,
        steps=steps,
        model=model,
        batches=batches,
        loss=loss,
        optimiser=lambda model: adamw(model, lr, weight_decay=0.0, betas=BETAS),
        schedule=lambda steps: inverse_sqrt(min(WARMUP, steps)),
        evaluate=evaluate,
        write=write,
        average=0.999,
        every=250,
        evaluate_every=500,
    )


def without_rise(warmup: int) -> Schedule:
    """The same schedule with its first part cut off: at the peak from update 1 on."""
    shape = inverse_sqrt(warmup)
    return lambda step: shape(max(step, warmup))


TRANSFORMER = recipe(
    "g2p",
    "the 2017 Transformer, 3 + 3 layers of 128, pronounces English words",
    "6.8 % of sounds, 27 % of words wrong of 5,000 new ones; an hour of one x86 thread",
    steps=20_000,
    model=lambda: Transformer(CONFIG, pre_norm),
    lr=2e-3,
)
GRU_ATTENTION = recipe(
    "g2p-gru-attention",
    "two GRUs and additive attention between them, of the same size, on the same words",
    "5.6 % of sounds, 23 % of words wrong of 5,000 new ones; 50 min of one x86 thread",
    steps=20_000,
    model=lambda: gru(reader=176, writer=338, d_attention=128),
    lr=4e-3,
)
GRU = recipe(
    "g2p-gru",
    "two GRUs with one vector between them, of the same size, on the same words",
    "6.7 % of sounds, 26 % of words wrong of 5,000 new ones; 40 min of one x86 thread",
    steps=20_000,
    model=lambda: gru(reader=240, writer=392),
    lr=4e-3,
)

# One thing of the Transformer or its training changed at a time; T5's layers, the
# last, change several: distances for positions, the norm, no biases, another start.
NO_WARMUP = replace(
    TRANSFORMER,
    name="g2p-no-warmup",
    what="g2p without warm-up: the learning rate begins at its peak",
    expect="9.0 % of sounds wrong of 2,000 new words (g2p then 8.9 to 9.0); 12 min",
    steps=4_000,
    schedule=lambda steps: without_rise(min(WARMUP, steps)),
)
NO_SMOOTHING = replace(
    TRANSFORMER,
    name="g2p-no-smoothing",
    what="g2p without label smoothing",
    expect="9.2 % of sounds wrong of 2,000 new words (g2p then 8.9 to 9.0); 12 min",
    steps=4_000,
    loss=partial(loss, smoothing=0.0),
)
NO_DROPOUT = replace(
    TRANSFORMER,
    name="g2p-no-dropout",
    what="g2p without dropout",
    expect="7.9 % of sounds wrong of 2,000 new words (g2p then 8.9 to 9.0); 12 min",
    steps=4_000,
    model=lambda: Transformer(replace(CONFIG, dropout=0.0), pre_norm),
)
POST_NORM = replace(
    TRANSFORMER,
    name="g2p-post-norm",
    what="g2p with the norms where the paper has them, behind each sum",
    expect="9.1 % of sounds wrong of 2,000 new words (g2p then 8.9 to 9.0); 12 min",
    steps=4_000,
    model=lambda: Transformer(CONFIG, post_norm),
)
RELATIVE = replace(
    TRANSFORMER,
    name="g2p-relative",
    what="g2p with T5's layers, which see distances in the place of positions",
    expect="12.0 % of sounds wrong of 2,000 new words (g2p then 8.9 to 9.0); 12 min",
    steps=4_000,
    model=Relative,
)
PRONUNCIATION = (
    TRANSFORMER,
    GRU_ATTENTION,
    GRU,
    NO_WARMUP,
    NO_SMOOTHING,
    NO_DROPOUT,
    POST_NORM,
    RELATIVE,
)
