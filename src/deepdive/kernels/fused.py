# SPDX-License-Identifier: MIT
"""Can the same numbers be had faster? torch's kernel behind this book's signature."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from deepdive.kernels.contract import check_inputs
from deepdive.kernels.equation import equation
from deepdive.masks import Causal, Rule, as_tensor


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

    Taught in: book/02_attention.ipynb
    """
    check_inputs({"q": q, "k": k, "v": v}, mask, bias, scale)
    if q.shape[-1] != v.shape[-1]:
        return equation(q, k, v, mask, bias, scale)  # torch's kernel is slow here
    T, S = q.shape[-2], k.shape[-2]
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}

    if isinstance(mask, Causal) and mask.plain and bias is None:
        if T == S:
            return scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, **grouped
            )
        if T == 1:
            mask = None  # the newest token may look at everything
    allowed = as_tensor(mask, T, S, q.device)
    extra = allowed
    if bias is not None:
        extra = bias.to(q.dtype)
        if allowed is not None:
            extra = torch.where(allowed, extra, -torch.inf)
    if extra is not None and extra.dim() < 2:
        extra = extra.expand(T, S)  # torch's kernel asks for two axes at least
    return scaled_dot_product_attention(
        q, k, v, attn_mask=extra, scale=scale, **grouped
    )
