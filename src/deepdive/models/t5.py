# SPDX-License-Identifier: MIT
"""What if every task is text in, text out? T5, both halves of the Transformer again.

Source: Raffel et al. 2019 (arXiv:1910.10683), §2.1; version 1.1 is from the release.

Taught in: book/09_t5.ipynb
"""

import torch
from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, Stack, place, pre_norm
from deepdive.cache import Caches
from deepdive.configs import T5Config
from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.halves import EncoderDecoder
from deepdive.inputs import check_batch, check_ids, check_kind
from deepdive.masks import Everyone
from deepdive.norms import RMSNorm
from deepdive.positions import RelativeBias


class T5(EncoderDecoder):
    """An encoder–decoder with a learned bias for distance and no other positions.

    Shapes:
        src (B, S), tgt (B, T) → logits (B, T, V) of each target token's successor
        src_keep (B, S), tgt_keep (B, T) bool, False = padding

    Raises:
        ValueError: an id outside the vocabulary, or shapes that do not fit.
        TypeError: ids that are not integers, or a keep that is not boolean.

    Note:
        Scores are not divided by √D: the start of the query weights allows for it. The
        first version (`tied`) multiplies what its output layer reads by d_model^−½;
        1.1, whose output layer is a matrix of its own, does not.

    Taught in: book/09_t5.ipynb
    """

    def __init__(self, config: T5Config):
        super().__init__()
        check_kind("config", config, T5Config)
        self.config, layers = config, range(config.n_layers)
        sizes = config.n_buckets, config.max_distance
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder_bias = RelativeBias(config.n_heads, True, *sizes)
        self.decoder_bias = RelativeBias(config.n_heads, False, *sizes)
        self.encoder = Stack(build_block(config) for _ in layers)
        self.decoder = Stack(build_block(config, cross=True) for _ in layers)
        self.encoder_norm = RMSNorm(config.d_model, config.norm_eps)
        self.decoder_norm = RMSNorm(config.d_model, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        start(self)
        if config.tied:
            self.output.weight = self.token.weight

    def encode(self, src: Tensor, keep: Tensor | None = None) -> Tensor:
        """The source, read both ways: (B, S) → memory (B, S, d_model)."""
        check_batch(src, keep=keep)
        check_ids("source", src, self.config.vocab_size)
        at = torch.arange(src.shape[1], device=src.device)
        bias = self.encoder_bias(at, at)  # (1, H, S, S), for every layer
        x = self.dropout(self.token(src))
        x = self.encoder(x, mask=Everyone(keep), bias=bias)
        return self.dropout(self.encoder_norm(x))

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_keep: Tensor | None = None,
        caches: Caches | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        """What may come next after each target token: (B, T) → logits (B, T, V)."""
        here = place(tgt, caches, keep)
        check_ids("target", tgt, self.config.vocab_size)
        T = tgt.shape[1]
        keys = torch.arange(
            T if caches is None else caches.columns(T), device=tgt.device
        )
        how = {"mask": here.mask, "bias": self.decoder_bias(keys[-T:], keys)}
        source = {"memory": memory, "memory_mask": Everyone(memory_keep)}
        x = self.dropout(self.token(tgt))
        x = self.decoder_norm(self.decoder(x, caches, **how, **source))
        scale = self.config.d_model**-0.5 if self.config.tied else 1.0
        return self.output(self.dropout(x) * scale)


def build_block(config: T5Config, cross: bool = False) -> Block:
    """One layer, pre-norm and without biases; the decoder's with cross-attention."""
    sizes = config.d_model, config.d_ff
    if config.gated:
        feedforward = GatedFeedForward(*sizes, nn.GELU(approximate="tanh"))
    else:
        feedforward = FeedForward(*sizes, nn.ReLU(), bias=False)
    return Block(
        attention=build_attention(config),
        feedforward=feedforward,
        attention_norm=RMSNorm(config.d_model, config.norm_eps),
        feedforward_norm=RMSNorm(config.d_model, config.norm_eps),
        residual=pre_norm,
        cross_attention=build_attention(config) if cross else None,
        cross_norm=RMSNorm(config.d_model, config.norm_eps) if cross else None,
        dropout=config.dropout,
    )


def build_attention(config: T5Config) -> MultiHeadAttention:
    """Heads whose joint width need not be d_model, and scores without 1/√D."""
    return MultiHeadAttention(
        config.d_model, config.n_heads, head_dim=config.head_dim, scale=1.0
    )


@torch.no_grad()
def start(model: T5) -> None:
    """Random weights to train from, after the release.

    Each matrix N(0, 1/fan_in), the query's smaller by √D in the place of 1/√D on the
    scores; the embedding N(0, 1).
    """
    config = model.config
    inner = config.n_heads * config.head_dim
    usual = "k_proj", "v_proj", "up", "gate", "output", "table"
    std = dict.fromkeys(usual, config.d_model**-0.5) | {
        "q_proj": (config.d_model * config.head_dim) ** -0.5,
        "o_proj": inner**-0.5,
        "down": config.d_ff**-0.5,
        "token": 1.0,
    }
    for name, x in model.named_parameters():
        if x.dim() == 2:
            x.normal_(std=std[name.split(".")[-2]])
