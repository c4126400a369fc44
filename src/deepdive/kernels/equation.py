# SPDX-License-Identifier: MIT
"""What is attention, as the paper writes it? The yardstick of the rest.

Source: Vaswani et al. 2017, §3.2.1, equation 1.

Taught in: book/02_attention.ipynb
"""

import torch
from torch import Tensor

from deepdive.kernels.contract import check_inputs
from deepdive.masks import Rule, as_tensor


def attention_weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | Rule | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """How much each query takes from each key; every row sums to 1.

        weights = softmax(q kᵀ · scale + bias),   scale = 1/√D unless given

    Shapes:
        q (B, H, T, D), k (B, G, S, D) → (B, H, T, S)
        mask: a rule of `deepdive.masks`, or bool, True = may attend, broadcast
        bias: float, added to the scores, broadcast

    Raises:
        ValueError, TypeError: sizes or dtypes do not fit; the message has the numbers.

    Note:
        A query that may see no key gets zeros, not NaN. Half precision is computed in
        float32: the product of two float16 vectors can pass float16's limit of 65,504.

    Taught in: book/02_attention.ipynb
    """
    check_inputs({"q": q, "k": k}, mask, bias, scale)
    scores = scaled_scores(q, k, scale)  # (B, H, T, S)
    return masked_softmax(scores, mask, bias)


def equation(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | Rule | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Mix the values by the attention weights.

        out = softmax(q kᵀ / √D + bias) v

    Shapes:
        q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) → (B, H, T, Dv)

    Source: Vaswani et al. 2017, equation 1. Mask, bias, scale, errors: as in
    `attention_weights`.

    >>> q = k = torch.zeros(1, 1, 3, 2)            # all scores equal …
    >>> v = torch.tensor([[[[0.], [3.], [6.]]]])
    >>> equation(q, k, v).flatten().tolist()       # … so each query takes the mean
    [3.0, 3.0, 3.0]

    Taught in: book/02_attention.ipynb
    """
    check_inputs({"q": q, "k": k, "v": v}, mask, bias, scale)
    scores = scaled_scores(q, k, scale)  # (B, H, T, S)
    weights = masked_softmax(scores, mask, bias)
    return mix(weights, v)  # (B, H, T, Dv)


# The three steps, for input that has been checked.


def scaled_scores(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """How well each query fits each key.

        scores = q kᵀ · scale

    Shapes:
        q (B, H, T, D), k (B, G, S, D) → (B, H, T, S), float32 or wider
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return shared_product(q.to(wide) * scale, k.to(wide).transpose(-2, -1))


def masked_softmax(
    scores: Tensor, mask: Tensor | Rule | None = None, bias: Tensor | None = None
) -> Tensor:
    """Weights that sum to 1 over the keys that each query may see.

        weights = softmax(scores + bias), a blocked key's score being −∞

    Shapes:
        scores (B, H, T, S) → (B, H, T, S); zeros where no key may be seen
    """
    allowed = as_tensor(mask, *scores.shape[-2:], scores.device)
    if allowed is None and bias is None:
        return scores.softmax(dim=-1)
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    # Softmax over an empty set is NaN, in the gradient too: give such a row any finite
    # scores before the softmax, and zeros after it.
    sees_nothing = (scores == -torch.inf).all(dim=-1, keepdim=True)
    weights = scores.masked_fill(sees_nothing, 0.0).softmax(dim=-1)
    return weights.masked_fill(sees_nothing, 0.0)


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """What each query takes home: the mean of the values, weighted.

        out = weights v

    Shapes:
        weights (B, H, T, S), v (B, G, S, Dv) → (B, H, T, Dv), in v's dtype
    """
    return shared_product(weights, v.to(weights.dtype)).to(v.dtype)


def shared_product(a: Tensor, b: Tensor) -> Tensor:
    """a b, where H/G heads of a in a row share one head of b, which is never copied.

    Shapes:
        a (B, H, T, N), b (B, G, N, M) → (B, H, T, M)
    """
    (B, H, T, N), (_, G, _, M) = a.shape, b.shape
    return (a.reshape(B, G, H // G * T, N) @ b).reshape(B, H, T, M)
