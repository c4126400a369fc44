# SPDX-License-Identifier: MIT
"""Which text does update number n read? A function of n: nothing to save, nothing lost.

Batches are callables: the same number gives the same batch, on every machine, whatever
was asked for before. A training run that is killed and started again therefore reads on
where it stopped (`training.fit` takes them as they are).

Taught in: book/06_transformer_2017.ipynb, book/08_gpt.ipynb
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Ids = Sequence[int]

_POOL = 50  # batches that are sorted by length together


def split_stream(tokens: Tensor, held_out: float = 0.05) -> tuple[Tensor, Tensor]:
    """The beginning of a text for training, its end for validation.

    Shapes:
        tokens (N,) → (N − n,) and (n,), n = N · held_out, rounded

    >>> split_stream(torch.arange(10), 0.2)
    (tensor([0, 1, 2, 3, 4, 5, 6, 7]), tensor([8, 9]))

    Taught in: book/08_gpt.ipynb
    """
    _check_stream(tokens)
    n = round(len(tokens) * held_out) if 0 < held_out < 1 else 0
    if not 0 < n < len(tokens):
        raise ValueError(
            f"held_out {held_out} of {len(tokens)} tokens leaves one part empty"
        )
    return tokens[:-n], tokens[-n:]


def split_items(
    items: Sequence[Item], *sizes: int, seed: int = 0
) -> tuple[list[Item], ...]:
    """Disjoint random parts: one of each size, and the rest, which comes first.

    >>> train, test = split_items("abcdef", 2)
    >>> len(train), sorted(train + test)
    (4, ['a', 'b', 'c', 'd', 'e', 'f'])

    Note:
        Split words before their pairs are made: two pronunciations of one word belong
        to the same part.
    """
    if any(size < 1 for size in sizes) or sum(sizes) >= len(items):
        raise ValueError(
            f"sizes must be ≥ 1 and leave a rest of {len(items)} items, got {sizes}"
        )
    order = _shuffled(len(items), seed)
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    *parts, rest = (
        [items[i] for i in order[a:b]]
        for a, b in zip(starts, [*starts[1:], None], strict=True)
    )
    return rest, *parts


class Windows:
    """Windows of a long text in random order, each epoch in another.

    Each epoch cuts the text into ⌊N / length⌋ windows side by side, from a start that
    moves within what is left over: every token is read once an epoch, except fewer
    than `length` at the two ends.

    Shapes:
        tokens (N,); called with a number → (batch, length), a copy

    Args:
        seed: of the order; the same seed gives the same batches everywhere.

    >>> windows = Windows(torch.arange(8), length=4, batch=2)
    >>> windows(0).flatten().sort().values
    tensor([0, 1, 2, 3, 4, 5, 6, 7])

    Taught in: book/08_gpt.ipynb
    """

    def __init__(self, tokens: Tensor, length: int, batch: int, seed: int = 0):
        _check_stream(tokens)
        if length < 1 or batch < 1 or length > len(tokens):
            raise ValueError(
                f"length must lie in 1 … {len(tokens)} and batch be ≥ 1, got {length} "
                f"and {batch}"
            )
        self.tokens, self.length, self.batch, self.seed = tokens, length, batch, seed
        self.n_windows = len(tokens) // length  # an epoch

    def __call__(self, number: int) -> Tensor:
        _check_number(number)
        first, starts = number * self.batch, []
        while (have := sum(map(len, starts))) < self.batch:
            epoch, done = divmod(first + have, self.n_windows)
            starts.append(self._starts(epoch)[done : done + self.batch - have])
        places = torch.cat(starts)[:, None] + torch.arange(self.length)
        return self.tokens[places.to(self.tokens.device)]  # (batch, length)

    def _starts(self, epoch: int) -> Tensor:
        left_over = len(self.tokens) % self.length
        draw = seeded(self.seed, epoch)
        shift = torch.randint(left_over + 1, (), generator=draw)
        return shift + self.length * torch.randperm(self.n_windows, generator=draw)


class PairBatch(NamedTuple):
    """Sources and targets, padded on the right, and which tokens are real.

    Shapes:
        src (B, S), tgt (B, T) int64; src_keep (B, S), tgt_keep (B, T) bool
    """

    src: Tensor
    tgt: Tensor
    src_keep: Tensor
    tgt_keep: Tensor


class PairBatches:
    """Batches of (source, target) pairs of like lengths, so that little is padding.

    Each epoch shuffles the pairs, sorts stretches of 50 batches by length, cuts these
    into batches and shuffles the batches: every pair is read once an epoch.

    Args:
        pairs: ids of source and target, begin and end marks included where wanted.
        batch: pairs in a batch; the last of an epoch may have fewer.
        pad: the id that fills the rows.

    >>> batches = PairBatches([([1, 2], [3]), ([4], [5, 6])], batch=2)
    >>> batches(0).src_keep.sum().item(), tuple(batches(0).tgt.shape)
    (3, (2, 2))

    Taught in: book/01_recurrence.ipynb, book/06_transformer_2017.ipynb
    """

    def __init__(
        self, pairs: Sequence[tuple[Ids, Ids]], batch: int, pad: int = 0, seed: int = 0
    ):
        if batch < 1 or not len(pairs):
            raise ValueError(
                f"batch must be ≥ 1 and pairs not empty, got {batch} and {len(pairs)}"
            )
        for i, pair in enumerate(pairs):
            if len(pair) != 2 or not len(pair[0]) or not len(pair[1]):
                raise ValueError(f"pair {i} must be two lists of ids, got {pair!r}")
        self.pairs, self.batch, self.pad, self.seed = pairs, batch, pad, seed
        self.n_batches = -(-len(pairs) // batch)  # an epoch
        self._latest: tuple[int, list[list[int]]] = (-1, [])  # remembered, for speed

    def __call__(self, number: int) -> PairBatch:
        _check_number(number)
        epoch, place = divmod(number, self.n_batches)
        if self._latest[0] != epoch:
            self._latest = (epoch, self._epoch(epoch))
        chosen = [self.pairs[i] for i in self._latest[1][place]]
        src, src_keep = padded([source for source, _ in chosen], self.pad)
        tgt, tgt_keep = padded([target for _, target in chosen], self.pad)
        return PairBatch(src, tgt, src_keep, tgt_keep)

    def _epoch(self, epoch: int) -> list[list[int]]:
        """The pairs' numbers, batch by batch."""
        order = _shuffled(len(self.pairs), self.seed, epoch)
        pool, batches = _POOL * self.batch, []
        for start in range(0, len(order), pool):
            alike = sorted(order[start : start + pool], key=self._lengths)
            batches += [
                alike[i : i + self.batch] for i in range(0, len(alike), self.batch)
            ]
        return [batches[i] for i in _shuffled(len(batches), self.seed, epoch, 1)]

    def _lengths(self, i: int) -> tuple[int, int]:
        source, target = self.pairs[i]
        return len(source), len(target)


