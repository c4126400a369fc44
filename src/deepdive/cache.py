# SPDX-License-Identifier: MIT
"""What must a decoder remember, so that no key or value is computed twice?

One cache per attention layer. `append` takes what a layer computed for the new tokens
and gives back all that it holds, in order, the new ones last: keys and values, two
tensors (B, G, S, D), or in latent attention a single one. A cache knows nothing of
padding and of positions; the caller passes `keep` and `positions`.

Taught in: book/10_kv_cache.ipynb
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor


class Cache(ABC):
    """What all caches share: the entries, how many, how large, and two corrections.

    Attributes:
        seen: tokens ever appended, which is the next token's position.

    Shapes:
        every entry (B, heads, S, width), tokens along axis −2
    """

    def __init__(self):
        self.seen = 0
        self._store: tuple[Tensor, ...] = ()

    def append(self, *entries: Tensor) -> tuple[Tensor, ...]:
        """Add the new tokens' entries; return all that are held, the new ones last.

        Column j of the S that come back has position seen − S + j.

        Raises:
            TypeError: not tensors, or another dtype.  ValueError: the entries differ in
                batch or length, or do not fit what is held, or there is no room.
        """
        _check_entries(entries, self._store, self.held)
        held = self._join(entries)
        self.seen += entries[0].shape[-2]
        return held

    @abstractmethod
    def _join(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Store entries that have been checked; return all that the queries may use."""

    @property
    def entries(self) -> tuple[Tensor, ...]:
        """What is held, as `append` returned it last, less what was dropped since."""
        return self._store

    @property
    def held(self) -> int:
        """Tokens whose entries are still here."""
        return self._store[0].shape[-2] if self._store else 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the store takes up."""
        return sum(x.numel() * x.element_size() for x in self._store)

    def columns(self, T: int) -> int:
        """How many tokens' entries `append` will return for T new ones: S."""
        return self.held + T

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens, as if the rest had never been appended.

        Raises:
            ValueError: n is negative or above `seen`.
        """
        _check_count(n, self.seen)
        drop = self.seen - n
        store = (x[..., : x.shape[-2] - drop, :] for x in self._store)
        self._store = tuple(store) if n else ()  # another batch may follow
        self.seen = n

    def reorder(self, rows: Tensor) -> None:
        """Put the batch's rows in another order; a row may be repeated or left out.

        Shapes:
            rows (B',) int64, each in 0 … B − 1

        Raises:
            TypeError, ValueError: rows are no such numbers.
        """
        if self._store:
            _check_rows(rows, self._store[0].shape[0])
        self._take(rows)

    def _take(self, rows: Tensor) -> None:
        """`reorder` with rows that have been checked."""
        self._store = tuple(x.index_select(0, rows) for x in self._store)

    @property
    def batch(self) -> int | None:
        """Rows that are held; None while nothing is."""
        return self._store[0].shape[0] if self._store else None


class GrowingCache(Cache):
    """Join old and new at each step: plain, and it copies what it holds every time.

    >>> cache = GrowingCache()
    >>> k = v = torch.zeros(1, 2, 3, 4)            # 3 tokens, 2 heads of width 4
    >>> _ = cache.append(k, v)
    >>> keys, values = cache.append(k[:, :, :1], v[:, :, :1])
    >>> keys.shape[-2], cache.seen, cache.nbytes
    (4, 4, 256)

    Taught in: book/10_kv_cache.ipynb
    """

    def _join(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._store:
            entries = tuple(
                torch.cat((old, new), dim=-2)
                for old, new in zip(self._store, entries, strict=True)
            )
        else:
            entries = tuple(map(_alone, entries))
        self._store = entries
        return self._store


class PreallocatedCache(Cache):
    """Room for `capacity` tokens, taken once; each step writes only its own tokens.

    What `append` returns are views of the store: they are not to be written to. The
    entries carry no gradient.

    Raises:
        ValueError: at `append`, if the tokens would not fit; nothing is stored then.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, capacity: int):
        super().__init__()
        if not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"capacity must be an integer ≥ 1, got {capacity!r}")
        self.capacity = capacity

    def _join(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        T = entries[0].shape[-2]
        if self.seen + T > self.capacity:
            raise ValueError(
                f"a cache for {self.capacity} tokens holds {self.seen} and cannot take "
                f"{T} more"
            )
        if not self._store:
            self._store = tuple(
                x.new_empty(*x.shape[:-2], self.capacity, x.shape[-1]) for x in entries
            )
        for store, new in zip(self._store, entries, strict=True):
            store.narrow(-2, self.seen, T).copy_(new.detach())
        return tuple(x.narrow(-2, 0, self.seen + T) for x in self._store)

    @property
    def entries(self) -> tuple[Tensor, ...]:
        return tuple(x[..., : self.seen, :] for x in self._store)

    @property
    def held(self) -> int:
        return self.seen

    def truncate(self, n: int) -> None:
        _check_count(n, self.seen)
        self.seen = n
        self._store = self._store if n else ()


class WindowedCache(Cache):
    """Keep the newest `window` tokens: all that a layer with that window can still see.

    `append` returns up to window − 1 older tokens and **all** the new ones, so that
    each query of a chunk finds its whole window; then it drops the oldest.

    Args:
        spare: keep this many more, so that `truncate` can take back up to 1 + spare.

    Source: the rolling buffer of Mistral 7B (Jiang et al. 2023, §2), in order.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, window: int, spare: int = 0):
        super().__init__()
        for name, value, least in (("window", window, 1), ("spare", spare, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer ≥ {least}, got {value!r}")
        self.window, self.spare = window, spare

    def _join(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._store:
            older = min(self.held, self.window - 1)
            entries_all = tuple(
                torch.cat((old, new), dim=-2)
                for old, new in zip(self._store, entries, strict=True)
            )
        else:
            older, entries_all = 0, entries
        total, new = entries_all[0].shape[-2], entries[0].shape[-2]
        kept = min(total, self.window + self.spare)
        # A copy, or the view would hold on to the memory of what was dropped.
        self._store = tuple(
            x if kept == total else x[..., total - kept :, :].clone()
            for x in entries_all
        )
        return tuple(x[..., total - older - new :, :] for x in entries_all)

    def columns(self, T: int) -> int:
        return min(self.held, self.window - 1) + T

    def truncate(self, n: int) -> None:
        """As for every cache, as long as the next query would find its whole window.

        Raises:
            ValueError: tokens are needed that were dropped.
        """
        _check_count(n, self.seen)
        left = self.held - (self.seen - n)
        if left < min(n, self.window - 1):
            raise ValueError(
                f"cannot go back to {n} tokens: of {self.seen} seen only the last "
                f"{self.held} are held, and a window of {self.window} needs more; make "
                f"the cache with a larger `spare`"
            )
        super().truncate(n)


class Memory(Cache):
    """The encoder's keys and values for cross-attention: filled once, then only read.

    Taught in: book/10_kv_cache.ipynb
    """

    def _join(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._store:
            raise ValueError(f"the memory already holds {self.held} tokens")
        self._store = entries
        return self._store

    def truncate(self, n: int) -> None:
        """The source's keys stay: only the target's tokens are taken back."""
        _check_count(n, self.seen)


class DecoderLayerCache:
    """What a decoder layer remembers: its own tokens, and the encoder's, once.

    `seen`, `held` and `truncate` speak of its own tokens alone.
    """

    def __init__(self, own: Cache, memory: Memory):
        if not isinstance(own, Cache) or not isinstance(memory, Memory):
            raise TypeError(
                f"expected a cache and a Memory, got {type(own).__name__} and "
                f"{type(memory).__name__}"
            )
        self.own, self.memory = own, memory

    @property
    def seen(self) -> int:
        return self.own.seen

    @property
    def held(self) -> int:
        return self.own.held

    @property
    def nbytes(self) -> int:
        return self.own.nbytes + self.memory.nbytes

    def columns(self, T: int) -> int:
        return self.own.columns(T)

    def truncate(self, n: int) -> None:
        self.own.truncate(n)

    def reorder(self, rows: Tensor) -> None:
        for part in (self.own, self.memory):
            part.reorder(rows)

    def _take(self, rows: Tensor) -> None:
        for part in (self.own, self.memory):
            part._take(rows)

    @property
    def batch(self) -> int | None:
        """Rows that are held; None while nothing is."""
        return self.own.batch


class Caches(list):
    """One cache per layer, spoken to as one.

    Raises:
        TypeError: something among them is no cache.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, caches: Iterable[Cache | DecoderLayerCache] = ()):
        super().__init__(caches)
        for cache in self:
            if not isinstance(cache, Cache | DecoderLayerCache):
                raise TypeError(f"caches must be caches, got {type(cache).__name__}")

    @property
    def seen(self) -> int:
        """Tokens that every layer has seen."""
        return self[0].seen if self else 0

    @property
    def held(self) -> int:
        """Tokens that the first layer still holds."""
        return self[0].held if self else 0

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self)

    def columns(self, T: int) -> int:
        """Key columns that every layer will have with T new tokens: S."""
        return self[0].columns(T) if self else T

    def truncate(self, n: int) -> None:
        for cache in self:
            cache.truncate(n)

    def reorder(self, rows: Tensor) -> None:
        if self and self[0].batch is not None:  # once, for all layers
            _check_rows(rows, self[0].batch)
        for cache in self:
            cache._take(rows)


