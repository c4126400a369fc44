# SPDX-License-Identifier: MIT
"""How are sublayers joined so that they can be stacked?"""

from collections.abc import Callable
from types import NoneType
from typing import NamedTuple

from torch import Tensor, nn

from deepdive.cache import Cache, Caches, DecoderLayerCache
from deepdive.inputs import check_batch, check_kind, check_vectors
from deepdive.kernels.contract import check_mask
from deepdive.masks import Causal, Rule, check_keep
from deepdive.positions import token_positions

Residual = Callable[[Tensor, Callable[[Tensor], Tensor], nn.Module], Tensor]


def post_norm(
    x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module
) -> Tensor:
    """norm(x + sublayer(x)): the order of the 2017 paper (§3.1), and of BERT.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Taught in: book/05_block.ipynb
    """
    return norm(x + sublayer(x))


def pre_norm(
    x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module
) -> Tensor:
    """x + sublayer(norm(x)): the order of GPT-2 (§2.3) and of almost every model since.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Taught in: book/05_block.ipynb
    """
    return x + sublayer(norm(x))


class Block(nn.Module):
    """Attention, then a feed-forward network, each with a residual path around it.

    It receives built sublayers, so a new kind of attention or feed-forward network
    needs no change here. A decoder that reads an encoder has a third sublayer between
    the two: cross-attention to the encoder's output.

    Shapes:
        x (B, T, d_model), memory (B, S, d_model) → (B, T, d_model); whatever else is
        passed, such as a mask or a cache, goes to the attention

    Args:
        residual: `post_norm` or `pre_norm`.
        dropout: share of each sublayer's output that is dropped in training.
        memory_mask: who of the encoder's positions may be read.
        cache: of the attention; a `DecoderLayerCache` where there are two.

    Raises:
        ValueError: cross-attention without its norm, or without a memory to read; x of
            another width.  TypeError: parts that are no modules; x of another dtype.

    Source: Vaswani et al. 2017, §3.1.

    Taught in: book/05_block.ipynb
    """

    def __init__(
        self,
        attention: nn.Module,
        feedforward: nn.Module,
        attention_norm: nn.Module,
        feedforward_norm: nn.Module,
        residual: Residual,
        cross_attention: nn.Module | None = None,
        cross_norm: nn.Module | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        parts = {
            "attention": attention,
            "attention_norm": attention_norm,
            "feedforward": feedforward,
            "feedforward_norm": feedforward_norm,
        }
        for name, part in parts.items():
            check_kind(name, part, nn.Module)
        check_kind("cross_attention", cross_attention, nn.Module, NoneType)
        check_kind("cross_norm", cross_norm, nn.Module, NoneType)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in 0 … 1, 1 excluded, got {dropout}")
        if not callable(residual):
            raise TypeError(f"residual must be pre_norm or post_norm, got {residual!r}")
        if (cross_attention is None) != (cross_norm is None):
            raise ValueError("cross_attention and cross_norm come together or not")
        self.attention, self.attention_norm = attention, attention_norm
        self.cross_attention, self.cross_norm = cross_attention, cross_norm
        self.feedforward, self.feedforward_norm = feedforward, feedforward_norm
        self.residual = residual
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        memory_mask: Tensor | Rule | None = None,
        cache: Cache | DecoderLayerCache | None = None,
        **how,
    ) -> Tensor:
        gain = getattr(self.attention_norm, "weight", None)
        if isinstance(gain, Tensor) and gain.dim() == 1 and gain.numel() > 1:
            check_vectors("x", x, gain[None])  # its width is the block's
        if self.cross_attention is None and memory is not None:
            raise ValueError("this block has no cross-attention to read a memory with")
        if self.cross_attention is not None and memory is None:
            raise ValueError("cross-attention needs a memory to read, got None")
        own, kept = cache, None
        if isinstance(cache, DecoderLayerCache):
            own, kept = cache.own, cache.memory
        if memory is not None:  # now: later on, x's keys would stand in the cache
            _check_memory(x, memory, memory_mask, kept)
        if own is not None:
            how["cache"] = own

        def attend(h: Tensor) -> Tensor:
            return self.dropout(self.attention(h, **how))

        def read(h: Tensor) -> Tensor:
            read = self.cross_attention(h, memory, mask=memory_mask, cache=kept)
            return self.dropout(read)

        def think(h: Tensor) -> Tensor:
            return self.dropout(self.feedforward(h))

        x = self.residual(x, attend, self.attention_norm)
        if self.cross_attention is not None:
            x = self.residual(x, read, self.cross_norm)
        return self.residual(x, think, self.feedforward_norm)


