# SPDX-License-Identifier: MIT
"""Where do a trained encoder's heads look, and what changes when one is taken away?

Taught in: book/03_multi_head.ipynb
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepdive.attention import record
from deepdive.masks import Everyone
from deepdive.pretrained import pool, similarity
from deepdive.tokenizers import Tokenizer

SENTENCES = (
    "cats chase mice",
    "mice chase cats",  # the same words, the other way round
    "cats do not chase mice",  # denied
    "kittens hunt rats",  # much the same, in other words
    "she sat by the river bank",
    "she paid at the bank",  # one word, two senses
)
MOST_SENTENCES = 8
LONGEST = 16  # pieces: what a figure of every head can draw


@dataclass(frozen=True)
class HeadMaps:
    """Every number of the figure, for N sentences, L layers and H heads, in float64.

    Attributes:
        tokens: the pieces of each sentence, [CLS] first and [SEP] last.
        weights: for each sentence, (L, H, T, T).
        cosines: (N, N), between the sentences' embeddings.
        without: (L, H, N, N), the same with one head removed.
        value_lengths: (L, H, 2), mean length of v at [CLS] and at the words.
    """

    sentences: tuple[str, ...]
    tokens: list[list[str]]
    weights: list[Tensor]
    cosines: Tensor
    without: Tensor
    value_lengths: Tensor

    @property
    def changes(self) -> Tensor:
        """What removal does to the cosine of each pair (0, 1), (0, 2) …: (L, H, P)."""
        i, j = torch.triu_indices(len(self.tokens), len(self.tokens), 1)
        return (self.without - self.cosines)[..., i, j]

    @property
    def effect(self) -> Tensor:
        """Mean size of that change over all pairs, (L, H)."""
        return self.changes.abs().mean(-1)

    @property
    def peak(self) -> Tensor:
        """How striking a map looks, (L, H): a word row's largest weight, mean."""
        return self._over_rows(lambda w: w[..., 1:-1, :].amax(-1))

    @property
    def peak_on_words(self) -> Tensor:
        """The same with the [CLS] column left out, where most sharp maps rest."""
        return self._over_rows(lambda w: w[..., 1:-1, 1:].amax(-1))

    @property
    def patterns(self) -> dict[str, Tensor]:
        """Mean weight on previous word, next word, itself, [CLS], [SEP]; each (L, H).

        Only words count as queries, and “previous” and “next” only where that is a
        word: a head that looks at [CLS] is not taken for one that looks back.
        """

        def diagonal(shift: int, first: int, last: int):
            return self._over_rows(
                lambda w: w.diagonal(shift, -2, -1)[..., first : w.shape[-1] + last]
            )

        return {
            "previous": diagonal(-1, 1, -2),
            "next": diagonal(1, 1, -2),
            "itself": diagonal(0, 1, -1),
            "CLS": self._over_rows(lambda w: w[..., 1:-1, 0]),
            "SEP": self._over_rows(lambda w: w[..., 1:-1, -1]),
        }

    def _over_rows(self, pick) -> Tensor:
        return torch.cat([pick(w) for w in self.weights], -1).mean(-1)


@torch.no_grad()
def head_maps(
    model: nn.Module, tokenizer: Tokenizer, sentences: Sequence[str] = SENTENCES
) -> HeadMaps:
    """Look at every head of an encoder, and remove each one in turn.

    Computed in float64 on a copy of the model, so that every machine gets the same
    numbers.

    Raises:
        TypeError: `sentences` is one string.
        ValueError: fewer than 2 or more than 8 sentences, or one that has fewer than
            two word pieces or more than 16 pieces.

    Taught in: book/03_multi_head.ipynb
    """
    if isinstance(sentences, str):
        raise TypeError(f"expected a list of sentences, got the string {sentences!r}")
    if not 2 <= len(sentences) <= MOST_SENTENCES:
        raise ValueError(
            f"expected 2 … {MOST_SENTENCES} sentences, got {len(sentences)}"
        )
    tokens = [pieces(tokenizer, text, least=2) for text in sentences]
    model = copy.deepcopy(model).double().cpu().eval()
    batch = tokenizer.encode(list(sentences))
    keep, inputs = batch.keep, []
    with (
        _value_lengths(model, keep) as lengths,
        _hooked(model.blocks, lambda _, args, out: inputs.append(args[0])),
    ):
        weights, hidden = look(model, *batch)
    without = [_without_each_head(model, i, x, keep) for i, x in enumerate(inputs)]
    sizes = keep.sum(1).tolist()
    return HeadMaps(
        sentences=tuple(sentences),
        tokens=tokens,
        weights=[w[..., :n, :n] for w, n in zip(weights, sizes, strict=True)],
        cosines=similarity(pool(hidden, keep)),
        without=torch.stack(without),
        value_lengths=torch.stack(lengths),
    )


