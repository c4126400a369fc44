# SPDX-License-Identifier: MIT
"""Blocks, norms, feed-forward networks and positions against torch's."""

import pytest
import torch
from compare import close
from torch import nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, post_norm, pre_norm
from deepdive.feedforward import FeedForward
from deepdive.masks import Everyone
from deepdive.norms import RMSNorm
from deepdive.positions import LearnedPositions

D_MODEL, H, D_FF, B, T = 12, 3, 20, 2, 5
KEEP = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()


def draw(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def twins(seed, residual, activation):
    """Our block and torch's encoder layer, with the same random weights."""
    theirs = nn.TransformerEncoderLayer(
        D_MODEL,
        H,
        D_FF,
        dropout=0.0,
        activation={nn.ReLU: "relu", nn.GELU: "gelu"}[activation],
        batch_first=True,
        norm_first=residual is pre_norm,
        dtype=torch.float64,
    )
    ours = Block(
        MultiHeadAttention(D_MODEL, H, bias=True),
        FeedForward(D_MODEL, D_FF, activation()),
        nn.LayerNorm(D_MODEL),
        nn.LayerNorm(D_MODEL),
        residual,
    ).double()
    with torch.no_grad():
        for i, p in enumerate(theirs.parameters()):
            p.copy_(draw(seed * 100 + i, *p.shape) / 2)
        for p, q in pairs(ours, theirs):
            p.copy_(q)
    return ours, theirs


def pairs(ours, theirs, grad=False):
    """Our parameters beside torch's; its q, k and v stand in one matrix."""
    get = (lambda p: p.grad) if grad else (lambda p: p)
    attention, torchs = ours.attention, theirs.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    for kind in ("weight", "bias"):
        thirds = get(getattr(torchs, f"in_proj_{kind}")).chunk(3)
        for projection, third in zip(projections, thirds, strict=True):
            yield get(getattr(projection, kind)), third
        for mine, other in (
            (attention.o_proj, torchs.out_proj),
            (ours.feedforward.up, theirs.linear1),
            (ours.feedforward.down, theirs.linear2),
            (ours.attention_norm, theirs.norm1),
            (ours.feedforward_norm, theirs.norm2),
        ):
            yield get(getattr(mine, kind)), get(getattr(other, kind))


ORDERS = pytest.mark.parametrize("residual", [post_norm, pre_norm])
ACTIVATIONS = pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])


@ORDERS
@ACTIVATIONS
@pytest.mark.parametrize("seed", range(3))
def test_block_is_torchs_encoder_layer(seed, residual, activation):
    ours, theirs = twins(seed, residual, activation)
    x = draw(seed, B, T, D_MODEL)
    close(ours(x), theirs(x))


@ORDERS
@ACTIVATIONS
def test_block_and_its_gradients_with_padding(residual, activation):
    """Only real tokens are compared: torch leaves different numbers on padding."""
    ours, theirs = twins(4, residual, activation)
    x = draw(4, B, T, D_MODEL)
    a, b = ours(x, mask=Everyone(KEEP)), theirs(x, src_key_padding_mask=~KEEP)
    close(a[KEEP], b[KEEP])
    a[KEEP].square().sum().backward()
    b[KEEP].square().sum().backward()
    for mine, other in pairs(ours, theirs, grad=True):
        close(mine, other, 1e-9)


@ORDERS
def test_padding_changes_neither_length_nor_words(residual):
    ours, _ = twins(5, residual, nn.GELU)
    x = draw(5, 1, 3, D_MODEL)
    padded = torch.cat([x, draw(6, 1, 2, D_MODEL)], 1)
    ours.eval()
    alone, out = ours(x), ours(padded, mask=Everyone(KEEP[:1]))
    assert out.shape == (1, 5, D_MODEL)
    close(out[:, :3], alone)
    close(ours.train()(padded, mask=Everyone(KEEP[:1]))[:, :3], alone)


@ORDERS
def test_bias_reaches_the_attention(residual):
    ours, _ = twins(7, residual, nn.GELU)
    x = draw(7, B, T, D_MODEL)
    hide = torch.zeros(T, T).double().masked_fill(~KEEP[0], -torch.inf)
    close(ours(x, bias=hide), ours(x, mask=KEEP[0].expand(T, T)))


@ORDERS
def test_what_a_block_does_not_know_goes_to_the_attention(residual):
    """A new kind of attention may ask for more than a mask."""

    class Repeat(nn.Module):
        def forward(self, x, times, *, plus=0.0):
            return x * times + plus

    block = Block(Repeat(), nn.Identity(), nn.Identity(), nn.Identity(), residual)
    x = draw(11, B, T, D_MODEL)
    close(block(x, times=3, plus=1.0), 2 * (x + 3 * x + 1.0))


# ── Norms, feed-forward, positions ───────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(4,), (B, T, 4), (3, 1, 2, 4)])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_rmsnorm_is_torchs(shape, eps):
    ours, theirs = RMSNorm(4, eps).double(), nn.RMSNorm(4, eps).double()
    with torch.no_grad():
        for norm in (ours, theirs):
            norm.weight.copy_(draw(8, 4))
    x, y = (draw(9, *shape).requires_grad_() for _ in "xy")
    close(ours(x), theirs(y))
    ours(x).square().sum().backward()
    theirs(y).square().sum().backward()
    close(x.grad, y.grad, 1e-10)


def test_rmsnorm_of_large_half_precision_is_finite():
    """300² passes float16's 65,504: the square needs a wider type."""
    x = torch.full((1, 8), 300.0, dtype=torch.float16)
    close(RMSNorm(8).half()(x).float(), torch.ones(1, 8), 1e-3)


def test_feedforward_is_two_matrices_at_each_position():
    layer = FeedForward(4, 7, nn.ReLU()).double()
    x = draw(10, B, T, 4)
    hidden = (x @ layer.up.weight.T + layer.up.bias).clamp(min=0)
    close(layer(x), hidden @ layer.down.weight.T + layer.down.bias)
    close(layer(x)[:, 2], layer(x[:, 2]))
    assert FeedForward(4, 7, nn.ReLU(), bias=False).up.bias is None


def test_learned_positions_are_rows_of_a_table():
    table = LearnedPositions(6, 4)
    positions = torch.tensor([[0, 5], [2, 2]])
    assert torch.equal(table(positions), table.weight[positions])
    assert table(torch.empty(1, 0).long()).shape == (1, 0, 4)


@pytest.mark.parametrize("position", [6, 60, -1])
def test_learned_positions_end_where_the_table_ends(position):
    with pytest.raises(ValueError, match=f"0 … 5, got .*{position}"):
        LearnedPositions(6, 4)(torch.tensor([min(0, position), max(0, position)]))


def test_the_first_positions_are_the_first_rows():
    table = LearnedPositions(6, 4)
    for T in (0, 1, 6):
        assert torch.equal(table.first(T), table(torch.arange(T)))


def test_a_norm_of_another_shape_needs_no_change_here():
    """A gain that is one number says nothing about the block's width."""

    class ScaleNorm(nn.Module):
        def __init__(self, *shape):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(shape))

        def forward(self, x):
            return self.weight * nn.functional.normalize(x, dim=-1)

    for shape in ((), (1,)):
        block = Block(
            MultiHeadAttention(8, 2),
            FeedForward(8, 8, nn.ReLU()),
            ScaleNorm(*shape),
            ScaleNorm(*shape),
            pre_norm,
        )
        assert block(torch.randn(1, 3, 8)).shape == (1, 3, 8)
