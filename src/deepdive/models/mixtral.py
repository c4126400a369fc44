# SPDX-License-Identifier: MIT
"""What if only the feed-forward layers grow, and a token visits two of eight?

Source: Jiang et al. 2024 (arXiv:2401.04088), §2. The rest is Mistral 7B: Llama's block
with grouped-query attention (arXiv:2310.06825).

Taught in: book/14_mixture_of_experts.ipynb
"""

from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, Stack, place, pre_norm
from deepdive.cache import Caches
from deepdive.configs import MixtralConfig
from deepdive.halves import Decoder, start
from deepdive.inputs import check_ids, check_kind
from deepdive.moe import Experts, MixtureOfExperts, SoftmaxTopKRouter
from deepdive.norms import RMSNorm
from deepdive.positions import Rotary, half_split


class Mixtral(Decoder):
    """A decoder whose feed-forward layers are mixtures of experts.

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
        Rotary pairs are half-split, as in Hugging Face's files.

    >>> import torch
    >>> small = MixtralConfig(vocab_size=9, d_model=8, n_layers=1, n_heads=2,
    ...                       n_kv_heads=1, d_expert=6, n_experts=4)
    >>> Mixtral(small)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 9])

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(self, config: MixtralConfig):
        super().__init__()
        check_kind("config", config, MixtralConfig)
        self.config = config
        head_dim = config.head_dim or config.d_model // config.n_heads
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.rotary = Rotary(
            head_dim, config.rope_base, half_split, config.rope_scaling
        )
        self.blocks = Stack(build_block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
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
        c = self.config
        here = place(tokens, caches, keep, positions, c.window, c.max_seq_len)
        check_ids("token", tokens, c.vocab_size)
        x, rotate = self.token(tokens), self.rotary(here.positions)
        return self.norm(self.blocks(x, caches, mask=here.mask, rotate=rotate))


def build_block(config: MixtralConfig) -> Block:
    """One layer: grouped-query attention and experts, both pre-norm."""
    c = config
    return Block(
        attention=MultiHeadAttention(c.d_model, c.n_heads, c.n_kv_heads, c.head_dim),
        feedforward=MixtureOfExperts(
            SoftmaxTopKRouter(c.d_model, c.n_experts, c.top_k),
            Experts(c.n_experts, c.d_model, c.d_expert),
        ),
        attention_norm=RMSNorm(c.d_model, c.norm_eps),
        feedforward_norm=RMSNorm(c.d_model, c.norm_eps),
        residual=pre_norm,
    )
