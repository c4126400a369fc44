# SPDX-License-Identifier: MIT
"""What are the numbers of “cats chase mice”? The book's one example.

They are chosen by hand, one decimal each, so that they can be followed with a pencil.
The three words' own scores tie in places; the numbers added for later chapters (the
router, the networks, the second text) do not. They come from no trained model and show
nothing about one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepdive.inputs import check_kind


@dataclass(frozen=True, eq=False)
class Example:
    """Words, their vectors, and the four matrices; float64 throughout.

    Shapes:
        X (T, d_model); W_Q, W_K, W_V, W_O (d_model, d_model), used as X @ W

    Taught in: book/02_attention.ipynb
    """

    words: tuple[str, ...]
    X: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor

    def __post_init__(self):
        for name in ("X", "W_Q", "W_K", "W_V", "W_O"):
            check_kind(name, getattr(self, name), Tensor)
        T, d = len(self.words), self.X.shape[-1] if self.X.dim() else 0
        if tuple(self.X.shape) != (T, d):
            raise ValueError(f"{T} words need X of shape ({T}, d), got {self.X.shape}")
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            shape = tuple(getattr(self, name).shape)
            if shape != (d, d):
                raise ValueError(f"{name} must be ({d}, {d}), got {shape}")

    def __repr__(self) -> str:  # not its matrices: it is the default of many functions
        return f"Example({' '.join(self.words)!r})"

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
    """A float64 matrix from its rows.

    Taught in: book/02_attention.ipynb
    """
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
CATS_MICE_CHASE = CATS.reorder([0, 2, 1])


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A plain recurrent network of width 2: h′ = tanh(x W_x + h W_h).

    Shapes:
        W_x (d_model, 2), W_h (2, 2)

    Taught in: book/01_recurrence.ipynb
    """

    W_x: Tensor
    W_h: Tensor

    def __repr__(self) -> str:
        return "Recurrence(…)"


@dataclass(frozen=True, eq=False)
class Network:
    """A feed-forward network of width 8, and a router that may cut it into 4 experts.

    Expert e is hidden units 2e and 2e + 1: all experts together, each with gate 1, are
    the network.

    Shapes:
        W_up (d_model, 8), W_down (8, d_model), W_router (d_model, 4)

    Taught in: book/05_block.ipynb, book/14_mixture_of_experts.ipynb
    """

    W_up: Tensor
    W_down: Tensor
    W_router: Tensor
    n_experts: int = 4
    top_k: int = 2

    def __repr__(self) -> str:
        return "Network(…)"


RECURRENCE = Recurrence(
    W_x=matrix([[0.5, -0.3], [0.8, 0.2], [-0.4, 0.6], [0.1, 0.9]]),
    W_h=matrix([[0.6, -0.2], [0.3, 0.5]]),
)
NETWORK = Network(
    W_up=matrix(
        [
            [0.5, -0.2, 0.0, 0.7, -0.6, 0.3, 0.1, 0.0],
            [-0.3, 0.6, 0.8, 0.0, 0.2, -0.5, 0.0, 0.9],
            [0.4, 0.1, -0.7, 0.3, 0.9, -0.1, -0.3, 0.5],
            [0.0, 0.7, 0.1, -0.5, 0.0, 0.6, 0.5, -0.6],
        ]
    ),
    W_down=matrix(
        [
            [0.6, 0.0, -0.2, 0.3],
            [0.1, 0.5, 0.0, -0.4],
            [0.0, -0.3, 0.7, 0.2],
            [-0.5, 0.4, 0.1, 0.0],
            [0.2, 0.0, 0.8, -0.1],
            [0.0, 0.9, -0.6, 0.4],
            [0.7, -0.2, 0.0, 0.5],
            [-0.1, 0.3, 0.4, 0.6],
        ]
    ),
    W_router=matrix(
        [
            [0.9, -0.2, 0.1, 0.4],
            [0.3, 0.8, -0.5, 0.1],
            [-0.4, 0.5, 1.1, 0.6],
            [0.7, 0.1, 0.4, -0.6],
        ]
    ),
)
# Two German words that are being written while the three English ones are read.
TARGET = (("Katzen", "jagen"), matrix([[1, 0, 0.8, 0], [0, 1, 0, 0.5]]))
