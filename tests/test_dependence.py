# SPDX-License-Identifier: MIT
"""What waits for what: chains counted by hand, reaches by counting words, FLOPs."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import pre_norm
from deepdive.configs import TransformerConfig
from deepdive.dependence import (
    WindowedAttention,
    WordConvolution,
    layers_to_reach,
    longest_chain,
    table_layer,
)
from deepdive.fading import CellReader
from deepdive.kernels import attention_weights, equation, fused
from deepdive.models.transformer2017 import Transformer, build_block
from deepdive.recurrent import ElmanCell, GruCell, LstmCell
from tests.compare import close

D = 8
KINDS = ["self-attention", "recurrent", "convolutional", "restricted"]
kinds = pytest.mark.parametrize("kind", KINDS)


def text(T: int, d: int = D) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(1, T, d, dtype=torch.float64)


def linear() -> nn.Linear:
    return nn.Linear(D, D).double()


# ── Chains ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [1, 2, 7])
def test_one_after_another_adds_up(n):
    assert longest_chain(nn.Sequential(*(linear() for _ in range(n)))(text(3))) == n


def test_side_by_side_the_longer_counts():
    a, b, c = linear(), linear(), linear()
    x = text(3)
    assert longest_chain(a(x) + b(x) + c(x)) == 1
    assert longest_chain(a(x) + c(b(x))) == longest_chain(c(b(x)) + a(x)) == 2
    shared = a(x)
    assert longest_chain(b(shared) * c(shared)) == 2


@pytest.mark.parametrize("cell", [ElmanCell, GruCell, LstmCell])
@pytest.mark.parametrize("T", [1, 2, 9])
def test_a_recurrence_waits_for_every_word(cell, T):
    """The inputs' products are done at once; then one product with the state each."""
    assert longest_chain(CellReader(cell(D, 5).double())(text(T))) == T


@pytest.mark.parametrize("T", [1, 2, 9])
@pytest.mark.parametrize("mask", [False, True])
def test_attention_waits_four_times_whatever_its_kernel(T, mask):
    """Projection, scores, mixture, W_O; torch's fused kernel has two of them inside."""
    allowed = torch.ones(T, T).tril().bool() if mask else None
    for kernel in (equation, fused):
        layer = MultiHeadAttention(D, 2, kernel=kernel).double()
        assert longest_chain(layer(text(T), mask=allowed)) == 4


def test_torch_s_own_attention_agrees():
    layer, x = nn.MultiheadAttention(D, 2, batch_first=True).double(), text(5)
    for weights in (True, False):
        assert longest_chain(layer(x, x, x, need_weights=weights)[0]) == 4


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("T", [2, 6])
def test_the_whole_transformer_by_hand(layers, T):
    """An encoder layer 4 + 2. The decoder's first cross-attention needs the memory's
    keys: 1, then scores, mixture, W_O and the network: 5; each later layer 4 + 4 + 2.
    """
    config = TransformerConfig(5, 5, D, layers, 2, 16)
    src, tgt = torch.zeros(1, 4).long(), torch.zeros(1, T).long()
    chain = 6 * layers + 6 + 10 * (layers - 1) + 1  # the output layer
    assert longest_chain(Transformer(config)(src, tgt)) == chain


def test_a_decoder_layer_alone():
    block = build_block(TransformerConfig(5, 5, D, 1, 2, 16), pre_norm, cross=True)
    memory = torch.zeros(1, 3, D)  # asks for no gradient, and needs no product before
    assert longest_chain(block(torch.zeros(1, 4, D), memory)) == 4 + 4 + 2


@pytest.mark.parametrize("kind", [nn.LSTM, nn.RNN, nn.GRU])
def test_torch_s_recurrences_are_counted_or_refused(kind):
    out = kind(D, D, batch_first=True)(torch.zeros(1, 6, D))[0]
    if "Rnn" in str(out.grad_fn.next_functions) + str(out.grad_fn):
        with pytest.raises(ValueError, match="hides its products"):
            longest_chain(out)
    else:
        assert longest_chain(out) == 6


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="hides its products"):
        longest_chain(Doubled.apply(linear()(text(2))))
    with pytest.raises(ValueError, match="no history"):
        longest_chain(text(2))
    with torch.no_grad(), pytest.raises(ValueError, match="no history"):
        longest_chain(linear()(text(2)))


