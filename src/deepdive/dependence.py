# SPDX-License-Identifier: MIT
"""What must wait for what? The three columns of the 2017 paper's Table 1, measured.

A machine with as many arithmetic units as it likes can do at once whatever does not
wait for something else. What it cannot shorten is the longest chain of products in
which each needs the result of the one before; and what one position can know of
another is limited by the layers between them.

Source: Vaswani et al. 2017, §4 and Table 1.

Taught in: book/01_recurrence.ipynb, book/06_transformer_2017.ipynb
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.fading import CellReader
from deepdive.inputs import check_kind, check_sizes, check_vectors
from deepdive.kernels import equation
from deepdive.recurrent import ElmanCell

_ONE = {"Mm", "Addmm", "Bmm", "Baddbmm", "Mv", "Addmv", "Dot", "Linear", "Convolution"}
_TWO = "ScaledDotProduct"  # a fused kernel: scores, then the mixture of values
_HIDDEN = "Rnn"  # one node for all steps of a text


def longest_chain(output: Tensor) -> int:
    """The longest chain of matrix products that lead to `output`, each after the last.

    Counted in the graph that autograd keeps: a product with a weight, of two batches
    of matrices, or a convolution counts 1, fused attention 2. Norms, softmaxes and sums
    are left out, and a product counts 1 whatever its size.

    Shapes:
        output: any

    Raises:
        TypeError: not a tensor.
        ValueError: nothing was recorded (no weight asks for a gradient, or `no_grad`),
            or a node hides its products: torch's own recurrent layers, and functions
            with a backward of their own.

    Note:
        A product none of whose factors asks for a gradient is not in the graph.

    >>> two = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    >>> x = torch.zeros(3, 4)
    >>> longest_chain(two(x)), longest_chain(two[0](x) + two[2](x))
    (2, 1)
    """
    check_kind("output", output, Tensor)
    if output.grad_fn is None:
        raise ValueError("output has no history: run the model with gradients on")
    longest: dict[object, int] = {}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [earlier for earlier, _ in node.next_functions if earlier is not None]
        unknown = [earlier for earlier in before if earlier not in longest]
        if unknown:
            waiting += unknown
            continue
        waiting.pop()
        longest[node] = _products(node) + max((longest[n] for n in before), default=0)
    return longest[output.grad_fn]


def layers_to_reach(layers: Iterable[nn.Module], x: Tensor) -> int:
    """After how many layers does the last word depend on the first?

    The smallest L with ∂h_T/∂x_1 ≠ 0 for h = layer_L(… layer_1(x)).

    Shapes:
        x (B, T, d_model), T ≥ 2; every layer (B, T, d_model) → (B, T, d_model)

    Raises:
        TypeError: x is no tensor of floats.
        ValueError: x has another shape, or all layers together do not reach.

    Note:
        Give float64: a long recurrence shrinks the gradient, and in float32 a very
        small one is rounded to zero.

    >>> x = torch.randn(1, 4, 2)
    >>> layers_to_reach([WordConvolution(2, width=2) for _ in range(9)], x)
    3
    """
    check_kind("x", x, Tensor)
    if not x.is_floating_point():
        raise TypeError(f"x must be a tensor of floats, got {x.dtype}")
    if x.dim() != 3 or x.shape[1] < 2:
        raise ValueError(f"x must be (B, T, d_model) with T ≥ 2, got {tuple(x.shape)}")
    first = x.detach().clone().requires_grad_()
    h, number = first, 0
    for number, layer in enumerate(layers, start=1):
        h = layer(h)
        asked = h[:, -1].square().sum()
        (slope,) = torch.autograd.grad(asked, first, retain_graph=True)
        if slope[:, 0].any():
            return number
    raise ValueError(f"{number} layers do not reach across {x.shape[1]} words")


class WordConvolution(nn.Module):
    """Each word is made from itself and earlier ones, `dilation` words apart.

        yₜ = Σⱼ x_{t − j·dilation} Wⱼ + b,   j = 0 … width − 1

    Shapes:
        x (B, T, d_model) → (B, T, d_model); zeros stand before the first word

    Raises:
        ValueError: a size below 1; x of another width.  TypeError: of another dtype.

    Note:
        It looks back only: centred dilated windows on a short text jump out at its
        ends, and some distances are never bridged.

    >>> WordConvolution(8, width=3)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, d_model: int, width: int, dilation: int = 1):
        super().__init__()
        check_sizes(d_model=d_model, width=width, dilation=dilation)
        self.before = (width - 1) * dilation
        self.product = nn.Conv1d(d_model, d_model, width, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        _check_text(x, self.product.weight)
        padded = F.pad(x, (0, 0, self.before, 0))  # (B, before + T, d_model)
        return self.product(padded.mT).mT  # Conv1d has words as its last axis


class WindowedAttention(nn.Module):
    """One head that sees `width` words, the middle one its own; no other score is made.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Raises:
        ValueError: a size below 1, an even width; x of another width.
        TypeError: x of another dtype.

    Source: Vaswani et al. 2017, §4, “restricted”.

    >>> WindowedAttention(8, width=3)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, d_model: int, width: int):
        super().__init__()
        check_sizes(d_model=d_model, width=width)
        _check_odd(width)
        self.width = width
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        _check_text(x, self.q_proj.weight)
        q = self.q_proj(x).unsqueeze(-2)  # (B, T, 1, d): one row for each word
        k, v = self._windows(self.k_proj(x)), self._windows(self.v_proj(x))
        T, side = x.shape[1], self.width // 2
        beside = torch.arange(-side, side + 1, device=x.device)
        at = torch.arange(T, device=x.device)[:, None] + beside
        outside = (at < 0) | (at >= T)  # (T, width): what lies beyond the text
        scores = (q @ k)[..., 0, :] / x.shape[-1] ** 0.5  # (B, T, width)
        weights = scores.masked_fill(outside, -torch.inf).softmax(-1)
        return self.o_proj((weights.unsqueeze(-2) @ v.mT).squeeze(-2))

    def _windows(self, x: Tensor) -> Tensor:
        """The neighbours of each word: (B, T, d) → (B, T, d, width)."""
        side = self.width // 2
        return F.pad(x, (0, 0, side, side)).unfold(1, self.width, 1)


def table_layer(kind: str, d_model: int, width: int = 3, number: int = 0) -> nn.Module:
    """A layer for each row of the paper's Table 1, d_model numbers wide throughout.

    Args:
        kind: "self-attention", "recurrent", "convolutional" or "restricted".
        width: k, words that a convolution reads, or r, words of a restricted window.
        number: of the layer in its stack, from 0; convolutions are spread out by
            widthⁿᵘᵐᵇᵉʳ words, as the paper's log needs.

    Raises:
        ValueError: another kind; a size below 1, an even width.

    >>> sum(p.numel() for p in table_layer("recurrent", d_model=8).parameters())
    144
    """
    check_sizes(d_model=d_model, width=width)
    check_sizes(0, number=number)
    _check_odd(width)
    if kind == "self-attention":
        return MultiHeadAttention(d_model, n_heads=1, kernel=equation)
    if kind == "recurrent":
        return CellReader(ElmanCell(d_model, d_model))
    if kind == "convolutional":
        return WordConvolution(d_model, width, dilation=width**number)
    if kind == "restricted":
        return WindowedAttention(d_model, width)
    raise ValueError(
        "kind must be 'self-attention', 'recurrent', 'convolutional' or 'restricted', "
        f"got {kind!r}"
    )


def _products(node) -> int:
    """How many products one node of the graph stands for.

    Raises:
        ValueError: it hides them.
    """
    name = node.name().removesuffix("0").removesuffix("Backward")
    if _HIDDEN in name or isinstance(node, torch.autograd.function.BackwardCFunction):
        raise ValueError(f"{node.name()} hides its products: build it of single steps")
    return 2 if name.startswith(_TWO) else int(name in _ONE)


def _check_odd(width: int) -> None:
    if width % 2 == 0:
        raise ValueError(f"width must be odd, so that it has a middle, got {width}")


def _check_text(x: Tensor, weight: Tensor) -> None:
    """One word at least, of the layer's width."""
    check_vectors("x", x, weight)
    if x.shape[1] < 1:
        raise ValueError(f"x must have one word at least, got {tuple(x.shape)}")
