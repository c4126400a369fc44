# SPDX-License-Identifier: MIT
"""What do a language model's heads look for, and which of them does its loss need?

Two questions of each head: where does it look, and what does the loss do without it?
And one of the whole model: is a sequence cheaper the second time? An induction head
would make it so. It looks from a piece to the one *after* that piece's earlier copy,
where the text went on the last time, and so guesses that it goes on the same way.

Source: Elhage et al. 2021, “Induction Heads”; Olsson et al. 2022 (arXiv:2209.11895).

Taught in: book/08_gpt.ipynb
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.ablation import ablate
from deepdive.attention import record
from deepdive.inputs import check_ids, check_kind, check_sizes
from deepdive.tokenizers import Tokenizer, visible

TEXTS = (  # whole sentences of the test's chapters, none of which a model here has read
    "My sweetest Catherine, how have you been this long age?",
    "Little Emma, grow up a better woman than your aunt.",
    "I have a high respect for your nerves.",
    "The latter was thinking only of his breakfast.",
    "I am not romantic, you know; I never was.",
    "Then let us walk about and quiz people.",
    "I would give anything to know the truth of it.",
    "The night was cold and stormy.",
)
NAMES = "Dorothea and Casaubon"  # of “Middlemarch”, 1871: too late for Jane Austen
MOST_TEXTS = 10
LONGEST = 24  # pieces: what a figure of every head can draw


@dataclass(frozen=True)
class CausalMaps:
    """Every number of the figure, for N texts, L layers and H heads.

    The last two texts are said twice; `copies` tells how long one copy is. All means
    are over the other texts.

    Attributes:
        tokens: the pieces of each text as `visible` writes them, the one that begins
            it first.
        copies: for each text, the pieces of one copy; 0 where nothing is repeated.
        weights: for each text, (L, H, T, T), zero above the diagonal.
        losses: for each text, (T − 1,), nats that each piece but the first costs.
        without: the same with one head removed, (L, H, T − 1).
        first_layer: the number of the first of the L layers in its model.
    """

    texts: tuple[str, ...]
    tokens: list[list[str]]
    copies: tuple[int, ...]
    weights: list[Tensor]
    losses: list[Tensor]
    without: list[Tensor]
    first_layer: int = 0

    @property
    def plain(self) -> list[int]:
        """The numbers of the texts that repeat nothing."""
        return [i for i, n in enumerate(self.copies) if not n]

    @property
    def loss(self) -> float:
        """Nats that a piece of the plain texts costs, mean."""
        return float(torch.cat([self.losses[i] for i in self.plain]).mean())

    @property
    def changes(self) -> list[Tensor]:
        """What removal does to the cost of each piece: for each text, (L, H, T − 1)."""
        pairs = zip(self.without, self.losses, strict=True)
        return [without - losses for without, losses in pairs]

    @property
    def effect(self) -> Tensor:
        """What removal does to `loss`, (L, H); below 0, the model did better without.

        A mean over pieces, not over texts.
        """
        changes = self.changes
        return torch.cat([changes[i] for i in self.plain], -1).mean(-1)

    @property
    def peak(self) -> Tensor:
        """How striking a map looks, (L, H): a row's largest weight, mean."""
        return self._over_rows(lambda w: w[..., 2:, :].amax(-1))

    @property
    def peak_beyond_first(self) -> Tensor:
        """The same with the first column left out, where many sharp maps rest."""
        return self._over_rows(lambda w: w[..., 2:, 1:].amax(-1))

    @property
    def patterns(self) -> dict[str, Tensor]:
        """Mean weight on the first piece, the previous one, itself; each (L, H).

        Rows 0 and 1 are left out: there, these three are not three different pieces.
        """
        return {
            "first": self._over_rows(lambda w: w[..., 2:, 0]),
            "previous": self._over_rows(lambda w: w.diagonal(-1, -2, -1)[..., 1:]),
            "itself": self._over_rows(lambda w: w.diagonal(0, -2, -1)[..., 2:]),
        }

    @property
    def repeats(self) -> dict[int, dict[str, Tensor]]:
        """For each text that is said twice, what its second copy shows.

        "induction" and "same" are mean weights, (L, H), from a piece of the second
        copy to the piece after its earlier copy and to that copy; "losses" are the
        first and the second copy's mean costs, (2,); "without" the same with one head
        removed, (L, H, 2). The first piece of a copy is not counted in the costs:
        nothing says that the text begins again.
        """
        found = {}
        for i, n in enumerate(self.copies):
            if n:
                found[i] = _on_diagonals(self.weights[i], n) | {
                    "losses": _by_copy(self.losses[i], n),
                    "without": _by_copy(self.without[i], n),
                }
        return found

    def _over_rows(self, pick) -> Tensor:
        return torch.cat([pick(self.weights[i]) for i in self.plain], -1).mean(-1)


