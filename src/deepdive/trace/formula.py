# SPDX-License-Identifier: MIT
"""What is every matrix on the way from the words' vectors to attention's output?"""

import torch
from torch import Tensor

from deepdive.attention import MultiHeadAttention
from deepdive.inputs import check_kind
from deepdive.kernels import attention_weights, equation
from deepdive.kernels.layout import merge_heads, split_heads
from deepdive.masks import Rule
from deepdive.trace.example import CATS, Example


def attention(
    example: Example = CATS, n_heads: int = 1, mask: Tensor | Rule | None = None
) -> dict:
    """Every matrix on the way from the words' vectors to attention's output.

    Shapes:
        X, Q, K, V, concat, output (T, d); raw_scores, scaled_scores, weights (H, T, T);
        head_outputs (H, T, D)

    Raises:
        ValueError: n_heads does not divide the width.

    Taught in: book/02_attention.ipynb, book/03_multi_head.ipynb
    """
    check_kind("example", example, Example)
    Q, K, V = (example.X @ W for W in (example.W_Q, example.W_K, example.W_V))
    if n_heads < 1 or Q.shape[-1] % n_heads:
        raise ValueError(f"width {Q.shape[-1]} cannot be cut into {n_heads} heads")
    q, k, v = (split_heads(M[None], n_heads) for M in (Q, K, V))  # (1, H, T, D)
    raw = q @ k.transpose(-2, -1)
    heads = equation(q, k, v, mask=mask)
    concat = merge_heads(heads)[0]
    return {
        "words": example.words,
        "n_heads": n_heads,
        **{name: getattr(example, name) for name in ("X", "W_Q", "W_K", "W_V", "W_O")},
        "Q": Q,
        "K": K,
        "V": V,
        "raw_scores": raw[0],
        "scaled_scores": raw[0] / q.shape[-1] ** 0.5,
        "weights": attention_weights(q, k, mask=mask)[0],
        "head_outputs": heads[0],
        "concat": concat,
        "output": concat @ example.W_O,
    }


def layer(example: Example = CATS, n_heads: int = 1) -> MultiHeadAttention:
    """The same numbers as a layer of the package, in float64.

    Note:
        `nn.Linear` multiplies by the transpose of its weight, hence the `.T`.

    Taught in: book/02_attention.ipynb
    """
    check_kind("example", example, Example)
    module = MultiHeadAttention(example.X.shape[-1], n_heads).double()
    with torch.no_grad():
        for part, name in (("q", "W_Q"), ("k", "W_K"), ("v", "W_V"), ("o", "W_O")):
            getattr(module, f"{part}_proj").weight.copy_(getattr(example, name).T)
    return module


def to_json(result):
    """The same with nested lists for tensors, at full precision.

    Taught in: book/02_attention.ipynb
    """
    if isinstance(result, Tensor):
        return result.tolist()
    if isinstance(result, dict):
        return {name: to_json(value) for name, value in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result)(to_json(value) for value in result)
    return result