def padded(rows: Sequence[Ids], pad: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ids, filled up on the right; and which of them are real.

    Shapes:
        B rows, the longest of T ids → (B, T) int64, (B, T) bool

    >>> padded([[7, 8], [9]])[0].tolist()
    [[7, 8], [9, 0]]
    """
    if not isinstance(pad, int) or isinstance(pad, bool):
        raise TypeError(f"pad must be an id, got {pad!r}")
    if not len(rows) or not all(len(row) for row in rows):
        raise ValueError("expected rows of at least one id each")
    lengths = torch.tensor([len(row) for row in rows])
    keep = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T)
    ids = torch.full(keep.shape, pad, dtype=torch.long)
    ids[keep] = torch.tensor([i for row in rows for i in row])
    return ids, keep


def read_pronunciations(path: str | Path) -> dict[str, list[tuple[str, ...]]]:
    """A pronouncing dictionary in the format of CMUdict: word → its pronunciations.

    A line is a word and its phonemes; `word(2)` is another pronunciation of it;
    `# …` at a line's end and lines after `;;;` are remarks.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line, named by its number, has a word and no phonemes.

    Taught in: book/01_recurrence.ipynb
    """
    found: dict[str, list[tuple[str, ...]]] = {}
    text = Path(path).read_text(encoding="utf-8")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith(";;;") or not line.strip():
            continue
        word, *phonemes = line.split(" #")[0].split()
        if not phonemes:
            raise ValueError(f"{path}, line {number}: no phonemes for {word!r}")
        found.setdefault(re.sub(r"\(\d+\)$", "", word), []).append(tuple(phonemes))
    return found


def without_stress(phonemes: Sequence[str]) -> tuple[str, ...]:
    """Phonemes without the digit that marks a vowel's stress.

    >>> without_stress(("AH0", "T", "EH1", "N"))
    ('AH', 'T', 'EH', 'N')
    """
    return tuple(phoneme.rstrip("012") for phoneme in phonemes)


def seeded(*numbers: int) -> torch.Generator:
    """A generator of its own for each tuple of numbers: a seed, a batch's number.

    Note:
        Torch's keeps 32 bits of a seed, so the tuple is hashed into as many.

    >>> int(torch.randint(100, (), generator=seeded(0, 7)))
    57

    Taught in: book/08_gpt.ipynb
    """
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


def _shuffled(n: int, *numbers: int) -> list[int]:
    return torch.randperm(n, generator=seeded(*numbers)).tolist()


def _check_number(number: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(
            f"the number of a batch must be an integer ≥ 0, got {number!r}"
        )


def _check_stream(tokens: Tensor) -> None:
    if not isinstance(tokens, Tensor):
        raise TypeError(f"tokens must be a tensor, got {type(tokens).__name__}")
    if tokens.dim() != 1 or not len(tokens):
        raise ValueError(f"tokens must be (N,), N ≥ 1, got {tuple(tokens.shape)}")