@dataclass(frozen=True)
class InductionTest:
    """How a model reads random sequences of pieces, each said twice.

    Attributes:
        ids: what was read, (B, 1 + 2n), or (B, 2n) without a piece that begins it.
        scores: mean weights, each (L, H), over all pieces of the second copies:
            "induction", on the piece after the earlier copy; "same", on the earlier
            copy itself; "previous", "first" and "itself".
        chance: "induction" of a head that spreads its weight evenly.
        losses: nats that a piece costs in the first and in the second copy, (2, n − 1),
            mean over the sequences, for the second to the last piece of a copy.
        right: share of these pieces that were the model's first guess, (2,).
        without: mean losses of both copies with one head removed, (L, H, 2); None
            where no head was.
    """

    ids: Tensor
    scores: dict[str, Tensor]
    chance: float
    losses: Tensor
    right: Tensor
    without: Tensor | None

    @property
    def gain(self) -> float:
        """Nats by which a piece is cheaper in the second copy, mean."""
        first, second = self.losses.mean(-1).tolist()
        return first - second

    @property
    def lost(self) -> Tensor:
        """How much of that gain goes when a head is removed, (L, H), in nats.

        What removal adds to the second copy's cost, less what it adds to the first's.

        Raises:
            ValueError: no head was removed.
        """
        if self.without is None:
            raise ValueError("no head was removed: call induction_test(…, remove=True)")
        change = self.without - self.losses.mean(-1)
        return change[..., 1] - change[..., 0]


@torch.no_grad()
def causal_maps(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str] = TEXTS,
    names: str = NAMES,
    *,
    begin: str | None = None,
    seed: int = 0,
    layers: range | None = None,
    exact: bool = True,
) -> CausalMaps:
    """Look at every head of a language model, and remove each one in turn.

    Two texts are added to those given, each said twice: `names`, which the model should
    not know, and as many pieces drawn at random.

    Args:
        model: a decoder with `blocks`, such as `Gpt` or `Llama`.
        begin: the special piece that every text is begun with, as in the training.
        seed: of the random pieces.
        layers: only these, such as `range(16, 20)`: a large model has too many heads
            for one figure.
        exact: on a copy in float64, so that numbers repeat on every machine; else on
            the model as it is, which spares a large one the memory.

    Raises:
        TypeError: `texts` is one string, or holds something else than text.
        ValueError: no text or more than 10, one of fewer than 3 pieces or more than 24
            with its beginning, layers that are not there, or a model whose heads look
            ahead.

    Taught in: book/08_gpt.ipynb
    """
    check_kind("model", model, nn.Module)
    if isinstance(texts, str):
        raise TypeError(f"expected a list of texts, got the string {texts!r}")
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise ValueError(f"expected 1 … {MOST_TEXTS} texts, got {len(texts)}")
    shown = _shown(model, layers)
    head = [] if begin is None else [tokenizer.id_of(begin)]
    rows = [head + _cut(tokenizer, text, LONGEST - len(head)) for text in texts]
    once = _cut(tokenizer, f" {names}", (LONGEST - len(head)) // 2)
    drawn = random_sequences(word_pieces(tokenizer), len(once), 1, seed)[0].tolist()
    rows += [head + 2 * once, head + 2 * drawn]
    if exact:
        model = copy.deepcopy(model).double().cpu().eval()
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True)
    ids = ids.to(next(model.parameters()).device)
    with record(model) as seen:  # padding stands behind a text, where nothing looks
        losses = piece_losses(model, ids)
    weights = _layers(model, seen)[:, shown].cpu()
    sizes = [len(row) for row in rows]
    without = _without_each_head(model, ids, shown)
    return CausalMaps(
        texts=(*texts, f"{names}, twice", "random pieces, twice"),
        tokens=[[visible(tokenizer, i) for i in row] for row in rows],
        copies=(*[0] * len(texts), len(once), len(once)),
        weights=[w[..., :n, :n] for w, n in zip(weights, sizes, strict=True)],
        losses=[row[: n - 1] for row, n in zip(losses, sizes, strict=True)],
        without=[without[:, :, b, : n - 1] for b, n in enumerate(sizes)],
        first_layer=shown[0],
    )


