# SPDX-License-Identifier: MIT
"""Can the same numbers be had faster? torch's kernel behind this book's signature."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from deepdive.kernels.contract import check_inputs
from deepdive.kernels.equation import masked_softmax, mix, scaled_scores
from deepdive.masks import Causal, Rule, as_tensor

# Queries. Up to here folding was as fast as enable_gqa or faster, up to 3× (torch 2.13,
# one x86 thread, 32 query and 4 key/value heads of 64, 4,096 keys).
FEW = 16


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | Rule | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The same as `equation`, by `torch.nn.functional.scaled_dot_product_attention`.

    Shapes:
        q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) → (B, H, T, Dv)

    Note:
        torch's `is_causal` aligns top-left, this book's rules bottom-right. They agree
        for T = S only, so only there is it used; a tensor is made for everything else.
        A window is such a tensor of (T, S) too, unless it is wider than the text: for a
        long text under a short window `kernels.tiled` takes less time and memory.
        The bias is rounded to q's dtype, as torch asks; `equation` takes it as it is.

        Where H/G query heads share a key/value head, a few queries of theirs are laid
        one below another, as if they were more queries of one head. With Dv ≠ D torch's
        kernel is slow: for a few queries two matrix products on that layout stand in
        for it, for more the narrower side is padded with zeros.

    Taught in: book/02_attention.ipynb
    """
    check_inputs({"q": q, "k": k, "v": v}, mask, bias, scale)
    (B, H, T, D), (_, G, S, Dv) = q.shape, v.shape
    if Dv != D and T <= FEW:
        return mix(masked_softmax(scaled_scores(q, k, scale), mask, bias), v)
    if Dv != D:  # zeros change neither a score nor what is cut off again
        scale, width = D**-0.5 if scale is None else scale, max(D, Dv)
        q, k, v = (pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
        return fused(q, k, v, mask, bias, scale)[..., :Dv]

    if isinstance(mask, Rule):
        mask = mask.simplest(T, S)
    if type(mask) is Causal and mask.plain and bias is None and T == S:
        return scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=H != G
        )
    extra = _mask_and_bias(as_tensor(mask, T, S, q.device), bias, q.dtype)
    if extra is not None and extra.dim() < 2:
        extra = extra.expand(T, S)  # torch's kernel asks for two axes at least
    if H == G or T > FEW:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=extra, scale=scale, enable_gqa=H != G
        )
    if extra is not None:
        extra = extra.expand(B, H, T, S).reshape(B, G, H // G * T, S)
    folded = q.reshape(B, G, H // G * T, D)
    out = scaled_dot_product_attention(folded, k, v, attn_mask=extra, scale=scale)
    return out.reshape(B, H, T, D)


def _mask_and_bias(
    allowed: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """One tensor for both, as torch's kernel wants it: booleans, or added numbers."""
    if bias is None:
        return allowed
    bias = bias.to(dtype)
    return bias if allowed is None else torch.where(allowed, bias, -torch.inf)
