# SPDX-License-Identifier: MIT
"""What did the 2017 paper build? An encoder, and a decoder that reads it.

Source: Vaswani et al. 2017 (arXiv:1706.03762), §3.

Taught in: book/06_transformer_2017.ipynb
"""

from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, Residual, Stack, place, post_norm
from deepdive.cache import Caches
from deepdive.configs import TransformerConfig
from deepdive.feedforward import FeedForward
from deepdive.halves import EncoderDecoder
from deepdive.inputs import check_batch, check_ids, check_kind
from deepdive.masks import Everyone
from deepdive.positions import SinusoidalPositions, token_positions


class Transformer(EncoderDecoder):
    """An encoder reads the source both ways; a decoder writes the target in order.

    Shapes:
        src (B, S), tgt (B, T) → logits (B, T, V) of each target token's successor
        src_keep (B, S), tgt_keep (B, T) bool, False = padding

    Args:
        residual: `post_norm` as in the paper; with `pre_norm` each half ends in a norm.
        src_positions, tgt_positions: modules from positions to vectors; the paper's
            sinusoids unless given.

    Raises:
        ValueError: an id outside its vocabulary, or shapes that do not fit.
        TypeError: ids that are not integers, or a keep that is not boolean.

    Note:
        The paper's embeddings are multiplied by √d_model and tied to the output layer,
        which has no bias then. The projections have biases, as in `nn.Transformer`; the
        paper is silent. Positions count real tokens only, so padding shifts nothing.

    Taught in: book/06_transformer_2017.ipynb
    """

    def __init__(
        self,
        config: TransformerConfig,
        residual: Residual = post_norm,
        src_positions: nn.Module | None = None,
        tgt_positions: nn.Module | None = None,
    ):
        super().__init__()
        check_kind("config", config, TransformerConfig)
        self.config, d_model = config, config.d_model
        self.src_token = nn.Embedding(config.src_vocab_size, d_model)
        self.tgt_token = nn.Embedding(config.tgt_vocab_size, d_model)
        self.src_positions = src_positions or SinusoidalPositions(d_model)
        self.tgt_positions = tgt_positions or SinusoidalPositions(d_model)
        self.dropout = nn.Dropout(config.dropout)
        layers = range(config.n_layers)
        self.encoder = Stack(build_block(config, residual) for _ in layers)
        self.decoder = Stack(build_block(config, residual, cross=True) for _ in layers)
        self.encoder_norm, self.decoder_norm = (
            nn.Identity() if residual is post_norm else build_norm(config)
            for _ in ("encoder", "decoder")
        )
        self.output = nn.Linear(d_model, config.tgt_vocab_size, bias=not config.tied)
        start(self)
        if config.tied:
            self.src_token.weight = self.tgt_token.weight = self.output.weight

    def encode(self, src: Tensor, keep: Tensor | None = None) -> Tensor:
        """The source, read both ways: (B, S) → memory (B, S, d_model)."""
        check_batch(src, keep=keep)
        check_ids("source", src, self.src_token.num_embeddings)
        positions = token_positions(src.shape[1], 0, keep, src.device)
        x = self.embed(self.src_token(src), self.src_positions(positions))
        return self.encoder_norm(self.encoder(x, mask=Everyone(keep)))

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_keep: Tensor | None = None,
        caches: Caches | None = None,
        keep: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """What may come next after each target token: (B, T) → logits (B, T, V)."""
        here = place(tgt, caches, keep, positions)
        check_ids("target", tgt, self.tgt_token.num_embeddings)
        x = self.embed(self.tgt_token(tgt), self.tgt_positions(here.positions))
        source = {"memory": memory, "memory_mask": Everyone(memory_keep)}
        x = self.decoder(x, caches, mask=here.mask, **source)
        return self.output(self.decoder_norm(x))

    def embed(self, words: Tensor, positions: Tensor) -> Tensor:
        """√d_model · word + position (§3.4, §3.5)."""
        scaled = words * self.config.d_model**0.5
        return self.dropout(scaled + positions.to(words.dtype))


def build_block(
    config: TransformerConfig, residual: Residual, cross: bool = False
) -> Block:
    """One layer: attention, in the decoder cross-attention too, and a ReLU network."""
    sizes = config.d_model, config.n_heads
    return Block(
        attention=MultiHeadAttention(*sizes, bias=True),
        feedforward=FeedForward(config.d_model, config.d_ff, nn.ReLU()),
        attention_norm=build_norm(config),
        feedforward_norm=build_norm(config),
        residual=residual,
        cross_attention=MultiHeadAttention(*sizes, bias=True) if cross else None,
        cross_norm=build_norm(config) if cross else None,
        dropout=config.dropout,
    )


def build_norm(config: TransformerConfig) -> nn.LayerNorm:
    """One layer norm of the model's width."""
    return nn.LayerNorm(config.d_model, eps=config.norm_eps)


def start(model: Transformer) -> None:
    """Random weights to train from; the paper does not give its own.

    Matrices by Glorot's rule. Embeddings N(0, 1/d_model), so that the factor √d_model
    brings a word's numbers to variance 1, and the tied output's logits start near 0.
    """
    for name, x in model.named_parameters():
        if x.dim() == 2 and "token" not in name and name != "output.weight":
            nn.init.xavier_uniform_(x)
    for layer in (model.src_token, model.tgt_token, model.output):
        nn.init.normal_(layer.weight, std=model.config.d_model**-0.5)
