# SPDX-License-Identifier: MIT
"""`tiled` against the equation, whatever the tile; what it moves and what it holds."""

import math
import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from compare import close
from hypothesis import given, settings
from hypothesis import strategies as st

from deepdive.kernels import equation, fused, tiled
from deepdive.kernels.tiled import (
    BLOCK,
    Plan,
    backward,
    count_bytes,
    equation_bytes,
    forward,
    make_plan,
    online_softmax_steps,
    seen,
    sees_all,
)
from deepdive.masks import Causal, Everyone
from deepdive.memory import peak_memory


def draw(seed, *shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]


# ── The equation, on any shape, mask, bias and tile ──────────────────────────────────


class Strided(Causal):
    """A reader's own rule, which lets every query see ahead, to every third key."""

    def allowed(self, query, key):
        return super().allowed(query, key) | (key % 3 == 0)


@st.composite
def calls(draw_from):
    """Arguments of a kernel in float64, and a block size."""
    pick = draw_from
    lengths = st.integers(1, 13)
    B, G, n, D, Dv = (pick(st.integers(1, 3)) for _ in range(5))
    H, T, S = G * n, pick(lengths), pick(lengths)
    seed = pick(st.integers(0, 2**31))
    random = torch.Generator().manual_seed(seed)
    shapes = [(T, S), (B, H, T, S), (S,), (B, 1, 1, S), (H, T, 1), (1, 1), ()]
    shape = pick(st.sampled_from(shapes))
    keep = torch.rand(B, S, generator=random) < 0.6
    window = pick(st.none() | st.integers(1, 14))
    rule = pick(st.sampled_from([Causal, Strided]))
    kinds = {
        "none": None,
        "bool": torch.rand(shape, generator=random) < 0.5,
        "everyone": Everyone(),
        "padding": Everyone(keep),
        "rule": rule(window, prefix=pick(st.integers(0, 14))),
        "padded rule": rule(window, prefix=pick(st.integers(0, 5)), keep=keep),
    }
    mask = kinds[pick(st.sampled_from(list(kinds)))]
    q, k, v, bias = draw(
        seed, (B, H, T, D), (B, G, S, D), (B, G, S, Dv), pick(st.sampled_from(shapes))
    )
    bias = pick(st.sampled_from([None, bias]))
    scale = pick(st.sampled_from([None, 1.0, 0.3]))
    return (q, k, v, mask, bias, scale), pick(st.sampled_from([1, 2, 3, 4, 5, 16]))


def gradients(kernel, q, k, v, mask, bias, scale, **more):
    """Output and gradients of a sum with uneven weights."""
    inputs = [x.clone().requires_grad_() for x in (q, k, v, bias) if x is not None]
    out = kernel(*inputs[:3], mask, *(inputs[3:] or [None]), scale, **more)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    (out * weights).sum().backward()
    return out.detach(), [x.grad for x in inputs]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(calls())
def test_tiled_is_the_equation_and_so_are_its_gradients(call):
    arguments, block_size = call
    out, grads = gradients(tiled, *arguments, block_size=block_size)
    right, expected = gradients(equation, *arguments)
    close(out, right)
    for ours, theirs, name in zip(grads, expected, ("q", "k", "v", "bias"), strict=0):
        close(ours, theirs, 1e-10, f"the gradient of {name}")


@pytest.mark.parametrize("name", ["none", "rule", "padding", "nothing"])
@pytest.mark.parametrize("shape", [None, (4, 5), (4, 1, 1), (1, 4, 4, 5), ()])
def test_gradcheck(name, shape):
    keep = torch.tensor([[1, 1, 0, 1, 0]]).bool()
    mask = {
        "none": None,
        "rule": Causal(window=3, prefix=2),
        "padding": Everyone(keep),
        "nothing": torch.zeros(4, 1).bool(),
    }[name]
    inputs = draw(1, (1, 4, 4, 2), (1, 2, 5, 2), (1, 2, 5, 3))
    inputs += [] if shape is None else draw(2, shape)
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias=None: tiled(q, k, v, mask, bias, block_size=2),
        [x.requires_grad_() for x in inputs],
    )


