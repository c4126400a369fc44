# SPDX-License-Identifier: MIT
"""Latent attention reads its input three times: why not once?

Taught in: book/15_deepseek.ipynb
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepdive.inference.joined import joined
from deepdive.inputs import check_kind, check_vectors
from deepdive.kernels.layout import split_heads
from deepdive.latent_attention import LatentAttention
from deepdive.masks import Rule

SIZES = (
    "n_heads", "kernel", "scale", "kv_lora_rank", "v_head_dim", "qk_nope_head_dim",
    "qk_rope_head_dim",
)  # fmt: skip
SHARED = ("q_norm", "kv_norm", "k_up", "v_up", "o_proj")


class JoinedLatentAttention(LatentAttention):
    """`LatentAttention` with one product of x for queries, latent and rotary key.

        cᵠ ‖ c ‖ r = [W_DQ; W_DKV; W_KR] x      (W_UQ where there is no W_DQ)

    Queries and rotary key stand at the same positions, so they are turned as one too.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Args:
        attention: where the weights come from; the matrices that read x are copied, the
            others are shared.

    Raises:
        TypeError: not a `LatentAttention`.

    Note:
        With DeepSeek-V2-Lite's widths (torch 2.13, one x86 thread, float32) a new word
        took 1/1.1 … 1/1.2 of the plain layer's time behind 4,096 others, 1/1.2 … 1/1.5
        behind 8,192: most of that is won in `mixed`, the rest by reading x once.

        W_UK and W_UV stay as they are: their rows lie in the order in which they are
        absorbed, and a copy with the axes exchanged was slower (1.1 to 1.8 times). Nor
        is it worth multiplying W_UQ and W_UK once and for all: the product has 16.8
        million numbers for each new word to read, the two have 5.2. A loop over pieces
        of the cache, so that each is read from memory once, won no more than `mixed`.

    Taught in: book/15_deepseek.ipynb
    """

    def __init__(self, attention: LatentAttention):
        nn.Module.__init__(self)  # the parent's would make new weights
        check_kind("attention", attention, LatentAttention)
        for name in SIZES + SHARED:
            setattr(self, name, getattr(attention, name))
        squeezed = isinstance(attention.q_down, nn.Linear)
        first = attention.q_down if squeezed else attention.q_up
        self.q_up = attention.q_up if squeezed else nn.Identity()
        rotary = [] if attention.k_rope is None else [attention.k_rope]
        self.down = joined(first, attention.kv_down, *rotary)
        self.widths = first.out_features, self.kv_lora_rank, self.qk_rope_head_dim

    def asked_and_kept(
        self, x: Tensor, rotate: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        check_vectors("x", x, self.down.weight)
        H, nope_rope = self.n_heads, (self.qk_nope_head_dim, self.qk_rope_head_dim)
        narrow, c, r = self.down(x)[:, None].split(self.widths, dim=-1)  # (B, 1, T, …)
        q = split_heads(self.q_up(self.q_norm(narrow[:, 0])), H)  # (B, H, T, d_h + d_R)
        c = self.kv_norm(c).to(c.dtype)  # autocast would widen it
        if rotate is not None:
            nope, rope = q.split(nope_rope, dim=-1)
            rope, r = rotate(torch.cat((rope, r), dim=1)).split((H, 1), dim=1)
            q = torch.cat((nope, rope), dim=-1)
        return q, torch.cat((c, r), dim=-1)

    def mixed(
        self, q: Tensor, latent: Tensor, mask: Tensor | Rule | None = None
    ) -> Tensor:
        """The latents that each head takes home: (B, H, T, d_c + d_R) → (…, d_c).

        torch's kernel wants values as wide as the keys. The latents are that; the r
        that they bring along is cut off again. For 1 to 128 new words behind 512 to
        4,096 others it took 0.5 to 1.1 of the time of two matrix products, or of
        values padded with zeros, whichever was less (4 and 16 heads, torch 2.13, one
        x86 thread).
        """
        out = self.kernel(q, latent, latent, mask=mask, scale=self.scale)
        return out[..., : self.kv_lora_rank]

    def queries(
        self, x: Tensor, rotate: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """What each head asks, its rotary part turned: → (B, H, T, d_h + d_R)."""
        return self.asked_and_kept(x, rotate)[0]

    def latent(
        self, x: Tensor, rotate: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """All that is kept of each position, c ‖ r: → (B, 1, T, d_c + d_R)."""
        return self.asked_and_kept(x, rotate)[1]
