# SPDX-License-Identifier: MIT
"""How far can a small cache and many small experts go together? DeepSeek-V2 and V3.

Source: DeepSeek-V2 (2024, arXiv:2405.04434), §2; DeepSeek-V3 (2024, arXiv:2412.19437),
§2.1. V3 changes the router, and predicts a second token in training, which is not here.

Taught in: book/15_deepseek.ipynb
"""

from torch import Tensor, nn

from deepdive.blocks import Block, Stack, place, pre_norm
from deepdive.cache import Caches
from deepdive.configs import DeepSeekV2Config, DeepSeekV3Config
from deepdive.feedforward import GatedFeedForward
from deepdive.halves import Decoder, start
from deepdive.inputs import check_ids, check_kind
from deepdive.latent_attention import LatentAttention, softmax_scale
from deepdive.moe import (
    Experts,
    Groups,
    MixtureOfExperts,
    SigmoidRouter,
    SoftmaxTopKRouter,
)
from deepdive.norms import RMSNorm
from deepdive.positions import Rotary, interleaved


class DeepSeek(Decoder):
    """A decoder with latent attention, and with experts after the first few layers.

    Shapes:
        tokens (B, T) → logits (B, T, V); V = vocab_size
        keep (B, seen + T) bool, False = padding; positions (T,) or (B, T)

    Args:
        config: of V2 or of V3; its type decides the router.
        caches: what `new_caches` gave; tokens are then the new ones behind those seen.

    Raises:
        ValueError: an id outside the vocabulary, more tokens than `max_seq_len`, or
            another number of caches than of layers; shapes that do not fit.
        TypeError: ids that are not integers, or a `keep` that is not boolean.

    Note:
        Rotary pairs are interleaved, as in the released files. The norms inside the
        attention have eps 1e-6 whatever `norm_eps` is, as in the released code.

    >>> import torch
    >>> small = DeepSeekV3Config(vocab_size=9, d_model=8, n_layers=2, n_heads=2,
    ...     q_lora_rank=6, kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2,
    ...     v_head_dim=4, d_ff=16, n_dense_layers=1, d_expert=4, n_experts=8, top_k=2,
    ...     n_groups=4, top_groups=2)
    >>> DeepSeek(small)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 9])

    Taught in: book/15_deepseek.ipynb
    """

    def __init__(self, config: DeepSeekV2Config):
        super().__init__()
        check_kind("config", config, DeepSeekV2Config)
        self.config = config
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.rotary = Rotary(
            config.qk_rope_head_dim, config.rope_base, interleaved, config.rope_scaling
        )
        dense = config.n_dense_layers
        self.blocks = Stack(
            build_block(config, (build_dense if i < dense else build_experts)(config))
            for i in range(config.n_layers)
        )
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
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
        here = place(tokens, caches, keep, positions, max_seq_len=c.max_seq_len)
        check_ids("token", tokens, c.vocab_size)
        x, rotate = self.token(tokens), self.rotary(here.positions)
        return self.norm(self.blocks(x, caches, mask=here.mask, rotate=rotate))


def build_block(config: DeepSeekV2Config, feedforward: nn.Module) -> Block:
    """One layer: latent attention and what is given, both pre-norm."""
    d_model = config.d_model
    nope, rope = config.qk_nope_head_dim, config.qk_rope_head_dim
    attention = LatentAttention(
        d_model,
        config.n_heads,
        kv_lora_rank=config.kv_lora_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=config.v_head_dim,
        q_lora_rank=config.q_lora_rank,
        scale=softmax_scale(nope + rope, config.rope_scaling),
    )
    return Block(
        attention,
        feedforward,
        attention_norm=RMSNorm(d_model, config.norm_eps),
        feedforward_norm=RMSNorm(d_model, config.norm_eps),
        residual=pre_norm,
    )


def build_dense(config: DeepSeekV2Config) -> GatedFeedForward:
    """The feed-forward network of the first layers: no experts."""
    return GatedFeedForward(config.d_model, config.d_ff, nn.SiLU())


def build_experts(config: DeepSeekV2Config) -> MixtureOfExperts:
    """DeepSeekMoE: many small experts, and some that every token visits.

    V3 scores experts one by one (sigmoid, and a bias on the choice), V2 together; a
    group counts by its two best experts in V3, by its best in V2.
    """
    c, third = config, isinstance(config, DeepSeekV3Config)
    kind, best = (SigmoidRouter, 2) if third else (SoftmaxTopKRouter, 1)
    groups = Groups(c.n_groups, c.top_groups, best)
    gates = c.normalise_gates, c.routed_scale
    shared = c.n_shared_experts * c.d_expert  # several are one, several times as wide
    return MixtureOfExperts(
        kind(c.d_model, c.n_experts, c.top_k, *gates, groups),
        Experts(c.n_experts, c.d_model, c.d_expert),
        GatedFeedForward(c.d_model, shared, nn.SiLU()) if shared else None,
    )