@pytest.mark.parametrize("T, S", [(BLOCK, BLOCK), (BLOCK + 1, 2 * BLOCK + 3)])
@pytest.mark.parametrize("mask", [None, Causal(), Causal(window=BLOCK)])
def test_with_tiles_as_they_are_by_default(T, S, mask):
    q, k, v = draw(3, (1, 4, T, 8), (1, 2, S, 8), (1, 2, S, 8))
    close(tiled(q, k, v, mask), equation(q, k, v, mask))


# ── Cases that went wrong in public ──────────────────────────────────────────────────


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 16])
def test_a_length_that_is_no_multiple_of_the_tile(block_size):
    """B24: keys that are not there must not count as keys with a score of 0."""
    zero, v = torch.zeros(1, 1, 5, 2), torch.arange(1.0, 6).view(1, 1, 5, 1)
    out = tiled(zero[:, :, :1], zero, v, block_size=block_size)
    assert abs(out.item() - 3) < 1e-6
    q, k, v = draw(4, *[(1, 2, 7, 8)] * 3)
    for causal in (False, True):
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        mask = Causal() if causal else None
        close(tiled(q, k, v, mask, block_size=block_size), expected)


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_more_queries_than_keys(block_size):
    """B26: the last query stands beside the last key, so the first ones see nothing."""
    q, k = torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 2, 2)
    v = torch.tensor([10.0, 20]).view(1, 1, 2, 1)
    out = tiled(q, k, v, Causal(), block_size=block_size)
    assert out.flatten().tolist() == [0, 0, 0, 10, 15]


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_a_row_that_sees_nothing_is_zero_and_harmless(block_size):
    """B01: no NaN in its output, nor in any gradient of the batch."""
    q, k, v = [x.requires_grad_() for x in draw(5, *[(1, 1, 3, 4)] * 3)]
    keep = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0]]).bool()
    out = tiled(q, k, v, keep, block_size=block_size)
    assert (out[0, 0, 2] == 0).all()
    close(out[:, :, :2], equation(q[:, :, :2], k, v, keep[:2]))
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert (q.grad[0, 0, 2] == 0).all()


@pytest.mark.parametrize("block_size", [0, -3])
def test_a_tile_of_nothing_is_refused(block_size):
    with pytest.raises(ValueError, match=str(block_size)):
        tiled(*draw(6, *[(1, 1, 2, 2)] * 3), block_size=block_size)


@pytest.mark.parametrize("block_size", [2.0, "2", None, True])
def test_a_block_size_is_an_integer(block_size):
    with pytest.raises(TypeError, match=str(block_size)):
        tiled(*draw(6, *[(1, 1, 2, 2)] * 3), block_size=block_size)


@pytest.mark.parametrize("spoilt", ["mask", "bias", "q"])
def test_what_is_changed_before_the_backward_pass_is_found_out(spoilt):
    q, k, v, bias = draw(7, *[(1, 1, 3, 3)] * 3, (3, 3))
    mask = torch.ones(3, 3).bool()
    out = tiled(q * 1, k.requires_grad_(), v, mask, bias)
    if spoilt == "q":
        out = tiled(q, k, v, mask, bias)
    {"mask": mask, "bias": bias, "q": q}[spoilt].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ── Tiles that need not be made ──────────────────────────────────────────────────────


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.integers(-6, 12), st.integers(1, 6), st.integers(0, 12), st.integers(1, 6),
    st.none() | st.integers(1, 8), st.integers(0, 8),
)  # fmt: skip
def test_what_is_known_of_a_tile_is_true(t0, t, s0, s, window, prefix):
    S, t1, s1 = 18, t0 + t, s0 + s
    rule = Causal(window, prefix=prefix)
    row = rule.tile(t0, t1, 0, S).any(0).nonzero().flatten().tolist()
    first, last = seen(rule, t0, t1, S)
    if row:
        assert (first, last) == (row[0], row[-1] + 1)
    else:
        assert last <= first
    if sees_all(rule, t0, t1, s0, s1):
        assert rule.tile(t0, t1, s0, s1).all()
    elif prefix == 0:
        assert not rule.tile(t0, t1, s0, s1).all()


