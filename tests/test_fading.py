# SPDX-License-Identifier: MIT
"""How far a state depends on a word: laws, torch's own Jacobian, and scales by hand."""

import pytest
import torch
from torch import Tensor

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, pre_norm
from deepdive.fading import (
    AttentionReader,
    CellReader,
    equal_readers,
    equal_width,
    influence,
)
from deepdive.feedforward import FeedForward
from deepdive.recurrent import ElmanCell, GruCell, LstmCell
from tests.compare import close

T, D = 7, 32


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(1, T, D, dtype=torch.float64)


def block() -> AttentionReader:
    norms = (torch.nn.LayerNorm(D) for _ in range(2))
    attention = MultiHeadAttention(D, 4)
    feedforward = FeedForward(D, 48, torch.nn.GELU())
    return AttentionReader(Block(attention, feedforward, *norms, pre_norm))


READERS = {**equal_readers(D), "block": block()}
every = pytest.mark.parametrize("name", READERS)


def linear(W_x: Tensor, W_h: Tensor):
    """h_t = W_h h_{t−1} + W_x x_t: a recurrent network without its tanh."""

    def read(x: Tensor) -> Tensor:
        h, states = x.new_zeros(len(x), len(W_h)), []
        for t in range(x.shape[1]):
            h = h @ W_h.T + x[:, t] @ W_x.T
            states.append(h)
        return torch.stack(states, dim=1)

    return read


@pytest.mark.parametrize("t", [-1, 0, 3])
def test_a_linear_network_is_a_power_of_its_matrix(x, t):
    W_x, W_h = torch.randn(5, D).double(), torch.randn(5, 5).double() / 2
    last = t % T
    expected = [
        (torch.linalg.matrix_power(W_h, last - k) @ W_x).norm() if k <= last else 0
        for k in range(T)
    ]
    close(influence(linear(W_x, W_h), x, t), torch.tensor(expected).double(), 1e-10)


@pytest.mark.parametrize(
    ("gain", "steps", "left"), [(0.9, 20, 0.12), (0.95, 50, 0.077), (1.05, 100, 131.5)]
)
def test_a_gain_to_the_power_of_the_distance(gain, steps, left):
    eye = torch.eye(1, dtype=torch.float64)
    found = influence(linear(eye, gain * eye), torch.zeros(1, steps + 1, 1).double())
    assert found[0].item() == pytest.approx(left, rel=0.02)
    assert found[0].item() == pytest.approx(gain**steps, rel=1e-12)
    assert found[-1] == 1


@every
@pytest.mark.parametrize("t", [-1, 3])
def test_it_is_the_norm_of_torchs_own_jacobian(name, x, t):
    read = READERS[name].double()
    jacobian = torch.autograd.functional.jacobian(lambda x: read(x)[0, t], x)
    expected = jacobian[:, 0].square().sum((0, 2)).sqrt()  # (n, T, d_in) → (T,)
    close(influence(read, x, t), expected, 1e-12)


@every
def test_it_is_what_a_small_step_does(name, x):
    """By differences, entry by entry: no gradient is taken."""
    read, step = READERS[name].double(), 1e-6
    with torch.no_grad():
        steps = step * torch.eye(D).double()
        ways = []
        for sign in (1, -1):
            moved = x.expand(D, -1, -1).clone()
            moved[:, 2] += sign * steps
            ways.append(read(moved)[:, 4])
    expected = ((ways[0] - ways[1]) / (2 * step)).norm()
    assert influence(read, x, 4)[2].item() == pytest.approx(expected.item(), rel=1e-6)


@every
def test_no_state_depends_on_a_later_word(name, x):
    found = influence(READERS[name].double(), x, 3)
    assert (found[4:] == 0).all() and (found[:4] > 0).all()


def test_the_state_of_an_lstm_is_what_it_shows(x):
    """h, not c: c alone decides at the last step what is shown."""
    cell = LstmCell(D, 5).double()
    with torch.no_grad():
        cell.x_proj.bias[-5:] = -1e9  # the output gate is shut
        cell.h_proj.bias[-5:] = 0
    assert influence(CellReader(cell), x).max() == 0


def test_a_gru_that_keeps_everything_forgets_nothing():
    """The update gate open wide: h stays, whatever comes."""
    cell = GruCell(1, 1).double()
    with torch.no_grad():
        for weight in cell.parameters():
            weight.zero_()
        cell.x_proj.weight[1], cell.x_proj.weight[2] = -40, 1  # x = 1 writes, 0 keeps
        cell.x_proj.bias[1] = 20
    x = torch.tensor([[[1.0], *[[0.0]] * 200]]).double()
    found = influence(CellReader(cell), x)
    assert found[0].item() == pytest.approx(influence(CellReader(cell), x, 0)[0].item())
    assert found[0] > 0.4 and found[1:].max() < 1e-6


@pytest.mark.parametrize("d_in", [32, 48, 64, 100])
def test_equal_readers_are_equal(d_in):
    readers = equal_readers(d_in)
    counts = [sum(p.numel() for p in r.parameters()) for r in readers.values()]
    assert list(readers) == ["elman", "gru", "lstm", "attention"]
    assert counts[-1] == 4 * d_in**2
    assert max(counts) <= 1.03 * counts[-1] and min(counts) >= 0.97 * counts[-1]


@pytest.mark.parametrize("kind", [ElmanCell, GruCell, LstmCell])
def test_no_other_width_comes_nearer(kind):
    def off(width: int) -> int:
        head = torch.nn.Linear(width, 28, bias=False)
        parts = [*kind(48, width).parameters(), *head.parameters()]
        return abs(sum(p.numel() for p in parts) - 50_000)

    width = equal_width(kind, 48, 50_000, beside=28)
    assert off(width) == min(off(width + i) for i in (-1, 0, 1))


def test_what_no_word_has_a_part_in_is_zero(x):
    free = torch.ones(1, T, 2, dtype=torch.float64)
    read = [
        lambda x: free.expand(len(x), -1, -1),
        lambda x: x[..., :2].detach() + free.clone().requires_grad_(),
    ]
    for constant in read:
        assert influence(constant, x).tolist() == [0] * T


@torch.no_grad()
def test_gradients_are_taken_even_where_they_are_off(x):
    assert influence(READERS["gru"].double(), x)[-1] > 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"read": 3}, TypeError, "read must be a function"),
        ({"read": lambda x: x[0]}, ValueError, r"states \(1, 7, d_hidden\)"),
        ({"x": torch.zeros(2, T, D)}, ValueError, "one text, got"),
        ({"x": torch.zeros(1, T, D).long()}, TypeError, "floats, got torch.int64"),
        ({"t": 7}, ValueError, "one of 7 words, -7 … 6, got 7"),
        ({"t": 1.5}, TypeError, r"t must be an integer, got 1\.5"),
    ],
)
def test_wrong_input(change, error, message):
    good = {"read": lambda x: x, "x": torch.zeros(1, T, D), "t": 0}
    with pytest.raises(error, match=message):
        influence(**{**good, **change})


def test_sizes_that_cannot_be_equal():
    with pytest.raises(ValueError, match="GruCell of d_in 16 has 1024 parameters"):
        equal_readers(16)
    with pytest.raises(TypeError, match="kind must be a class of cell"):
        equal_width(torch.nn.Linear, 8, 800)
