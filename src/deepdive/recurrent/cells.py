# SPDX-License-Identifier: MIT
"""What does a recurrent network do with one more word? Three cells, and the loop.

A cell turns the old state and the next input into the new state. Its weights lie as
torch's do (the gates stacked, in torch's order), so that they can be exchanged.

Taught in: book/01_recurrence.ipynb
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from deepdive.inputs import check_kind, check_vectors


class Cell(nn.Module, ABC):
    """What all cells share: two linear maps, one of the input and one of the state.

    The input's map needs no state, so `unroll` applies it to all steps at once; what
    must wait for the step before is `step` alone.

    Attributes:
        gates: how many vectors of width d_hidden the maps give.
        d_state: width of the state, a multiple of d_hidden.

    Shapes:
        x (B, d_in), state (B, d_state) → the new state (B, d_state)

    Raises:
        ValueError: a size below 1, or another shape.  TypeError: another dtype.

    Taught in: book/01_recurrence.ipynb
    """

    gates = 1
    _parts = 1  # how many vectors the state is made of

    def __init__(self, d_in: int, d_hidden: int):
        super().__init__()
        if min(d_in, d_hidden) < 1:
            raise ValueError(f"d_in and d_hidden must be ≥ 1, got {d_in}, {d_hidden}")
        self.d_in, self.d_hidden = d_in, d_hidden
        self.d_state = self._parts * d_hidden
        self.x_proj = nn.Linear(d_in, self.gates * d_hidden)
        self.h_proj = nn.Linear(d_hidden, self.gates * d_hidden)
        for weight in self.parameters():
            nn.init.uniform_(weight, -(d_hidden**-0.5), d_hidden**-0.5)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        check_rows("x", x, self.d_in, self.x_proj.weight)
        check_rows("state", state, self.d_state, self.h_proj.weight)
        if len(x) != len(state):
            raise ValueError(f"{len(x)} inputs do not fit {len(state)} states")
        return self.step(self.x_proj(x), state)

    @abstractmethod
    def step(self, projected: Tensor, state: Tensor) -> Tensor:
        """The step itself, after the input's map: (B, gates · d_hidden) and a state."""

    def read(self, state: Tensor) -> Tensor:
        """What the rest of the model sees of a state: (…, d_state) → (…, d_hidden)."""
        return state[..., : self.d_hidden]

    def start(self, x: Tensor) -> Tensor:
        """The state before the first word, zeros: one row for each of x."""
        return x.new_zeros(len(x), self.d_state)