class Asked(Causal):
    """Remembers the tiles it was asked for."""

    def tile(self, t0, t1, s0, s1, device=None):
        asked.append((t0, t1, s0, s1))
        return super().tile(t0, t1, s0, s1, device)

    def tensor(self, T, S, device=None):
        raise AssertionError("a whole mask was made")


asked = []


def test_a_mask_is_asked_for_tiles_only():
    q, k, v = draw(8, *[(1, 1, 12, 4)] * 3)
    asked.clear()
    close(tiled(q, k, v, Asked(), block_size=4), equation(q, k, v, Causal()))
    assert asked == [(t, t + 4, s, s + 4) for t in (0, 4, 8) for s in (0, 4, 8)]


def test_of_a_causal_mask_only_the_edge_is_asked_for(monkeypatch):
    q, k, v = draw(8, (1, 1, 8, 4), (1, 1, 14, 4), (1, 1, 14, 4))
    asked.clear()
    monkeypatch.setattr(Causal, "tile", lambda self, *a, **how: Asked.tile(self, *a))
    monkeypatch.setattr(Asked, "tile", remember(Causal(window=6)))
    tiled(q, k, v, Causal(window=6), block_size=2)
    # Queries 6 … 13 of 14: tiles on the diagonal, and those the window's edge cuts.
    expected = {(t, t + 2, t + d, t + d + 2) for t in (6, 8, 10, 12) for d in (0, -6)}
    assert set(asked) == {tile for tile in expected if tile[2] >= 0}


def remember(rule):
    def tile(_, t0, t1, s0, s1, device=None):
        asked.append((t0, t1, s0, s1))
        return rule.allowed(torch.arange(t0, t1)[:, None], torch.arange(s0, s1)[None])

    return tile


@pytest.mark.parametrize("window, tiles_made", [(None, 36), (4, 15), (1, 8)])
def test_blocked_tiles_are_not_computed(monkeypatch, window, tiles_made):
    made = []
    scores = Plan.scores
    monkeypatch.setattr(
        Plan, "scores", lambda self, *a: made.append(a[2:]) or scores(self, *a)
    )
    q, k, v = draw(9, *[(1, 1, 32, 4)] * 3)
    tiled(q, k, v, Causal(window), block_size=4)
    assert len(made) == tiles_made


# ── Half precision, large numbers, autocast ──────────────────────────────────────────


