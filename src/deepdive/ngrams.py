# SPDX-License-Identifier: MIT
"""What can counting alone predict?

How often did each piece follow these one, two or three others? A longer context says
more and has been seen less often, so every order is mixed with the next shorter one,
down to the guess that all pieces are alike. Of all models here that learn from a text,
this is the only one without a single trained weight.

Source: Kneser and Ney 1995; Chen and Goodman 1999 (the interpolated form).

Taught in: book/07_bert.ipynb, book/08_gpt.ipynb
"""

from collections.abc import Sequence
from types import NoneType
from typing import NamedTuple

import torch
from torch import Tensor

from deepdive.inputs import check_ids, check_kind, check_sizes
from deepdive.objectives import Loss


class Counts(NamedTuple):
    """What the text says about the grams of one length n. Their contexts have n − 1.

    Shapes:
        keys (G,) sorted int64: context · (V + 1) + last piece, where a context is the
        row of its own gram one length below; counts (G,); total and kinds (contexts,)
    """

    keys: Tensor
    counts: Tensor  # float64: how often; below the highest order, behind how many
    total: Tensor  # the sum of the counts of each context
    kinds: Tensor  # how many different pieces follow it
    discount: float


class KneserNey:
    """Counts of a text, and how probable they make what follows.

        pₙ(w | h) = (max(c(h w) − Dₙ, 0) + Dₙ · N₊(h •) · pₙ₋₁(w | h′)) / Σᵥ c(h v)

    c counts h w in the text, N₊(h •) is the number of different pieces that follow h,
    and h′ is h without its first piece. Below the highest order, c(h w) is the number
    of different pieces in front of h w instead: “Francisco” is frequent, but behind
    one word. p₀ is 1 / V. Where h was never followed by anything, pₙ is pₙ₋₁.

    Shapes:
        tokens (N,) ids, N ≥ order

    Args:
        order: the pieces of the longest gram, the guessed one included. 1 looks at no
            context; 0 does not look at the text at all.
        discount: D of every order, 0 < D ≤ 1. None: n₁ / (n₁ + 2 n₂), from the number
            of grams that count 1 and 2; ½ where there is none of one of the two.

    Attributes:
        discounts: Dₙ for n = 1 … order.
        sizes: how many different grams of n = 1 … order pieces are kept.

    Raises:
        TypeError: tokens are no tensor of integers, order or vocab_size no integer,
            discount no number.
        ValueError: fewer tokens than order, ids outside 0 … vocab_size − 1, a negative
            order, vocab_size below 1, or another discount.

    Source: Kneser and Ney 1995 (what is counted below the highest order); Chen and
    Goodman 1999 (all orders mixed, one discount each; their modified form has three).

    Note:
        The text is one stream: contexts run across the pieces that end a text.

    >>> model = KneserNey(torch.tensor([0, 1, 0, 2, 0, 1]), order=2, vocab_size=4)
    >>> model.discounts, model.sizes
    ((0.5, 0.6), (3, 4))
    >>> model.probabilities([1])  # piece 3 never came: the mixing leaves it a share
    tensor([0.6813, 0.1313, 0.1313, 0.0562], dtype=torch.float64)
    """

    def __init__(
        self,
        tokens: Tensor,
        order: int,
        vocab_size: int,
        discount: float | None = None,
    ):
        check_sizes(0, order=order)
        check_sizes(vocab_size=vocab_size)
        _check_discount(discount)
        _check_stream(tokens, vocab_size)
        if len(tokens) < order:
            raise ValueError(f"order {order} needs as many tokens, got {len(tokens)}")
        self.order, self.vocab_size = order, vocab_size
        self.levels = _count(tokens.cpu().long(), order, vocab_size, discount)

    @property
    def discounts(self) -> tuple[float, ...]:
        """What is taken from each count, of 1, 2, … pieces."""
        return tuple(level.discount for level in self.levels)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many different grams of 1, 2, … pieces are kept."""
        return tuple(len(level.keys) for level in self.levels)

    def probabilities(self, context: Sequence[int] | Tensor) -> Tensor:
        """How probable each piece is behind a context, of which the end is looked at.

        Shapes:
            context, any number of ids → (V,) float64; its sum is 1

        Raises:
            TypeError: not a sequence of integers.
            ValueError: an id outside 0 … V − 1.
        """
        ids = _ids(context, self.vocab_size)
        return self._given(list(ids), torch.arange(self.vocab_size))

    def surprise(self, tokens: Tensor) -> Tensor:
        """What each piece of a stream costs, given those before it, in nats.

            −log p(wᵢ | wᵢ₋ₙ₊₁ … wᵢ₋₁);   the first ones have shorter contexts

        Shapes:
            tokens (N,), N ≥ 1 → (N,) float64

        Raises:
            TypeError: no tensor of ids.  ValueError: shape, or an id out of range.
        """
        _check_stream(tokens, self.vocab_size)
        N, before = len(tokens), max(self.order - 1, 0)
        nothing = tokens.new_full((before,), self.vocab_size)  # a piece never seen
        padded = torch.cat([nothing, tokens]).cpu().long()
        context = [padded[i : i + N] for i in range(before)]
        return -self._given(context, padded[before:]).log()

    def loss(self, tokens: Tensor) -> Loss:
        """The sum of all that, and over how many pieces.

        Shapes:
            tokens (N,), N ≥ 1 → `Loss` with a total in float64

        Raises:
            TypeError, ValueError: as `surprise`.
        """
        return Loss(self.surprise(tokens).sum(), len(tokens))

    def _given(self, context: list[Tensor], piece: Tensor) -> Tensor:
        """p(piece | context), for tensors of ids that broadcast to one shape.

        V in a context stands for “nothing”: grams that reach so far back are unseen.
        """
        p = torch.tensor(1 / self.vocab_size, dtype=torch.float64).expand(piece.shape)
        for n, level in enumerate(self.levels[: len(context) + 1]):
            row = torch.zeros((), dtype=torch.int64)
            for depth, older in enumerate(context[len(context) - n :]):
                row = self._find(depth, row, older)
            gram = self._find(n, row, piece)
            total, kinds = level.total[row], level.kinds[row]
            kept = (level.counts[gram] - level.discount).clamp(min=0)
            kept = kept.where(gram >= 0, 0.0)  # −1 has picked the last row
            mixed = (kept + level.discount * kinds * p) / total
            p = torch.where((row >= 0) & (total > 0), mixed, p)
        return p

    def _find(self, depth: int, row: Tensor, piece: Tensor) -> Tensor:
        """The row of a gram, given the row of its context; −1 if it was never seen."""
        keys = self.levels[depth].keys
        key = row * (self.vocab_size + 1) + piece
        place = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
        return place.where(keys[place] == key, -1)


def between(model: KneserNey, left: Tensor, right: Tensor) -> Tensor:
    """How probable each piece is in a gap, of which both sides are known.

        p(w | l, r) = p(w | l) · p(r | w) / Σᵥ p(v | l) · p(r | v)

    That is exact, for p(l) · p(w | l) · p(r | w) is the probability of all three. With
    a higher order and more pieces on either side, p(r₁ | … l w) · p(r₂ | … w r₁) · …

    Shapes:
        left (N,) or (N, L), right (N,) or (N, R) ids → (N, V) float64, rows of sum 1

    Args:
        left, right: what stands before and behind each gap, nearest to it the last of
            left and the first of right. More than order − 1 pieces change nothing.

    Raises:
        TypeError: no `KneserNey`, or no tensors of ids.
        ValueError: shapes or ids do not fit.

    Source: none; the chain rule and Bayes.

    >>> model = KneserNey(torch.tensor([0, 1, 2, 0, 1, 2, 0]), order=2, vocab_size=3)
    >>> between(model, torch.tensor([0]), torch.tensor([2])).argmax().item()
    1
    """
    check_kind("model", model, KneserNey)
    sides = [
        _columns(name, side, model.vocab_size)
        for name, side in {"left": left, "right": right}.items()
    ]
    if len(left) != len(right):
        raise ValueError(
            f"left and right must be as many, got {len(left)} and {len(right)}"
        )
    chunks = zip(*(side.split(256) for side in sides), strict=True)  # that fit a cache
    return torch.cat([_between(model, before, behind) for before, behind in chunks])


def _between(model: KneserNey, left: Tensor, right: Tensor) -> Tensor:
    """The same for a few gaps: left (N, L), right (N, R)."""
    reach = max(model.order - 1, 0)
    before, behind = (list(side[:, :, None].unbind(1)) for side in (left, right))
    text = [*before, torch.arange(model.vocab_size)[None], *behind[:reach]]  # (N, 1)
    p = torch.ones(len(left), model.vocab_size, dtype=torch.float64)
    for i in range(len(before), len(text)):
        p = p * model._given(text[max(i - reach, 0) : i], text[i])
        p = p / p.sum(dim=1, keepdim=True)  # at every step: products get small
    return p


def _count(
    tokens: Tensor, order: int, vocab_size: int, discount: float | None = None
) -> list[Counts]:
    """Every gram of 1 … order pieces, in sorted rows, and what follows each context.

    Shapes:
        tokens (N,) int64, N ≥ order → one `Counts` an order
    """
    keys, counts, rows = [], [], []  # of every length
    contexts = torch.zeros_like(tokens)
    for n in range(
        order
    ):  # rows[n][i] is the row of the gram tokens[i] … tokens[i + n]
        gram, row, count = (contexts * (vocab_size + 1) + tokens[n:]).unique(
            return_inverse=True, return_counts=True
        )
        keys, counts, rows = [*keys, gram], [*counts, count], [*rows, row]
        contexts = row[:-1]
    for n in range(order - 1):  # how many different pieces stand in front of each?
        without_first = torch.empty_like(keys[n + 1])  # its row, for each longer gram
        without_first[rows[n + 1]] = rows[n][1:]
        counts[n] = without_first.bincount(minlength=len(keys[n]))
    levels = []
    for n, (gram, count) in enumerate(zip(keys, counts, strict=True)):
        context, contexts = gram // (vocab_size + 1), len(keys[n - 1]) if n else 1
        total = context.bincount(count.double(), contexts)
        kinds = context.bincount((count > 0).double(), contexts)
        D = estimated_discount(count) if discount is None else float(discount)
        levels.append(Counts(gram, count.double(), total, kinds, D))
    return levels


def estimated_discount(counts: Tensor) -> float:
    """The discount that suits these counts: D = n₁ / (n₁ + 2 n₂).

    n₁ grams count 1, n₂ count 2. Without one of either, D would be 0 or 1 (or 0 / 0):
    it is ½ then.

    Shapes:
        counts (G,) → a number, 0 < D < 1

    Source: Ney, Essen and Kneser 1994, in Chen and Goodman 1999.

    >>> estimated_discount(torch.tensor([1, 1, 1, 1, 2, 5]))
    0.6666666666666666
    """
    if not isinstance(counts, Tensor):
        raise TypeError(f"counts must be a tensor, got {type(counts).__name__}")
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    return ones / (ones + 2 * twos) if ones and twos else 0.5


def _check_discount(discount: float | None) -> None:
    """None, or a number D with 0 < D ≤ 1."""
    check_kind("discount", discount, float, int, NoneType)
    if discount is not None and not 0 < discount <= 1:
        raise ValueError(f"discount must be 0 < D ≤ 1, got {discount}")


def _check_stream(tokens: Tensor, vocab_size: int) -> None:
    """One text: ids on one axis, at least one."""
    check_ids("tokens", tokens, vocab_size)
    if tokens.dim() != 1 or not len(tokens):
        raise ValueError(f"tokens must be (N,) with N ≥ 1, got {(*tokens.shape,)}")


def _columns(name: str, side: Tensor, vocab_size: int) -> Tensor:
    """One side of N gaps as (N, any) int64 on the CPU."""
    check_ids(name, side, vocab_size)
    if side.dim() not in (1, 2):
        raise ValueError(f"{name} must be (N,) or (N, any), got {(*side.shape,)}")
    return (side if side.dim() == 2 else side[:, None]).cpu().long()


def _ids(context: Sequence[int] | Tensor, vocab_size: int) -> Tensor:
    """A context as a tensor (n,) of ids in range."""
    if not isinstance(context, Tensor):
        check_kind("context", context, Sequence)
        for each in context:
            check_kind("each id of context", each, int)
            if not 0 <= each < vocab_size:
                raise ValueError(f"context has {each}, not in 0 … {vocab_size - 1}")
        context = torch.tensor(list(context), dtype=torch.int64)
    check_ids("context", context, vocab_size)
    if context.dim() != 1:
        raise ValueError(f"context must be (n,), got {(*context.shape,)}")
    return context.cpu().long()