@torch.no_grad()
def induction_test(
    model: nn.Module,
    pieces: Sequence[int],
    *,
    begin: int | None = None,
    length: int = 25,
    sequences: int = 32,
    seed: int = 0,
    remove: bool = False,
    exact: bool = True,
) -> InductionTest:
    """Say random pieces twice: who looks back at them, and are they cheaper then?

        score of a head = mean weight from piece i of the second copy to piece i + 1 of
        the first

    Nothing but the first copy tells what comes in the second. So a head of high score
    is one that looks in the right place (Olsson's *prefix matching*), a gain shows that
    the model makes use of it, and removal which heads that takes.

    Args:
        pieces: ids to draw from, such as `word_pieces(tokenizer)`.
        begin: an id put before each sequence.
        length, sequences: n pieces a copy, no piece twice in it; B sequences.
        remove: take every head away in turn as well: L · H passes more.
        exact: on a copy in float64, so that numbers repeat on every machine; else on
            the model as it is, which spares a large one the memory.

    Raises:
        ValueError: fewer pieces than a copy has, or a model whose heads look ahead.

    Source: Olsson et al. 2022 (arXiv:2209.11895): 25 pieces, said four times there.

    Taught in: book/08_gpt.ipynb
    """
    check_kind("model", model, nn.Module)
    check_sizes(least=2, length=length)
    ids = random_sequences(pieces, length, sequences, seed).repeat(1, 2)
    if begin is not None:
        ids = torch.cat([torch.full((sequences, 1), begin), ids], 1)
    if exact:
        model = copy.deepcopy(model).double().cpu().eval()
    ids = ids.to(next(model.parameters()).device)
    with record(model) as seen:
        logits = model(ids)
    weights = _layers(model, seen).mean(0)
    losses = _cost(logits, ids).mean(0).cpu()
    right = (logits[:, :-1].argmax(-1) == ids[:, 1:]).double().mean(0).cpu()
    last = weights[..., -length:, :]  # the rows of the second copies
    scores = _on_diagonals(weights, length) | {
        "previous": weights.diagonal(-1, -2, -1)[..., -length:].mean(-1),
        "first": last[..., 0].mean(-1),
        "itself": weights.diagonal(0, -2, -1)[..., -length:].mean(-1),
    }
    T = ids.shape[1]
    return InductionTest(
        ids=ids.cpu(),
        scores={name: x.cpu() for name, x in scores.items()},
        chance=sum(1 / (t + 1) for t in range(T - length, T)) / length,
        losses=_split_copies(losses, length),
        right=_by_copy(right, length),
        without=(
            _by_copy(_without_each_head(model, ids).mean(2), length) if remove else None
        ),
    )


def piece_losses(model: nn.Module, ids: Tensor) -> Tensor:
    """Nats that each piece but the first costs, given those before it.

        loss[t] = −log softmax(logits[t])[ids[t + 1]]

    Shapes:
        ids (B, T) → (B, T − 1), on the CPU

    Taught in: book/08_gpt.ipynb
    """
    return _cost(model(ids), ids).cpu()


def random_sequences(
    pieces: Sequence[int], length: int, sequences: int, seed: int
) -> Tensor:
    """Draw sequences in which no piece stands twice, the same for the same seed.

    Shapes:
        → (sequences, length) int64

    Raises:
        ValueError: fewer different pieces than `length`.

    Taught in: book/08_gpt.ipynb
    """
    check_sizes(length=length, sequences=sequences)
    pool = torch.as_tensor(pieces).unique()
    if len(pool) < length:
        raise ValueError(f"{len(pool)} different pieces give no {length} without two")
    draw = torch.Generator().manual_seed(seed)
    order = [torch.randperm(len(pool), generator=draw) for _ in range(sequences)]
    return pool[torch.stack(order)[:, :length]]