def look(
    model: nn.Module, ids: Tensor, segments: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights of every layer and the last hidden states, in one pass.

    Shapes:
        ids, segments, keep (B, T) → (B, L, H, T, T), (B, T, d_model)
    """
    with record(model) as seen:
        hidden = model(ids, segments, keep)
    layers = [seen[f"blocks.{i}.attention"] for i in range(len(model.blocks))]
    return torch.stack(layers, 1), hidden


def pieces(tokenizer: Tokenizer, text: str, least: int) -> list[str]:
    """The pieces of one sentence, [CLS] and [SEP] included, after counting them.

    Raises:
        TypeError: the text is no string.
        ValueError: fewer than `least` word pieces, or more than 16 pieces.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a sentence, got {text!r}")
    found = tokenizer.tokens(text)
    if len(found) - 2 < least:
        raise ValueError(
            f"{text!r} has {len(found) - 2} word pieces; at least {least} are needed"
        )
    if len(found) > LONGEST:
        raise ValueError(
            f"this sentence has {len(found)} pieces, [CLS] and [SEP] included; up to "
            f"{LONGEST} can be drawn"
        )
    return found


def _without_each_head(model: nn.Module, layer: int, x: Tensor, keep: Tensor) -> Tensor:
    """Cosines with each head of one layer removed in turn, (H, N, N).

    What `ablation.ablate` does one head at a time, done for all heads of a layer in one
    pass: a copy of the batch for each head, starting at the layer's input x (B, T, d).
    """
    attention = model.blocks[layer].attention
    H, B = attention.n_heads, x.shape[0]
    each = torch.arange(H)

    def zero(_, args):
        parts = args[0].unflatten(0, (H, B)).unflatten(-1, (H, -1)).clone()
        parts[each, :, :, each] = 0  # copy h loses head h
        return (parts.flatten(-2).flatten(0, 1),)

    x, copies = x.repeat(H, 1, 1), keep.repeat(H, 1)
    mask = Everyone(copies)
    hook = attention.o_proj.register_forward_pre_hook(zero)
    try:
        for block in model.blocks[layer:]:
            x = block(x, mask=mask)
    finally:
        hook.remove()
    return torch.stack([similarity(e) for e in pool(x, copies).unflatten(0, (H, B))])


@contextmanager
def _value_lengths(model: nn.Module, keep: Tensor) -> Iterator[list[Tensor]]:
    """Collect each layer's mean length of v at [CLS] and at the words, (G, 2)."""
    word = keep.clone()
    word[:, 0] = False  # [CLS]
    word[torch.arange(len(word)), keep.sum(1) - 1] = False  # [SEP]
    attentions = [block.attention for block in model.blocks]
    found: list[Tensor] = []

    def measure(_, args, v):
        parts = v.unflatten(-1, (attentions[0].n_kv_heads, -1)).norm(dim=-1)
        found.append(torch.stack([parts[:, 0].mean(0), parts[word].mean(0)], -1))

    with _hooked([attention.v_proj for attention in attentions], measure):
        yield found


@contextmanager
def _hooked(parts: Iterable[nn.Module], hook: Callable) -> Iterator[None]:
    """Inside the `with` block, `hook` sees what goes into each part and comes out."""
    handles = [part.register_forward_hook(hook) for part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation of two tensors of the same shape.

    Shapes:
        two tensors of equal shape → a number
    """
    pair = torch.stack([a.flatten(), b.flatten()])
    return float(torch.corrcoef(pair)[0, 1])


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's: Pearson's correlation of the ranks (no ties expected).

    Shapes:
        two tensors of equal shape → a number
    """
    ranks = (x.flatten().argsort().argsort().double() for x in (a, b))
    return correlation(*ranks)
