# SPDX-License-Identifier: MIT
"""Which halves of the Transformer are built? What all models of a kind have in common.

Models that only decode differ in their blocks and in where positions enter, and so do
those of two halves: that is what their files say. The rest is here.

Taught in: book/06_transformer_2017.ipynb, book/08_gpt.ipynb
"""

import torch
from torch import Tensor, nn

from deepdive.cache import (
    Caches,
    DecoderLayerCache,
    GrowingCache,
    Memory,
    PreallocatedCache,
    WindowedCache,
)
from deepdive.inputs import check_vectors


class Decoder(nn.Module):
    """A stack of causal blocks between an embedding and an output layer.

    A model sets `config`, `blocks` and `output`, and says in `hidden` how tokens become
    vectors and where positions enter.

    Shapes:
        tokens (B, T) → logits (B, T, V); V = vocab_size
        keep (B, seen + T) bool, False = padding; positions (T,) or (B, T)

    Args:
        caches: what `new_caches` gave; tokens are then the new ones behind those seen.

    Raises:
        ValueError: an id outside the vocabulary, more tokens than `max_seq_len`, or
            another number of caches than of layers; shapes that do not fit.
        TypeError: ids that are not integers, or a `keep` that is not boolean.

    Taught in: book/08_gpt.ipynb
    """

    def forward(
        self,
        tokens: Tensor,
        caches: Caches | None = None,
        keep: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        return self.logits(self.hidden(tokens, caches, keep, positions))

    def hidden(
        self,
        tokens: Tensor,
        caches: Caches | None = None,
        keep: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """What the last block gives, normalised: (B, T) → (B, T, d_model)."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """A score for each word as the next one: (B, T, d_model) → (B, T, V)."""
        check_vectors("hidden", hidden, self.output.weight)
        return self.output(hidden)

    def new_caches(self, capacity: int | None = None, spare: int = 0) -> Caches:
        """Empty caches, one per layer.

        Args:
            capacity: room for so many tokens from the start; growing unless given. A
                model with a window keeps its window's tokens and needs none.
            spare: tokens beyond the window, so that a draft can be taken back.
        """
        window = getattr(self.config, "window", None)
        if window is not None:
            return Caches(WindowedCache(window, spare) for _ in self.blocks)
        if capacity is None:
            return Caches(GrowingCache() for _ in self.blocks)
        return Caches(PreallocatedCache(capacity) for _ in self.blocks)


class EncoderDecoder(nn.Module):
    """An encoder reads the source both ways; a decoder writes the target in order.

    A model sets `decoder` and says how to `encode` and to `decode`.

    Shapes:
        src (B, S), tgt (B, T) → logits (B, T, V) of each target token's successor
        src_keep (B, S), tgt_keep (B, T) bool, False = padding

    Raises:
        ValueError: an id outside its vocabulary, or shapes that do not fit.
        TypeError: ids that are not integers, or a keep that is not boolean.

    Taught in: book/06_transformer_2017.ipynb
    """

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_keep: Tensor | None = None,
        tgt_keep: Tensor | None = None,
    ) -> Tensor:
        return self.decode(tgt, self.encode(src, src_keep), src_keep, keep=tgt_keep)

    def encode(self, src: Tensor, keep: Tensor | None = None) -> Tensor:
        """The source, read both ways: (B, S) → memory (B, S, d_model)."""
        raise NotImplementedError

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_keep: Tensor | None = None,
        caches: Caches | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        """What may come next after each target token: (B, T) → logits (B, T, V)."""
        raise NotImplementedError

    def new_caches(self) -> Caches:
        """Empty caches for the decoder: its own tokens', and the memory's."""
        return Caches(DecoderLayerCache(GrowingCache(), Memory()) for _ in self.decoder)


@torch.no_grad()
def start(model: Decoder) -> None:
    """Random weights to train from, after GPT-2's: N(0, 0.02²), biases 0.

    Each layer adds to the residual path twice, so the matrices that do are drawn
    smaller by √(2 n_layers): the path's variance then starts alike at any depth. (The
    paper says 1/√N for N residual layers; N is read as both sublayers of each.)

    Note:
        GPT-2's released code draws positions with 0.01 and has no such factor. Llama's
        and Mixtral's papers do not say how theirs began. DeepSeek's began with 0.006
        everywhere (V2 §3.1.2, V3 §4.2), at widths of 5,120 and more; the book's are
        much narrower.

    Source: Radford et al. 2019, §2.3.
    """
    last = (".o_proj.weight", ".down.weight", ".experts.down")
    small = 0.02 / (2 * len(model.blocks)) ** 0.5
    for name, x in model.named_parameters():
        if x.dim() >= 2:
            x.normal_(std=small if name.endswith(last) else 0.02)
        elif name.endswith("bias"):
            x.zero_()
