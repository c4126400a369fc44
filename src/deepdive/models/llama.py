# SPDX-License-Identifier: MIT
"""Which parts of GPT-2 were exchanged since? Llama, and with a window Mistral 7B.

RMSNorm for LayerNorm, turned queries and keys for learned positions, SwiGLU for GELU,
shared key/value heads, and no biases.

Source: Touvron et al. 2023 (arXiv:2302.13971), §2.2; Llama 2 (arXiv:2307.09288), §2.2;
Jiang et al. 2023 (arXiv:2310.06825), §2.

Taught in: book/08_gpt.ipynb
"""

from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, Stack, place, pre_norm
from deepdive.cache import Caches
from deepdive.configs import LlamaConfig
from deepdive.feedforward import GatedFeedForward
from deepdive.halves import Decoder, start
from deepdive.inputs import check_ids, check_kind
from deepdive.norms import RMSNorm
from deepdive.positions import Pairing, Rotary, half_split


class Llama(Decoder):
    """A decoder with rotary positions, RMSNorm, SwiGLU and grouped-query attention.

    Shapes:
        tokens (B, T) → logits (B, T, V); V = vocab_size
        keep (B, seen + T) bool, False = padding; positions (T,) or (B, T)

    Args:
        pairing: which numbers of a query or key turn together: `half_split` for Hugging
            Face's files, `interleaved` for Meta's own and for
            GGUF's Llamas.
        caches: what `new_caches` gave; tokens are then the new ones behind those seen.

    Raises:
        ValueError: an id outside the vocabulary, more tokens than `max_seq_len`, or
            another number of caches than of layers; shapes that do not fit.
        TypeError: ids that are not integers, or a `keep` that is not boolean.

    >>> import torch
    >>> small = LlamaConfig(vocab_size=9, d_model=8, n_layers=1, n_heads=2,
    ...                     n_kv_heads=1, d_ff=16)
    >>> Llama(small)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 9])

    Taught in: book/08_gpt.ipynb, book/11_rope.ipynb,
    book/12_grouped_query_attention.ipynb
    """

    def __init__(self, config: LlamaConfig, pairing: Pairing = half_split):
        super().__init__()
        check_kind("config", config, LlamaConfig)
        self.config = config
        head_dim = config.head_dim or config.d_model // config.n_heads
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.rotary = Rotary(head_dim, config.rope_base, pairing, config.rope_scaling)
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
        window, longest = self.config.window, self.config.max_seq_len
        here = place(tokens, caches, keep, positions, window, longest)
        check_ids("token", tokens, self.config.vocab_size)
        rotate = self.rotary(here.positions)
        x = self.token(tokens)
        return self.norm(self.blocks(x, caches, mask=here.mask, rotate=rotate))


def build_block(config: LlamaConfig) -> Block:
    """One layer: attention and SwiGLU, both pre-norm and without biases."""
    d_model, head_dim = config.d_model, config.head_dim
    heads = config.n_heads, config.n_kv_heads
    return Block(
        attention=MultiHeadAttention(d_model, *heads, head_dim),
        feedforward=GatedFeedForward(d_model, config.d_ff, nn.SiLU()),
        attention_norm=RMSNorm(d_model, config.norm_eps),
        feedforward_norm=RMSNorm(d_model, config.norm_eps),
        residual=pre_norm,
    )
