# SPDX-License-Identifier: MIT
"""What are the numbers of “cats chase mice”? The book's one example, step by step.

The numbers are chosen by hand, so that they can be followed with a pencil. They come
from no trained model and show nothing about one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepdive.attention import MultiHeadAttention, merge_heads, split_heads
from deepdive.kernels import attention_weights, equation
from deepdive.masks import Rule


@dataclass(frozen=True, eq=False)
class Example:
    """Words, their vectors, and the four matrices; float64 throughout.

    Shapes:
        X (T, d_model); W_Q, W_K, W_V, W_O (d_model, d_model), used as X @ W
    """

    words: tuple[str, ...]
    X: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor

    def __post_init__(self):
        T, d = len(self.words), self.X.shape[-1] if self.X.dim() else 0
        if tuple(self.X.shape) != (T, d):
            raise ValueError(f"{T} words need X of shape ({T}, d), got {self.X.shape}")
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            shape = tuple(getattr(self, name).shape)
            if shape != (d, d):
                raise ValueError(f"{name} must be ({d}, {d}), got {shape}")

    def append(self, word: str, x: list[float]) -> "Example":
        """The same example with one more word at the end."""
        if len(x) != self.X.shape[-1]:
            raise ValueError(
                f"x must hold {self.X.shape[-1]} numbers, got {len(x)}: {x}"
            )
        X = torch.cat([self.X, matrix([x])])
        return replace(self, words=(*self.words, word), X=X)

    def reorder(self, order: list[int]) -> "Example":
        """The same words in another order."""
        if sorted(order) != list(range(len(self.words))):
            raise ValueError(
                f"order must permute 0 … {len(self.words) - 1}, got {order}"
            )
        return replace(self, words=tuple(self.words[i] for i in order), X=self.X[order])


def matrix(rows: list[list[float]]) -> Tensor:
    """A float64 matrix from its rows."""
    return torch.tensor(rows, dtype=torch.float64)


CATS = Example(
    words=("cats", "chase", "mice"),
    X=matrix([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]]),
    W_Q=matrix([[1, 0, 0, 0], [0, 1, 0, 0], [0.3, 0, 1, 1], [0, 0, 1, 0]]),
    W_K=matrix([[1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0.6, 0, 0, 1]]),
    W_V=matrix([[0.5, 0, 0, 1], [0, 0.5, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0.5]]),
    W_O=torch.eye(4, dtype=torch.float64),
)
CATS_DAILY = CATS.append("daily", [0, 0, 1, 1])


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
    """
    module = MultiHeadAttention(example.X.shape[-1], n_heads).double()
    with torch.no_grad():
        for part, name in (("q", "W_Q"), ("k", "W_K"), ("v", "W_V"), ("o", "W_O")):
            getattr(module, f"{part}_proj").weight.copy_(getattr(example, name).T)
    return module


def to_json(result: dict) -> dict:
    """The same dictionary with nested lists for tensors, at full precision."""
    return {
        name: value.tolist() if isinstance(value, Tensor) else value
        for name, value in result.items()
    }