def plain(q, k, v):
    """The formula, causal, typed as it stands, in the dtype of its input."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~Causal().tensor(*scores.shape[-2:]), -torch.inf)
    return scores.softmax(-1) @ v


def outcome(call, inputs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = call(*inputs)
    out.float().square().sum().backward()
    return [out.detach(), *(x.grad for x in inputs)]


def fused_causal(q, k, v):
    return fused(q, k, v, Causal())


@pytest.mark.parametrize(
    "dtype, judge",
    [
        (torch.float16, plain),
        (torch.bfloat16, plain),
        # In float32 the formula's own gradient is up to 3.5 times as good as one from
        # a log-sum-exp. Torch's kernel keeps the same one number.
        (torch.float32, fused_causal),
    ],
    ids=["float16", "bfloat16", "float32"],
)
@pytest.mark.parametrize("seed", range(4))
def test_no_worse_than_twice_plain_torch(dtype, judge, seed):
    inputs = [x.to(dtype) for x in draw(seed, *[(2, 2, 40, 32)] * 3)]
    right = outcome(plain, [x.double() for x in inputs])
    theirs = outcome(judge, inputs)
    ours = outcome(lambda *x: tiled(*x, Causal(), block_size=16), inputs)
    for mine, others, exact in zip(ours, theirs, right, strict=True):
        assert mine.dtype == dtype
        error = (mine.double() - exact).abs().max()
        assert error <= 2 * (others.double() - exact).abs().max()


SIZES = [(torch.float32, 1e4), (torch.bfloat16, 1e4), (torch.float16, 100.0)]


@pytest.mark.parametrize("dtype, size", SIZES)
@pytest.mark.parametrize("width", [2, 64])
def test_large_inputs_give_no_nan(dtype, size, width):
    keep = torch.tensor([[1, 0, 0, 1, 1, 0, 1]]).bool()
    signs = [(x.sign() * size).to(dtype) for x in draw(10, *[(1, 2, 7, width)] * 3)]
    same = [torch.full((1, 2, 7, width), size, dtype=dtype)] * 3
    for inputs in (signs, same):
        for mask in (None, Causal(), Causal(2, keep=keep), torch.zeros(7, 7).bool()):
            out, *grads = outcome(
                lambda *x, mask=mask: tiled(*x, mask, block_size=3), inputs
            )
            assert out.isfinite().all()
            assert not any(x.isnan().any() for x in grads)
    assert (tiled(*same, block_size=3) == same[0]).all()


def test_a_sum_that_another_kernel_rounded_gives_no_nan():
    """Triton's scores may differ in the last digit, which here is 512 and more."""
    same = torch.full((1, 1, 4, 64), 1e4)
    plan = make_plan(same, same, None, None, 1.0)
    out, lse = forward(same, same, same, plan)
    lse = lse.nextafter(torch.zeros(()))
    grads = backward(same, same, same, out, lse, torch.ones_like(out), plan)
    assert all(x.isfinite().all() for x in grads[:3])


