# SPDX-License-Identifier: MIT
"""What if every word may look both ways? BERT's encoder, from the parts.

Source: Devlin et al. 2018 (arXiv:1810.04805), §3 and appendix A.
"""

import torch
from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, post_norm
from deepdive.configs import BertConfig
from deepdive.feedforward import FeedForward
from deepdive.masks import Everyone
from deepdive.positions import LearnedPositions, default_positions


class BertEmbeddings(nn.Module):
    """Word + position + segment, normalised: (B, T) ids → (B, T, d_model)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.position = LearnedPositions(config.max_seq_len, config.d_model)
        self.segment = nn.Embedding(config.n_segments, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        position = self.position(default_positions(tokens))
        return self.norm(self.token(tokens) + position + self.segment(segments))


class Bert(nn.Module):
    """The encoder half of the Transformer: post-norm blocks, no causal mask.

    Shapes:
        tokens, segments (B, T) integers, keep (B, T) bool, False = padding
        → hidden states (B, T, d_model)

    Raises:
        ValueError: an id lies outside the vocabulary, or T above `max_seq_len`.
        TypeError: ids that are not integers, or a `keep` that is not boolean.

    Taught in: book/03_multi_head.ipynb
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.blocks = nn.ModuleList(build_block(config) for _ in range(config.n_layers))
        self.pooler = nn.Linear(config.d_model, config.d_model)

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, keep: Tensor | None = None
    ) -> Tensor:
        self._check(tokens, segments, keep)
        segments = torch.zeros_like(tokens) if segments is None else segments
        x = self.embeddings(tokens, segments)
        for block in self.blocks:
            x = block(x, mask=Everyone(keep))
        return x

    def pooled(self, hidden: Tensor) -> Tensor:
        """[CLS], the first position, through one layer: → (B, d_model)."""
        if hidden.dim() != 3 or hidden.shape[-1] != self.config.d_model:
            raise ValueError(
                f"hidden must be (B, T, {self.config.d_model}), got "
                f"{tuple(hidden.shape)}"
            )
        return self.pooler(hidden[:, 0]).tanh()

    def _check(self, tokens: Tensor, segments, keep) -> None:
        """Wrong ids and lengths are named before any work is done."""
        named = {"token": tokens, "segment": segments, "keep": keep}
        for name, x in named.items():
            if not isinstance(x, Tensor) and (x is not None or name == "token"):
                raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        shape, c = tuple(tokens.shape), self.config
        if tokens.dim() != 2 or not 0 < shape[1] <= c.max_seq_len or not shape[0]:
            raise ValueError(f"tokens must be (B, 1 … {c.max_seq_len}), got {shape}")
        for name, ids, size in (
            ("token", tokens, c.vocab_size),
            ("segment", segments, c.n_segments),
        ):
            if ids is None:
                continue
            if ids.dtype not in (torch.int32, torch.int64):
                raise TypeError(f"{name} ids must be int32 or int64, got {ids.dtype}")
            if tuple(ids.shape) != shape:
                raise ValueError(f"{name} ids must be {shape}, got {tuple(ids.shape)}")
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= size:
                raise ValueError(
                    f"{name} ids must lie in 0 … {size - 1}, got {low} … {high}"
                )
        if keep is not None and tuple(keep.shape) != shape:
            raise ValueError(f"keep must be {shape}, got {tuple(keep.shape)}")
        if keep is not None and keep.dtype != torch.bool:
            raise TypeError(f"keep must be bool, True = a word, got {keep.dtype}")


def build_block(config: BertConfig) -> Block:
    """One layer: attention and a GELU feed-forward network, both post-norm."""
    return Block(
        attention=MultiHeadAttention(config.d_model, config.n_heads, bias=True),
        feedforward=FeedForward(config.d_model, config.d_ff, nn.GELU()),
        attention_norm=nn.LayerNorm(config.d_model, eps=config.norm_eps),
        feedforward_norm=nn.LayerNorm(config.d_model, eps=config.norm_eps),
        residual=post_norm,
    )