class ElmanCell(Cell):
    """The plain recurrent network.

        h′ = tanh(W x + b + U h + c)

    Source: Elman 1990.

    >>> cell = ElmanCell(d_in=3, d_hidden=4)
    >>> cell(torch.zeros(2, 3), torch.zeros(2, 4)).shape
    torch.Size([2, 4])

    Taught in: book/01_recurrence.ipynb
    """

    def step(self, projected: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(projected + self.h_proj(state))


class GruCell(Cell):
    """A step that may leave each number of its state as it was: two gates.

        r = σ(W_r x + U_r h)          reset: how much of the old state is read
        z = σ(W_z x + U_z h)          update: how much of the old state stays
        n = tanh(W_n x + r ⊙ U_n h)   the proposed new state
        h′ = (1 − z) ⊙ n + z ⊙ h

    Each W x and each U h carries a bias of its own.

    Source: Cho et al. 2014.

    Note:
        Papers differ in two places. r stands here outside U_n h, as in torch, and
        inside, U_n (r ⊙ h), in the paper; z keeps the old state here and in the paper,
        and lets the new one in in Bahdanau et al. 2015.

    Taught in: book/01_recurrence.ipynb
    """

    gates = 3

    def step(self, projected: Tensor, state: Tensor) -> Tensor:
        x_r, x_z, x_n = projected.chunk(3, dim=-1)
        h_r, h_z, h_n = self.h_proj(state).chunk(3, dim=-1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return (1 - z) * n + z * state


class LstmCell(Cell):
    """A step with a second vector that is only scaled and added to: three gates.

        i = σ(W_i x + U_i h)          input: how much of the new is added
        f = σ(W_f x + U_f h)          forget: how much of the old stays
        g = tanh(W_g x + U_g h)       the new
        o = σ(W_o x + U_o h)          output: how much is shown
        c′ = f ⊙ c + i ⊙ g,   h′ = o ⊙ tanh(c′)

    The state is h and c side by side, (B, 2 · d_hidden).

    Source: Hochreiter and Schmidhuber 1997; the forget gate is Gers et al. 2000.

    Taught in: book/01_recurrence.ipynb
    """

    gates = 4
    _parts = 2

    def step(self, projected: Tensor, state: Tensor) -> Tensor:
        h, c = state.chunk(2, dim=-1)
        i, f, g, o = (projected + self.h_proj(h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return torch.cat((h, c), dim=-1)  # (B, 2 · d_hidden)


def unroll(
    cell: Cell,
    x: Tensor,
    state: Tensor | None = None,
    keep: Tensor | None = None,
    backwards: bool = False,
) -> Tensor:
    """Let a cell read a sequence: its state after every step, each from the last.

    Where `keep` is False the state passes through unchanged. So a padded row's last
    state is the one after its last real word, and a backwards reader starts there.

    Shapes:
        x (B, T, d_in), state (B, d_state), keep (B, T) bool → (B, T, d_state)

    Args:
        state: before the first step; zeros unless given.
        backwards: read from the last step to the first; outputs stay in x's order.

    Raises:
        ValueError: a shape is wrong or T = 0.  TypeError: a dtype is wrong.

    >>> unroll(GruCell(d_in=3, d_hidden=4), torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 4])

    Taught in: book/01_recurrence.ipynb
    """
    check_kind("cell", cell, Cell)
    check_vectors("x", x, cell.x_proj.weight)
    if 0 in x.shape:
        raise ValueError(f"x must have a row and a step, got {tuple(x.shape)}")
    check_keep("keep", keep, x.shape[:2])
    if state is None:
        state = cell.start(x)
    check_rows("state", state, cell.d_state, cell.h_proj.weight)
    if len(state) != len(x):
        raise ValueError(f"{len(state)} states do not fit {len(x)} rows of x")
    projected = cell.x_proj(x)  # (B, T, gates · d_hidden), all steps at once
    states = []
    for t in reversed(range(x.shape[1])) if backwards else range(x.shape[1]):
        state = kept(keep, t, cell.step(projected[:, t], state), state)
        states.append(state)
    if backwards:
        states.reverse()
    return torch.stack(states, dim=1)  # (B, T, d_state)


def kept(keep: Tensor | None, t: int, new: Tensor, old: Tensor) -> Tensor:
    """The new state in the rows whose step t is real, the old one in the others.

    Shapes:
        keep (B, T), new, old (B, d_state) → (B, d_state)
    """
    return new if keep is None else torch.where(keep[:, t, None], new, old)


def check_rows(name: str, x: Tensor, width: int, weight: Tensor) -> None:
    """x must be (B, width) in the weight's dtype (autocast may mix them).

    Raises:
        TypeError: not a tensor, or another dtype.  ValueError: another shape.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.dim() != 2 or x.shape[1] != width:
        raise ValueError(f"{name} must be (B, {width}), got {tuple(x.shape)}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"{name} is {x.dtype}, the cell's weights are {weight.dtype}")


def check_keep(name: str, keep: Tensor | None, shape: tuple[int, ...]) -> None:
    """None, or booleans of the given shape, True = a real word.

    Raises:
        TypeError: not a bool tensor.  ValueError: another shape.
    """
    if keep is None:
        return
    got = keep.dtype if isinstance(keep, Tensor) else type(keep).__name__
    if got != torch.bool:
        raise TypeError(f"{name} must be a bool tensor, True = a real word, got {got}")
    if tuple(keep.shape) != tuple(shape):
        raise ValueError(f"{name} must be {tuple(shape)}, got {tuple(keep.shape)}")