def word_pieces(tokenizer: Tokenizer) -> list[int]:
    """Ids of the pieces that begin a word and have at least two letters, ascending.

    Rare bytes and special pieces, which a model may hardly have met, are not among
    them.

    Raises:
        ValueError: the tokenizer marks the beginning of words otherwise.

    Taught in: book/08_gpt.ipynb
    """
    check_kind("tokenizer", tokenizer, Tokenizer)
    begins = re.compile("[Ġ▁][A-Za-z]{2,}")  # how GPT-2 and Llama write a space
    vocabulary = tokenizer.raw.get_vocab()
    found = sorted(i for piece, i in vocabulary.items() if begins.fullmatch(piece))
    if not found:
        raise ValueError("no piece of this tokenizer is written like Ġword or ▁word")
    return found


def _cut(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """The ids of a text, after counting them."""
    if not isinstance(text, str):
        raise TypeError(f"expected a text, got {text!r}")
    ids = tokenizer.encode(text).ids[0].tolist()
    if not 3 <= len(ids) <= most:
        raise ValueError(f"{text!r} has {len(ids)} pieces; 3 … {most} can be drawn")
    return ids


def _cost(logits: Tensor, ids: Tensor) -> Tensor:
    """−log p of each next piece: (B, T, V), (B, T) → (B, T − 1)."""
    ids = ids.to(logits.device)
    check_ids("token", ids, logits.shape[-1])
    wide = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.transpose(1, 2), ids[:, 1:], reduction="none")


def _layers(model: nn.Module, seen: dict[str, Tensor]) -> Tensor:
    """What `record` saw, (B, L, H, T, T), after a look above the diagonal."""
    weights = torch.stack(
        [seen[f"blocks.{i}.attention"] for i in range(len(model.blocks))], 1
    )
    if weights.triu(1).any():
        raise ValueError(f"the heads of this {type(model).__name__} look ahead")
    return weights


def _shown(model: nn.Module, layers: range | None) -> list[int]:
    """Numbers of layers, one after the other, after a look at the model."""
    n = len(model.blocks)
    shown = list(range(n) if layers is None else layers)
    if not shown or shown != list(range(shown[0], shown[-1] + 1)) or shown[0] < 0:
        raise ValueError(f"layers must follow one another, got {layers!r}")
    if shown[-1] >= n:
        raise ValueError(f"layers must lie in 0 … {n - 1}, got {layers!r}")
    return shown


def _without_each_head(
    model: nn.Module, ids: Tensor, layers: Sequence[int] | None = None
) -> Tensor:
    """Losses with each head of some layers removed in turn, (L, H, B, T − 1)."""
    found, layers = [], range(len(model.blocks)) if layers is None else layers
    for layer in layers:
        for head in range(model.blocks[layer].attention.n_heads):
            with ablate(model, layer, head):
                found.append(piece_losses(model, ids))
    return torch.stack(found).unflatten(0, (len(layers), -1))


def _on_diagonals(weights: Tensor, n: int) -> dict[str, Tensor]:
    """Weights of the last n rows, n pieces back (the same piece) and one after it.

    The last piece of a copy is followed by the second copy's first, n − 1 back too.
    """
    return {
        "induction": weights.diagonal(1 - n, -2, -1)[..., -n:].mean(-1),
        "same": weights.diagonal(-n, -2, -1)[..., -n:].mean(-1),
    }


def _split_copies(costs: Tensor, n: int) -> Tensor:
    """Of (…, T − 1) costs, those of both copies' pieces 2 … n: (…, 2, n − 1)."""
    return costs[..., -2 * n + 1 :].unfold(-1, n - 1, n)


def _by_copy(costs: Tensor, n: int) -> Tensor:
    """Their means, (…, 2)."""
    return _split_copies(costs, n).mean(-1)