def _alone(x: Tensor) -> Tensor:
    """x, or a copy where it is a view into something larger, which would stay alive."""
    return x if x.untyped_storage().nbytes() <= x.nbytes else x.clone()


def _check_entries(entries, store: tuple[Tensor, ...], held: int) -> None:
    """Tensors of one batch and length, which fit what is held."""
    if not entries:
        raise ValueError("append needs at least one tensor, got none")
    for x in entries:
        if not isinstance(x, Tensor):
            raise TypeError(f"entries must be tensors, got {type(x).__name__}")
        if x.dim() != 4 or x.shape[-2] < 1:
            raise ValueError(
                f"an entry must be (B, heads, T ≥ 1, width), got {tuple(x.shape)}"
            )
    first = entries[0].shape
    if any((x.shape[0], x.shape[2]) != (first[0], first[2]) for x in entries):
        shapes = ", ".join(str(tuple(x.shape)) for x in entries)
        raise ValueError(f"entries differ in batch or length: {shapes}")
    if not store:
        return
    if len(store) != len(entries):
        raise ValueError(f"{len(store)} tensors are held, got {len(entries)}")
    for old, new in zip(store, entries, strict=True):
        if (*old.shape[:2], old.shape[3]) != (*new.shape[:2], new.shape[3]):
            raise ValueError(
                f"entries {tuple(new.shape)} do not fit the {held} held tokens "
                f"{tuple(old.shape)}"
            )
        if old.dtype != new.dtype or old.device != new.device:
            raise TypeError(
                f"entries are {new.dtype} on {new.device}, what is held is "
                f"{old.dtype} on {old.device}"
            )


def _check_count(n: int, seen: int) -> None:
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"the number of tokens must be an integer, got {n!r}")
    if not 0 <= n <= seen:
        raise ValueError(f"cannot go back to {n} tokens: {seen} were seen")


def _check_rows(rows: Tensor, B: int) -> None:
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.dim() != 1:
        raise TypeError(f"rows must be a vector of int64 row numbers, got {rows!r}")
    if rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) < B):
        raise ValueError(f"rows must lie in 0 … {B - 1}, got {rows.tolist()}")