def test_autocast_changes_nothing():
    inputs = draw(11, *[(1, 2, 9, 16)] * 3, dtype=torch.float32)
    expected = outcome(lambda *x: tiled(*x, block_size=4), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = outcome(lambda *x: tiled(*x, block_size=4), inputs)
    for ours, theirs in zip(inside, expected, strict=True):
        assert torch.equal(ours, theirs)


# ── Bytes ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype, e", [(torch.float64, 8), (torch.bfloat16, 2)])
@pytest.mark.parametrize("T, S, block_size", [(16, 24, 4), (7, 7, 3), (5, 20, 8)])
def test_bytes_are_the_closed_formula(dtype, e, T, S, block_size):
    B, H, G, D, Dv = 2, 6, 2, 4, 3
    q, k, v = draw(12, (B, H, T, D), (B, G, S, D), (B, G, S, Dv))
    with count_bytes() as traffic:
        tiled(q.to(dtype), k.to(dtype), v.to(dtype), block_size=block_size)
    passes = math.ceil(T / block_size)
    assert traffic.read == B * e * (H * T * D + passes * G * S * (D + Dv))
    assert traffic.written == B * H * T * (e * Dv + max(e, 4))
    assert traffic.total == traffic.read + traffic.written


def test_bytes_of_a_causal_triangle():
    """Tile i of n reads i tiles of keys: n (n + 1) / 2 of them in all."""
    n, block_size, D = 8, 16, 4
    q, k, v = draw(13, *[(1, 1, n * block_size, D)] * 3, dtype=torch.float32)
    with count_bytes() as traffic:
        tiled(q, k, v, Causal(), block_size=block_size)
    tile = block_size * D * 4
    assert traffic.read == n * tile + n * (n + 1) // 2 * 2 * tile


def test_the_equation_moves_its_scores_four_times():
    """Written by q kᵀ, read and written by the softmax, read by the product with v."""
    few, many = equation_bytes(2, 6, 64, 96, 8, G=3), equation_bytes(2, 6, 64, 97, 8, 3)
    assert many - few == 2 * 4 * (6 * 64 * 4 + 3 * 16)
    q, k, v = (2 * 6 * 64 * 8, 2 * 3 * 96 * 8, 2 * 3 * 96 * 5)
    ends = q + k + v + 2 * 6 * 64 * 5
    scores = 2 * 6 * 64 * 96
    assert equation_bytes(2, 6, 64, 96, 8, 3, 5) == 4 * ends + 16 * scores
    assert equation_bytes(2, 6, 64, 96, 8, 3, 5, itemsize=2) == 2 * ends + 16 * scores
    assert equation_bytes(2, 6, 64, 96, 8, 3, 5, itemsize=8) == 8 * ends + 32 * scores


def test_tiles_move_fewer_bytes_and_larger_tiles_fewer_still():
    q, k, v = draw(14, *[(1, 2, 512, 64)] * 3, dtype=torch.float32)
    moved = []
    for block_size in (32, 64, 128):
        with count_bytes() as traffic:
            tiled(q, k, v, block_size=block_size)
        moved.append(traffic.total)
    assert equation_bytes(1, 2, 512, 512, 64) > moved[0] > moved[1] > moved[2]


def test_counting_is_nobody_elses_business():
    inputs = draw(15, *[(1, 1, 4, 4)] * 3)
    with count_bytes() as outer:
        thread = threading.Thread(target=tiled, args=inputs)
        thread.start()
        thread.join()
        assert outer.total == 0
        with count_bytes() as inner:
            tiled(*inputs)
        assert outer.total == 0 < inner.total
        out = tiled(*(x.requires_grad_() for x in inputs))
        assert outer == replace(inner)
        out.sum().backward()
        assert outer == inner
    tiled(*inputs)
    assert outer == inner


# ── The trace ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mask", [None, Causal(), Causal(window=3)])
@pytest.mark.parametrize("T, S", [(7, 7), (4, 9)])
def test_every_step_is_the_softmax_of_the_keys_so_far(mask, T, S):
    q, k, v = draw(16, (T, 4), (S, 4), (S, 3))
    allowed = torch.ones(T, S).bool() if mask is None else mask.tensor(T, S)
    steps = online_softmax_steps(q, k, v, 2, mask)
    for step in steps:
        rows, so_far = step.queries, step.keys.stop
        scores = q[rows.start : rows.stop] @ k[:so_far].T / 2
        scores.masked_fill_(~allowed[rows.start : rows.stop, :so_far], -torch.inf)
        close(step.scores, scores[:, step.keys.start :])
        close(step.m, scores.amax(-1))
        p = (scores - step.m.nan_to_num(neginf=0.0)[:, None]).exp()
        close(step.l, p.sum(-1))
        close(step.acc, p @ v[:so_far])
        close(step.out, scores.softmax(-1).nan_to_num(0.0) @ v[:so_far])
    whole = tiled(q[None, None], k[None, None], v[None, None], mask, block_size=2)
    last = {step.queries: step.out for step in steps}
    assert torch.equal(torch.cat(list(last.values())), whole[0, 0])


def test_steps_of_wrong_input_are_refused():
    q, k, v = draw(17, (3, 2), (4, 2), (4, 2))
    with pytest.raises(ValueError, match=r"k must be \(length, width\), got \(1, 4"):
        online_softmax_steps(q, k[None], v)
    with pytest.raises(TypeError, match="list"):
        online_softmax_steps([[1.0]], k, v)
    with pytest.raises(ValueError, match="0"):
        online_softmax_steps(q, k, v, block_size=0)


# ── Memory ───────────────────────────────────────────────────────────────────────────


def test_a_fiftieth_of_the_equations_memory():
    """How it grows is tested in test_memory."""
    with torch.no_grad(), torch.device("meta"):  # of numbers that nobody computes
        q, k, v = torch.empty(3, 1, 6, 4096, 64)
        ours = peak_memory(lambda: tiled(q, k, v, Causal()))
        theirs = peak_memory(lambda: equation(q, k, v, Causal()))
    assert 6 * 4096 * 64 * 4 < ours <= 0.02 * theirs


def test_an_empty_batch_has_gradients_too():
    q = torch.zeros(0, 2, 3, 4, requires_grad=True)
    tiled(q, q, q).sum().backward()
    assert q.grad.shape == q.shape
