# SPDX-License-Identifier: MIT
"""How little must be remembered of each word? One short vector, shared by all heads."""

from collections.abc import Callable
from types import NoneType

import torch
from torch import Tensor, nn

from deepdive.cache import Cache
from deepdive.configs import RopeScaling, YarnScaling
from deepdive.inputs import check_kind, check_sizes, check_vectors
from deepdive.kernels import fused
from deepdive.kernels.layout import merge_heads, split_heads
from deepdive.masks import Rule
from deepdive.norms import RMSNorm
from deepdive.positions import yarn_temperature


class LatentAttention(nn.Module):
    """Keys and values of all heads are read out of one latent vector per position.

        c = norm(W_DKV x),   r = rotate(W_KR x)            (c ‖ r is all that is cached)
        kᵢ = W_UK,ᵢ c ‖ r,   vᵢ = W_UV,ᵢ c                 (r is shared by the heads)
        qᵢ = qᵢᶜ ‖ rotate(qᵢᴿ),   both parts from W_UQ norm(W_DQ x)
        out = W_O [… softmax(qᵢ kᵢᵀ / √(d_h + d_R)) vᵢ …]

    There are two ways to compute it. `expanded` builds every head's keys and values.
    `absorbed` never does: since qᵢᶜ·(W_UK,ᵢ c) = (W_UK,ᵢᵀ qᵢᶜ)·c, the latent itself
    serves as the one key, and as the one value, of multi-query attention. `forward`
    takes the one that multiplies less (`absorbing_is_cheaper`).

    Shapes:
        x (B, T, d_model) → (B, T, d_model)
        mask: a rule of `deepdive.masks`, or bool, True = may attend
        cache: holds one tensor (B, 1, S, kv_lora_rank + qk_rope_head_dim)

    Args:
        kv_lora_rank: d_c, the latent's width. (“lora” = low rank, nothing else.)
        qk_nope_head_dim: d_h, the part of a query and key that carries no position.
        qk_rope_head_dim: d_R, the rotated part; 0 for none.
        q_lora_rank: width through which the queries are pressed; None: they are not.
        norm: makes the norm of a latent from its width; `nn.Identity` for none.
        scale: factor on the scores; 1/√(d_h + d_R) unless given.
        rotate: turns the rotary parts by their positions (`positions.Rotary`).

    Raises:
        ValueError: a width is out of range, or a shape is wrong, or there is nothing to
            rotate.  TypeError: the input has another dtype than the weights.

    Source: DeepSeek-V2 (2024, arXiv:2405.04434), §2.1, equations 9–19 and appendix C.

    Note:
        The rotary part exists because a key that is rotated cannot be absorbed: the
        turn by t − s would stand between W_UQᵀ and W_UK, another matrix for every
        distance (§2.1.3).

    >>> layer = LatentAttention(d_model=32, n_heads=4, kv_lora_rank=8,
    ...     qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
    >>> layer(torch.zeros(1, 5, 32)).shape
    torch.Size([1, 5, 32])

    Taught in: book/15_deepseek.ipynb
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        q_lora_rank: int | None = None,
        norm: Callable[[int], nn.Module] = RMSNorm,
        kernel: Callable[..., Tensor] = fused,
        scale: float | None = None,
    ):
        super().__init__()
        _check_sizes(
            d_model=d_model,
            n_heads=n_heads,
            q_lora_rank=1 if q_lora_rank is None else q_lora_rank,
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            v_head_dim=v_head_dim,
        )
        if qk_rope_head_dim < 0 or qk_rope_head_dim % 2:
            raise ValueError(f"qk_rope_head_dim must be even, got {qk_rope_head_dim}")
        self.n_heads, self.kernel = n_heads, kernel
        self.kv_lora_rank, self.v_head_dim = kv_lora_rank, v_head_dim
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.scale = softmax_scale(qk_head_dim) if scale is None else scale

        def linear(width_in: int, width_out: int) -> nn.Linear:
            return nn.Linear(width_in, width_out, bias=False)

        squeezed = q_lora_rank is not None
        self.q_down = linear(d_model, q_lora_rank) if squeezed else nn.Identity()
        self.q_norm = norm(q_lora_rank) if squeezed else nn.Identity()
        self.q_up = linear(q_lora_rank or d_model, n_heads * qk_head_dim)
        self.kv_down = linear(d_model, kv_lora_rank)
        self.kv_norm = norm(kv_lora_rank)
        self.k_up = linear(kv_lora_rank, n_heads * qk_nope_head_dim)
        self.v_up = linear(kv_lora_rank, n_heads * v_head_dim)
        self.k_rope = linear(d_model, qk_rope_head_dim) if qk_rope_head_dim else None
        self.o_proj = linear(n_heads * v_head_dim, d_model)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Rule | None = None,
        rotate: Callable[[Tensor], Tensor] | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        check_kind("cache", cache, Cache, NoneType)
        if rotate is not None and not self.qk_rope_head_dim:
            raise ValueError("qk_rope_head_dim is 0: there is nothing to rotate")
        q, latent = self.asked_and_kept(x, rotate)
        if cache is not None:
            (latent,) = cache.append(latent)  # (B, 1, S, d_c + d_R), older ones first
        cheaper = self.absorbing_is_cheaper(q.shape[-2], latent.shape[-2])
        attend = self.absorbed if cheaper else self.expanded
        return self.o_proj(merge_heads(attend(q, latent, mask)))

    def asked_and_kept(
        self, x: Tensor, rotate: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The new tokens' `queries`, and their `latent`, which a cache keeps."""
        check_vectors("x", x, self.kv_down.weight)
        return self.queries(x, rotate), self.latent(x, rotate)

    def queries(
        self, x: Tensor, rotate: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """What each head asks, its rotary part turned: → (B, H, T, d_h + d_R)."""
        q = split_heads(self.q_up(self.q_norm(self.q_down(x))), self.n_heads)
        return q if rotate is None else self._rotated(q, self.qk_nope_head_dim, rotate)

    def latent(
        self, x: Tensor, rotate: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """All that is kept of each position, c ‖ r: → (B, 1, T, d_c + d_R)."""
        c = self.kv_down(x)
        c = self.kv_norm(c).to(c.dtype)  # autocast would widen it
        if self.k_rope is not None:
            c = torch.cat((c, self.k_rope(x)), dim=-1)
        c = c[:, None]
        return c if rotate is None else self._rotated(c, self.kv_lora_rank, rotate)

    def expanded(
        self, q: Tensor, latent: Tensor, mask: Tensor | Rule | None = None
    ) -> Tensor:
        """Attention with every head's own keys and values, rebuilt from the latents.

        Shapes:
            q (B, H, T, d_h + d_R), latent (B, 1, S, d_c + d_R) → (B, H, T, d_v)
        """
        c, r = latent.split((self.kv_lora_rank, self.qk_rope_head_dim), dim=-1)
        k = split_heads(self.k_up(c[:, 0]), self.n_heads)  # (B, H, S, d_h)
        v = split_heads(self.v_up(c[:, 0]), self.n_heads)  # (B, H, S, d_v)
        k = torch.cat((k, r.expand(-1, self.n_heads, -1, -1)), dim=-1)
        return self.kernel(q, k, v, mask=mask, scale=self.scale)

    def absorbed(
        self, q: Tensor, latent: Tensor, mask: Tensor | Rule | None = None
    ) -> Tensor:
        """The same, reading the latents as they are: multi-query attention, G = 1.

            qᵢ' = W_UK,ᵢᵀ qᵢᶜ ‖ qᵢᴿ,   out = W_UV,ᵢ softmax(qᵢ' (c ‖ r)ᵀ · scale) c

        Shapes:
            q (B, H, T, d_h + d_R), latent (B, 1, S, d_c + d_R) → (B, H, T, d_v)
        """
        per_head = (self.n_heads, -1, self.kv_lora_rank)
        W_UK = self.k_up.weight.view(per_head)  # (H, d_h, d_c)
        W_UV = self.v_up.weight.view(per_head)  # (H, d_v, d_c)
        nope, rope = q.split((self.qk_nope_head_dim, self.qk_rope_head_dim), dim=-1)
        nope = nope @ W_UK  # (B, H, T, d_c)
        q = torch.cat((nope, rope.to(nope.dtype)), dim=-1)  # (B, H, T, d_c + d_R)
        return self.mixed(q, latent, mask) @ W_UV.transpose(-2, -1)  # (B, H, T, d_v)

    def mixed(
        self, q: Tensor, latent: Tensor, mask: Tensor | Rule | None = None
    ) -> Tensor:
        """The latents that each head takes home, weighted; r is not among them.

        Shapes:
            q (B, H, T, d_c + d_R), latent (B, 1, S, d_c + d_R) → (B, H, T, d_c)
        """
        c = latent[..., : self.kv_lora_rank]  # a view: the values are not stored twice
        return self.kernel(q, latent, c, mask=mask, scale=self.scale)

    def absorbing_is_cheaper(self, T: int, S: int) -> bool:
        """Which way multiplies less, for T queries against S latents?

            expanded, per head:  S·d_c·(d_h + d_v) + T·S·(d_h + d_R + d_v)
            absorbed, per head:  T·d_c·(d_h + d_v) + T·S·(2·d_c + d_R)

        With DeepSeek-V2's widths absorbing wins for up to 170 new tokens against a long
        cache, and never without a cache. Of 512, 2,048 and 4,096 latents the new tokens
        may be 127, 157 and 163; measured, the two ways took equal time at about 140,
        150 and 165 (torch 2.13, one x86 thread, float32, 4 and 16 heads).
        """
        d_c = self.kv_lora_rank
        per_latent = d_c * (self.qk_nope_head_dim + self.v_head_dim)
        extra = 2 * d_c - self.qk_nope_head_dim - self.v_head_dim
        return T * S * extra < (S - T) * per_latent

    def _rotated(
        self, x: Tensor, start: int, rotate: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Turn the last numbers, from `start` on: (B, H, T, D) → (B, H, T, D)."""
        return torch.cat((x[..., :start], rotate(x[..., start:])), dim=-1)


def softmax_scale(qk_head_dim: int, rope_scaling: RopeScaling | None = None) -> float:
    """1/√(d_h + d_R), multiplied twice by YaRN's temperature where that is asked for.

    DeepSeek gives YaRN two factors; `mscale_all_dim` sharpens the whole score, the part
    without position too, so it stands here and not in the rotation.

    Source: the released code of DeepSeek-V2; YaRN (arXiv:2309.00071), §3.4.

    >>> round(softmax_scale(192) * 192**0.5, 4)
    1.0

    Taught in: book/15_deepseek.ipynb
    """
    check_sizes(qk_head_dim=qk_head_dim)
    scale = qk_head_dim**-0.5
    if isinstance(rope_scaling, YarnScaling) and rope_scaling.mscale_all_dim:
        scale *= yarn_temperature(rope_scaling.factor, rope_scaling.mscale_all_dim) ** 2
    return scale


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be ≥ 1, got {size}")
