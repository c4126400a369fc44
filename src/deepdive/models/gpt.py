# SPDX-License-Identifier: MIT
"""What if a stack of decoder blocks only ever guesses the next token? GPT-2.

Source: Radford et al. 2019, §2.3 and Table 2.

Taught in: book/08_gpt.ipynb
"""

from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, Stack, place, pre_norm
from deepdive.cache import Caches
from deepdive.configs import GptConfig
from deepdive.feedforward import FeedForward
from deepdive.halves import Decoder, start
from deepdive.inputs import check_ids, check_kind
from deepdive.positions import LearnedPositions


class Gpt(Decoder):
    """The decoder half of the Transformer alone: causal, pre-norm, learned positions.

    Shapes:
        tokens (B, T) → logits (B, T, V); V = vocab_size
        keep (B, seen + T) bool, False = padding; positions (T,) or (B, T)

    Args:
        caches: what `new_caches` gave; tokens are then the new ones behind those seen.

    Raises:
        ValueError: an id outside the vocabulary, more tokens than `max_seq_len`, or
            another number of caches than of layers; shapes that do not fit.
        TypeError: ids that are not integers, or a `keep` that is not boolean.

    Note:
        The output layer is the embedding matrix, one and the same parameter. Dropout
        acts on the embeddings and on each sublayer's output; GPT-2 dropped attention
        weights as well.

    >>> import torch
    >>> model = Gpt(GptConfig(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=16))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 9])

    Taught in: book/08_gpt.ipynb
    """

    def __init__(self, config: GptConfig):
        super().__init__()
        check_kind("config", config, GptConfig)
        self.config = config
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.position = LearnedPositions(config.max_seq_len, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = Stack(build_block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.output.weight = self.token.weight
        start(self)

    def hidden(
        self,
        tokens: Tensor,
        caches: Caches | None = None,
        keep: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """What the last block gives, normalised: (B, T) → (B, T, d_model)."""
        longest = self.config.max_seq_len
        here = place(tokens, caches, keep, positions, max_seq_len=longest)
        check_ids("token", tokens, self.config.vocab_size)
        x = self.dropout(self.token(tokens) + self.position(here.positions))
        return self.norm(self.blocks(x, caches, mask=here.mask))


def build_block(config: GptConfig) -> Block:
    """One layer: attention and a GELU network, both with biases and pre-norm."""
    gelu = nn.GELU(approximate="tanh")  # the released model's approximation
    return Block(
        attention=MultiHeadAttention(config.d_model, config.n_heads, bias=True),
        feedforward=FeedForward(config.d_model, config.d_ff, gelu),
        attention_norm=nn.LayerNorm(config.d_model, eps=config.norm_eps),
        feedforward_norm=nn.LayerNorm(config.d_model, eps=config.norm_eps),
        residual=pre_norm,
        dropout=config.dropout,
    )
