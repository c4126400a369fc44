# SPDX-License-Identifier: MIT
"""How much does what a model knows at word t still depend on word k?

A reader turns word vectors into states, one a word. Its Jacobian ∂h_t/∂x_k says what a
small change of word k would change in state t. In a recurrent network that Jacobian is
a product of t − k factors, which shrinks or grows with the distance; attention joins
any two words in one step.

Source: Bengio, Simard and Frasconi 1994; Pascanu, Mikolov and Bengio 2013, §2.

Taught in: book/01_recurrence.ipynb
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block
from deepdive.inputs import check_kind, check_sizes
from deepdive.masks import Causal
from deepdive.recurrent import Cell, ElmanCell, GruCell, LstmCell, unroll

Read = Callable[[Tensor], Tensor]


def influence(read: Read, x: Tensor, t: int = -1) -> Tensor:
    """How far state t still depends on each word: the size of ∂h_t/∂x_k for every k.

        sₖ = ‖∂h_t/∂x_k‖,   the root of the sum of the squares of all its entries

    Exact, by backpropagation: the text is read in d_hidden copies at once, and copy i
    is asked for the gradient of number i of h_t.

    Shapes:
        x (1, T, d_in) → (T,), in x's dtype; zero for every k > t if the reader is
        causal

    Args:
        read: x (B, T, d_in) → states (B, T, d_hidden), each row by itself; a reader of
            this module, or any function of that kind.
        t: the state that is asked about; −1 is the last.

    Raises:
        TypeError: read is no function, x no tensor of floats, t no integer.
        ValueError: x or what read gives has another shape, or there is no word t.

    >>> halves = lambda x: x.cumsum(1) / 2
    >>> influence(halves, torch.zeros(1, 3, 1), t=1).tolist()
    [0.5, 0.5, 0.0]
    """
    T = _check_text(read, x, t)
    with torch.no_grad():
        states = read(x)
    check_kind("what read gives", states, Tensor)
    if states.dim() != 3 or states.shape[:2] != (1, T):
        raise ValueError(
            f"read must give states (1, {T}, d_hidden), got {tuple(states.shape)}"
        )
    n = states.shape[-1]
    copies = x.detach().expand(n, -1, -1).clone().requires_grad_()  # (n, T, d_in)
    with torch.enable_grad():
        asked = read(copies)[:, t].diagonal().sum()  # number i of copy i
        if not asked.requires_grad:  # states that no word has a part in
            return x.new_zeros(T)
        (rows,) = torch.autograd.grad(asked, copies, allow_unused=True)
    if rows is None:
        return x.new_zeros(T)
    return rows.square().sum((0, 2)).sqrt()  # (n, T, d_in) → (T,)


class CellReader(nn.Module):
    """A recurrent cell as a reader: its output after each word.

    Shapes:
        x (B, T, d_in) → (B, T, d_hidden)

    Raises:
        TypeError: not a cell.

    >>> CellReader(GruCell(d_in=3, d_hidden=4))(torch.zeros(1, 5, 3)).shape
    torch.Size([1, 5, 4])
    """

    def __init__(self, cell: Cell):
        super().__init__()
        check_kind("cell", cell, Cell)
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        return self.cell.read(unroll(self.cell, x))


class AttentionReader(nn.Module):
    """An attention layer, or a block around one, that sees no later word.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Raises:
        TypeError: neither `MultiHeadAttention` nor `Block`.

    >>> AttentionReader(MultiHeadAttention(8, 2))(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, layer: MultiHeadAttention | Block):
        super().__init__()
        check_kind("layer", layer, MultiHeadAttention, Block)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, mask=Causal())


def equal_readers(d_in: int = 32, n_heads: int = 4) -> dict[str, nn.Module]:
    """Four readers with random weights and, to 3 %, as many parameters each.

    The attention layer has 4 · d_in² (no biases); each cell's width is the one whose
    count comes nearest to that.

    Returns:
        "elman", "gru", "lstm", "attention" → the reader.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size below 1, or no width whose count is within 3 %: d_in is too
            small; n_heads that does not divide d_in.

    >>> readers = equal_readers(d_in=32)
    >>> [sum(p.numel() for p in r.parameters()) for r in readers.values()]
    [4067, 4176, 4028, 4096]
    """
    check_sizes(d_in=d_in, n_heads=n_heads)
    layer = MultiHeadAttention(d_in, n_heads)
    goal = 4 * d_in**2
    kinds = {"elman": ElmanCell, "gru": GruCell, "lstm": LstmCell}
    widths = {name: equal_width(kind, d_in, goal) for name, kind in kinds.items()}
    cells = {name: kinds[name](d_in, width) for name, width in widths.items()}
    return {name: CellReader(cell) for name, cell in cells.items()} | {
        "attention": AttentionReader(layer)
    }


def equal_width(
    kind: type[Cell], d_in: int, parameters: int, beside: int = 0, within: float = 0.03
) -> int:
    """The width at which a cell has about this many parameters.

        gates · d_hidden · (d_in + d_hidden + 2) + beside · d_hidden

    Args:
        beside: further parameters for each number of the state, such as those of an
            output layer.
        within: the largest difference allowed, as a share of `parameters`.

    Raises:
        TypeError: no kind of cell, or a size that is no integer.
        ValueError: a size is too small, or no width comes as near as that.

    >>> equal_width(LstmCell, d_in=32, parameters=4096)
    19
    """
    if not (isinstance(kind, type) and issubclass(kind, Cell)):
        raise TypeError(f"kind must be a class of cell, got {kind!r}")
    check_sizes(d_in=d_in, parameters=parameters)
    check_sizes(0, beside=beside)

    def count(width: int) -> int:
        return width * (kind.gates * (d_in + width + 2) + beside)

    width = 1
    while count(width) < parameters:
        width += 1
    width = min(width, max(1, width - 1), key=lambda w: abs(count(w) - parameters))
    if abs(count(width) - parameters) > within * parameters:
        raise ValueError(
            f"no {kind.__name__} of d_in {d_in} has {parameters} parameters within "
            f"{within:.0%}: the nearest has {count(width)}"
        )
    return width


def _check_text(read: Read, x: Tensor, t: int) -> int:
    """The number of words of x (1, T, d_in), of which t must be one."""
    if not callable(read):
        raise TypeError(f"read must be a function of x, got {read!r}")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a tensor of floats, got {got}")
    if x.dim() != 3 or x.shape[0] != 1 or 0 in x.shape:
        raise ValueError(f"x must be (1, T, d_in), one text, got {tuple(x.shape)}")
    if not isinstance(t, int) or isinstance(t, bool):
        raise TypeError(f"t must be an integer, got {t!r}")
    T = x.shape[1]
    if not -T <= t < T:
        raise ValueError(f"t must be one of {T} words, {-T} … {T - 1}, got {t}")
    return T