def test_a_long_graph_needs_no_recursion():
    assert longest_chain(CellReader(ElmanCell(1, 1).double())(text(3000, 1))) == 3000


# ── Reach ────────────────────────────────────────────────────────────────────────────


def reach(kind: str, T: int, width: int = 3) -> int:
    layers = (table_layer(kind, 4, width, i).double() for i in range(200))
    return layers_to_reach(layers, text(T, 4))


@pytest.mark.parametrize("T", [2, 3, 8, 9, 10, 27, 28, 64])
@pytest.mark.parametrize("width", [3, 5])
def test_how_many_layers_it_takes_to_see_the_first_word(T, width):
    assert reach("self-attention", T, width) == reach("recurrent", T, width) == 1
    assert reach("convolutional", T, width) == math.ceil(math.log(T, width) - 1e-9)
    assert reach("restricted", T, width) == math.ceil((T - 1) / (width // 2))


def test_convolutions_that_are_not_spread_out_take_n_over_k():
    layers = (WordConvolution(4, 3).double() for _ in range(99))
    assert layers_to_reach(layers, text(20, 4)) == math.ceil(19 / 2)


def test_too_few_layers_are_said_to_be_too_few():
    with pytest.raises(ValueError, match="2 layers do not reach across 9 words"):
        layers_to_reach([WordConvolution(D, 3).double() for _ in range(2)], text(9))


# ── The layers ───────────────────────────────────────────────────────────────────────


def flops(layer: nn.Module, T: int) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(text(T))
    return counter.get_total_flops()


@pytest.mark.parametrize("n", [1, 4, 16])
def test_operations_are_the_table_s_with_their_constants(n):
    d, k = D, 3
    assert flops(table_layer("recurrent", d).double(), n) == 4 * n * d * d
    assert flops(table_layer("convolutional", d).double(), n) == 2 * k * n * d * d
    projections = 8 * n * d * d
    got = flops(table_layer("self-attention", d).double(), n)
    assert got == projections + 4 * n * n * d
    got = flops(table_layer("restricted", d).double(), n)
    assert got == projections + 4 * k * n * d


@pytest.mark.parametrize("T", [1, 2, 5, 9])
def test_a_window_equals_the_formula_with_a_mask(T):
    layer, x = WindowedAttention(D, 5).double(), text(T)
    at = torch.arange(T)
    near = (at[:, None] - at).abs() <= 2
    q, k, v = (p(x)[:, None] for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    assert attention_weights(q, k, mask=near).shape == (1, 1, T, T)
    close(layer(x), layer.o_proj(equation(q, k, v, mask=near)[:, 0]), 1e-12)


@pytest.mark.parametrize("dilation", [1, 3])
def test_a_convolution_is_the_sum_it_says(dilation):
    layer, x = WordConvolution(D, 3, dilation).double(), text(9)
    W = layer.product.weight  # (out, in, width), the oldest word first
    for t in (0, 4, 8):
        expected = layer.product.bias.clone()
        for j in range(3):
            if t - j * dilation >= 0:
                expected = expected + W[:, :, 2 - j] @ x[0, t - j * dilation]
        close(layer(x)[0, t], expected, 1e-12)


@kinds
def test_every_kind_keeps_the_shape(kind):
    assert table_layer(kind, D).double()(text(7)).shape == (1, 7, D)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="'dense'"):
        table_layer("dense", D)
    with pytest.raises(ValueError, match=r"width must be odd, .*got 4"):
        WindowedAttention(D, 4)
    with pytest.raises(ValueError, match=r"T ≥ 2, got \(1, 1, 8\)"):
        layers_to_reach([linear()], text(1))
