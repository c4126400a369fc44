# SPDX-License-Identifier: MIT
"""The meter of memory against known sums and the profiler; what grows how."""

import gc
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from deepdive.growth import growth
from deepdive.kernels import equation, fused, tiled
from deepdive.kernels.tiled import BLOCK
from deepdive.masks import Causal
from deepdive.memory import Following, peak_memory

KIB = 1024
BOTH = pytest.mark.parametrize("backwards", [False, True], ids=["forward", "both ways"])


def numbers(n):
    """A tensor of so many bytes."""
    return torch.empty(n // 4)


# ── What is counted ──────────────────────────────────────────────────────────────────


def test_two_tensors_at_a_time_are_their_sum():
    def call():
        a, b = numbers(3 * KIB), numbers(5 * KIB)
        return a, b

    assert peak_memory(call) == 8 * KIB


def test_what_was_freed_in_between_makes_room():
    def call():
        a = numbers(3 * KIB)
        del a
        return numbers(5 * KIB)

    assert peak_memory(call) == 5 * KIB


def test_a_sum_frees_what_it_was_made_from():
    x = numbers(KIB)
    assert peak_memory(lambda: (x + 1) + (x + 2)) == 3 * KIB
    assert peak_memory(lambda: ((x + 1) + 2) + 3) == 2 * KIB


def test_views_take_nothing():
    def call():
        a = numbers(8 * KIB)
        return a, a[5:], a.view(2, -1).T, a.expand(7, -1), a.detach()

    assert peak_memory(call) == 8 * KIB


def test_a_view_keeps_the_whole():
    def call():
        kept = numbers(8 * KIB)[:1]
        gc.collect()
        return kept, numbers(KIB)

    assert peak_memory(call) == 9 * KIB


def test_what_was_there_before_is_not_counted_and_work_in_place_takes_nothing():
    x = numbers(8 * KIB)

    def call():
        x.add_(1).mul_(2)
        torch.add(x, x, out=x)
        return x[:7].relu_()

    assert peak_memory(call) == 0


def test_freeing_what_was_there_before_makes_no_room():
    old = [numbers(8 * KIB)]
    assert peak_memory(lambda: (old.clear(), numbers(KIB))) == KIB


def test_a_tensor_that_is_made_larger_counts_as_large_as_it_is():
    def call():
        out = torch.empty(0)
        torch.add(numbers(KIB), 1, out=out)
        return out

    assert peak_memory(call) == 2 * KIB
    with Following() as found:
        call()  # and as large it goes
    assert found.held == 0
    before = torch.empty(0)
    assert peak_memory(lambda: before.resize_(KIB)) == 4 * KIB


def test_several_outputs_of_one_operation_that_share_their_numbers():
    assert peak_memory(lambda: numbers(6 * KIB).split(KIB // 4)) == 6 * KIB


def test_gradients_are_counted_where_they_are_made():
    x = torch.zeros(KIB // 4, requires_grad=True)
    # exp keeps its result; its gradient, made from the sum's (a view of one number).
    assert peak_memory(lambda: x.exp().sum().backward()) == 2 * KIB + 4 + 4


def test_on_the_meta_device_the_same_without_the_numbers():
    def run(device):
        q, k, v = torch.empty(3, 1, 2, 200, 8, device=device).unbind()
        return lambda: tiled(q, k, v, Causal(), block_size=64)

    assert peak_memory(run("meta")) == peak_memory(run("cpu")) > 0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(-3, 40), max_size=25))
def test_any_order_of_making_and_dropping(steps):
    """n > 0 makes n numbers, n ≤ 0 drops the |n|-th oldest; a sum is kept by hand."""
    held, most, expected = [], 0, []
    for step in steps:
        if step > 0:
            expected.append(4 * step)
        elif -step < len(expected):
            expected.pop(-step)
        most = max(most, sum(expected))

    def call():
        for step in steps:
            if step > 0:
                held.append(torch.empty(step))
            elif -step < len(held):
                held.pop(-step)

    with Following() as found:
        call()
    assert found.most == most and found.held == sum(expected)


# ── When something goes wrong ────────────────────────────────────────────────────────


def test_an_exception_comes_out_and_nothing_is_followed_any_more():
    kept = []

    def call():
        kept.append(numbers(KIB))
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        peak_memory(call)
    before = Following()
    with before, pytest.raises(KeyError):
        call()
    assert before.held == before.most == KIB
    kept.append(numbers(KIB))
    assert before.held == before.most == KIB
    kept.clear()
    assert before.held == 0 < before.most
    assert peak_memory(lambda: numbers(KIB)) == KIB


def test_two_meters_at_once():
    inner = []

    def call():
        a = numbers(KIB)
        inner.append(peak_memory(lambda: numbers(5 * KIB)))
        return a

    assert peak_memory(call) == 6 * KIB and inner == [5 * KIB]


@pytest.mark.parametrize("wrong", [None, 3, numbers(4)])
def test_only_a_function_can_be_called(wrong):
    with pytest.raises(TypeError, match="call must be a function without arguments"):
        peak_memory(wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    x = torch.zeros(KIB, device="cuda")
    assert peak_memory(lambda: (x + 1) + (x + 2), "cuda") == 12 * KIB


# ── The profiler, which sees every allocation ────────────────────────────────────────


def profiled(call):
    """The most bytes at one time by the profiler's record, beyond those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = record.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        most = max(most, held)
    return most


@BOTH
@pytest.mark.parametrize("kernel", [equation, fused, tiled])
def test_the_profiler_says_the_same(kernel, backwards):
    def call():
        q, k, v = (x.requires_grad_(backwards) for x in torch.zeros(3, 1, 2, 300, 16))
        out = kernel(q, k, v, Causal())
        if backwards:
            out.backward(out.detach())

    ours, theirs = peak_memory(call), profiled(call)
    if kernel is fused:  # torch's kernel has work space of its own, inside
        assert theirs / 2 < ours < theirs
    else:  # up to the numbers that Python's 1.0 and −∞ become
        assert theirs - 100 <= ours <= theirs


# ── How a cost grows ─────────────────────────────────────────────────────────────────


@given(
    st.floats(-3, 3), st.floats(1e-9, 1e9),
    st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=9, unique=True),
)  # fmt: skip
@settings(max_examples=100, deadline=None, derandomize=True)
def test_an_exact_power_has_its_exponent_and_no_error(exponent, factor, sizes):
    if max(sizes) < 1.5 * min(sizes):
        sizes.append(2 * max(sizes))
    found = growth(sizes, [factor * size**exponent for size in sizes])
    assert abs(found.exponent - exponent) < 1e-6 and found.error < 1e-6


def test_the_error_is_that_of_a_straight_line():
    """Held to the textbook's line through (0, 0), (1, 1), (2, 3): 3/2 ± √(1/12)."""
    found = growth([1, math.e, math.e**2], [1, math.e, math.e**3])
    assert abs(found.exponent - 1.5) < 1e-12
    assert abs(found.error - math.sqrt(1 / 12)) < 1e-12


@pytest.mark.parametrize(
    ("sizes", "costs", "message"),
    [
        ([1, 2], [1, 2], "3 points or more, got 2 sizes and 2 costs"),
        ([1, 2, 3], [1, 2], "got 3 sizes and 2 costs"),
        ([1, 2, 0], [1, 2, 3], r"sizes must be finite and > 0, got \[1, 2, 0\]"),
        ([1, 2, 3], [1, -2, 3], "costs must be finite and > 0"),
        ([1, 2, 3], [1, math.nan, 3], "costs must be finite and > 0"),
        ([1, 2, math.inf], [1, 2, 3], "sizes must be finite and > 0"),
        ([2, 2, 2], [1, 2, 3], "sizes must differ"),
    ],
)
def test_what_has_no_growth_is_refused(sizes, costs, message):
    with pytest.raises(ValueError, match=message):
        growth(sizes, costs)


# ── The formula's memory grows with T², that of tiles with T ─────────────────────────

LENGTHS = (512, 1024, 2048, 4096)


FORWARD_AT_ONCE = pytest.mark.parametrize(
    "backwards",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["forward", "both ways"],
)


def attending(kernel, T, backwards, **how):
    """One pass over T tokens."""

    def call():
        inputs = torch.zeros(3, 1, 2, T, 64).unbind()
        out = kernel(*(x.requires_grad_(backwards) for x in inputs), Causal(), **how)
        if backwards:
            out.backward(out.detach())

    return call


@BOTH
def test_the_formulas_memory_grows_with_the_square(backwards):
    with torch.device("meta"):  # of numbers that nobody computes
        taken = [peak_memory(attending(equation, T, backwards)) for T in LENGTHS]
    assert abs(growth(LENGTHS, taken).exponent - 2) < 0.1


@FORWARD_AT_ONCE
def test_the_memory_of_tiles_grows_with_the_length(backwards):
    taken = [
        peak_memory(attending(tiled, T, backwards, block_size=64)) for T in LENGTHS
    ]
    assert abs(growth(LENGTHS, taken).exponent - 1) < 0.1


@FORWARD_AT_ONCE
def test_beside_the_tile_itself_which_does_not_grow(backwards):
    """By default it is larger, and for short texts the most of what is taken."""
    taken = [peak_memory(attending(tiled, T, backwards)) for T in LENGTHS]
    steps = [b - a for a, b in pairwise(taken)]  # of 512, 1024 and 2048 tokens
    assert abs(growth(LENGTHS[:3], steps).exponent - 1) < 0.1
    scores = 2 * BLOCK * BLOCK * 4  # of one tile, two heads
    assert scores < taken[0] - steps[0] < 8 * scores
