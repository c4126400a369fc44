# SPDX-License-Identifier: MIT
"""What if every word may look both ways? BERT's encoder, from the parts.

Source: Devlin et al. 2018 (arXiv:1810.04805), §3 and appendix A.

Taught in: book/07_bert.ipynb
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, Stack, post_norm
from deepdive.configs import BertConfig
from deepdive.feedforward import FeedForward
from deepdive.inputs import (
    check_batch,
    check_ids,
    check_kind,
    check_sizes,
    check_vectors,
)
from deepdive.masks import Everyone
from deepdive.positions import LearnedPositions


class BertEmbeddings(nn.Module):
    """Word + position + segment, normalised: (B, T) ids → (B, T, d_model).

    Positions count from column 0, padding included, as in the released models.

    Taught in: book/07_bert.ipynb
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        check_kind("config", config, BertConfig)
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.position = LearnedPositions(config.max_seq_len, config.d_model)
        self.segment = nn.Embedding(config.n_segments, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        check_batch(tokens, segments=segments)
        check_ids("token", tokens, self.token.num_embeddings)
        position = self.position.first(tokens.shape[1])
        if segments is None:
            segment = self.segment.weight[0]  # one text only
        else:
            check_ids("segment", segments, self.segment.num_embeddings)
            segment = self.segment(segments)
        return self.dropout(self.norm(self.token(tokens) + position + segment))


class Bert(nn.Module):
    """The encoder half of the Transformer: post-norm blocks, no causal mask.

    Shapes:
        tokens, segments (B, T) integers, keep (B, T) bool, False = padding
        → hidden states (B, T, d_model)

    Raises:
        ValueError: an id lies outside the vocabulary, or T above `max_seq_len`.
        TypeError: ids that are not integers, or a `keep` that is not boolean.

    Taught in: book/03_multi_head.ipynb, book/07_bert.ipynb
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        check_kind("config", config, BertConfig)
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.blocks = Stack(build_block(config) for _ in range(config.n_layers))
        self.pooler = nn.Linear(config.d_model, config.d_model)

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, keep: Tensor | None = None
    ) -> Tensor:
        check_batch(tokens, keep=keep)
        return self.blocks(self.embeddings(tokens, segments), mask=Everyone(keep))

    def pooled(self, hidden: Tensor) -> Tensor:
        """[CLS], the first position, through one layer: → (B, d_model)."""
        check_vectors("hidden", hidden, self.pooler.weight)
        check_sizes(T=hidden.shape[1])
        return self.pooler(hidden[:, 0]).tanh()


def build_block(config: BertConfig) -> Block:
    """One layer: attention and a GELU feed-forward network, both post-norm."""
    return Block(
        attention=MultiHeadAttention(config.d_model, config.n_heads, bias=True),
        feedforward=FeedForward(config.d_model, config.d_ff, nn.GELU()),
        attention_norm=nn.LayerNorm(config.d_model, eps=config.norm_eps),
        feedforward_norm=nn.LayerNorm(config.d_model, eps=config.norm_eps),
        residual=post_norm,
        dropout=config.dropout,
    )


class MaskedLM(nn.Module):
    """BERT with the head it is pretrained with: which word stood here?

        logits = E · norm(gelu(W x)) + b,   E being the embedding's own matrix

    Shapes:
        as `Bert`'s → logits (B, T, V), V = vocab_size

    Source: Devlin et al. 2018, §3.1, task 1; the layer before E is the release's.

    Taught in: book/07_bert.ipynb
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        check_kind("config", config, BertConfig)
        self.config = config
        self.bert = Bert(config)
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.output = nn.Linear(config.d_model, config.vocab_size)
        self.output.weight = self.bert.embeddings.token.weight
        start(self)

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, keep: Tensor | None = None
    ) -> Tensor:
        return self.logits(self.bert(tokens, segments, keep))

    def logits(self, hidden: Tensor) -> Tensor:
        """A score for each word at each position: (B, T, d_model) → (B, T, V)."""
        check_vectors("hidden", hidden, self.dense.weight)
        return self.output(self.norm(gelu(self.dense(hidden))))


@torch.no_grad()
def start(model: nn.Module) -> None:
    """Random weights to train from, as the release draws them: N(0, 0.02²), biases 0.

    The release cuts the normal off at two standard deviations; so does this.
    """
    for name, x in model.named_parameters():
        if x.dim() == 2:
            nn.init.trunc_normal_(x, std=0.02, a=-0.04, b=0.04)
        elif name.endswith("bias"):
            x.zero_()