def _check_memory(x: Tensor, memory: Tensor, mask, kept: Cache | None) -> None:
    """The encoder's output must fit x, its own mask, and what is kept of it."""
    check_kind("x", x, Tensor)
    check_vectors("memory", memory, x.flatten(0, -2) if x.dim() > 1 else x[None])
    B, S = memory.shape[:2]
    if len(x) != B:
        raise ValueError(f"memory of batch {B} does not fit x {tuple(x.shape)}")
    if isinstance(mask, Rule):
        check_mask(mask, (B, 1, x.shape[1], S))
    if kept is not None and kept.held not in (0, S):
        raise ValueError(f"a memory of {kept.held} positions is kept, got one of {S}")


class Stack(nn.ModuleList):
    """Blocks one after another, each with its own cache.

    Shapes:
        x (B, T, d_model) → (B, T, d_model); whatever else is passed goes to every block

    Raises:
        ValueError: another number of caches than of blocks.
        TypeError: caches that are no `Caches`.

    Taught in: book/05_block.ipynb
    """

    def forward(self, x: Tensor, caches: Caches | None = None, **how) -> Tensor:
        for block, cache in zip(self, self.one_each(caches), strict=True):
            x = block(x, cache=cache, **how)
        return x

    def one_each(self, caches: Caches | None) -> list:
        """The caches, or as many times None."""
        check_kind("caches", caches, Caches, NoneType)
        if caches is None:
            return [None] * len(self)
        if len(caches) != len(self):
            raise ValueError(f"{len(self)} layers need as many caches, {len(caches)}")
        return caches


class Place(NamedTuple):
    """Where a decoder's new tokens stand, and whom they may look at.

    Shapes:
        positions (T,) or (B, T); mask a rule over S ≥ T keys

    Taught in: book/05_block.ipynb
    """

    positions: Tensor
    mask: Causal


def place(
    tokens: Tensor,
    caches: Caches | None = None,
    keep: Tensor | None = None,
    positions: Tensor | None = None,
    window: int | None = None,
    max_seq_len: int | None = None,
) -> Place:
    """Put T new tokens behind those that the caches have seen.

    Positions count real tokens only, so that a prompt padded on the left is read as if
    it stood alone.

    Shapes:
        tokens (B, T), keep (B, seen + T) bool, True = a real token,
        positions (T,) or (B, T)

    Raises:
        ValueError: a shape is wrong, or more than `max_seq_len` tokens.
        TypeError: not tensors of the right kind.

    Taught in: book/10_kv_cache.ipynb
    """
    check_batch(tokens)
    check_kind("caches", caches, Caches, NoneType)
    (B, T), seen = tokens.shape, 0 if caches is None else caches.seen
    if max_seq_len is not None and seen + T > max_seq_len:
        raise ValueError(
            f"{seen} tokens seen and {T} new ones are more than max_seq_len "
            f"{max_seq_len}"
        )
    held = T if caches is None else caches.columns(T)
    if keep is not None:
        check_keep(keep)
        if tuple(keep.shape) != (B, seen + T):
            raise ValueError(
                f"keep must be ({B}, {seen + T}), {seen} tokens seen and {T} new, got "
                f"{tuple(keep.shape)}"
            )
    if positions is None:
        positions = token_positions(T, seen, keep, tokens.device)
    elif not isinstance(positions, Tensor):
        raise TypeError(f"positions must be a tensor, got {type(positions).__name__}")
    elif tuple(positions.shape) not in ((T,), (B, T)):
        raise ValueError(
            f"positions must be ({T},) or ({B}, {T}), got {tuple(positions.shape)}"
        )
    mask = Causal(window, keep=None if keep is None else keep[:, -held:])
    return Place(positions, mask)
