# SPDX-License-Identifier: MIT
"""Choices of the next word against `transformers`, brute force and definitions."""

import itertools
import math

import pytest
import torch
from compare import close
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from deepdive.decoding import (
    draw,
    greedy,
    min_p,
    min_p_filter,
    nucleus,
    probabilities,
    sample,
    scale_by_temperature,
    temperature,
    top_k,
    top_k_filter,
    top_p,
    top_p_filter,
)
from deepdive.decoding.sampling import largest

INF = math.inf


def normal(seed, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(shape, generator=generator, dtype=dtype)


# ── Outside reference ────────────────────────────────────────────────────────────────

CHOICES = {
    **{f"temperature {t}": (temperature(t), hf.TemperatureLogitsWarper(t))
       for t in (0.3, 1.0, 1.7)},
    **{f"top-k {k}": (top_k(k), hf.TopKLogitsWarper(k)) for k in (1, 3, 50)},
    **{f"top-p {p}": (top_p(p), hf.TopPLogitsWarper(p))
       for p in (0.01, 0.5, 0.9, 0.999, 1.0)},
    **{f"min-p {p}": (min_p(p), hf.MinPLogitsWarper(p)) for p in (0.01, 0.2, 1.0)},
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("seed", range(3))
def test_each_choice_is_transformers(name, seed):
    ours, theirs = CHOICES[name]
    logits = normal(seed, 5, 17)
    expected = theirs(None, logits.clone()).softmax(-1)
    close(probabilities(logits, ours), expected)


def test_choices_in_a_row_are_transformers():
    names = ("temperature 1.7", "top-k 3", "top-p 0.9", "min-p 0.2")
    ours, theirs = zip(*(CHOICES[name] for name in names), strict=True)
    for seed in range(5):
        logits = expected = normal(seed, 4, 20)
        for warper in theirs:
            expected = warper(None, expected)
        close(probabilities(logits, ours), expected.softmax(-1))


# ── Top-p: the smallest set whose mass reaches p ─────────────────────────────────────


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0.9, [0.549451, 0.450549, 0]),
        (0.5, [1, 0, 0]),
        (0.01, [1, 0, 0]),
        (1e-9, [1, 0, 0]),
        (1.0, [0.5, 0.41, 0.09]),
    ],
)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_keeps_the_word_that_reaches_p(p, expected, order, dtype):
    """Case B17, in every order of the words."""
    probs = torch.tensor([0.5, 0.41, 0.09], dtype=dtype)[list(order)]
    expected = torch.tensor(expected, dtype=dtype)[list(order)]
    close(probabilities(probs.log(), top_p(p)), expected, 1e-6)
    assert nucleus(probs, p).tolist() == (expected > 0).tolist()


@given(seed=st.integers(0, 10**6), p=st.floats(1e-3, 1.0))
@settings(max_examples=60, deadline=None)
def test_the_nucleus_is_the_smallest_such_set(seed, p):
    probs = normal(seed, 6).softmax(-1)
    kept = nucleus(probs, p)
    sums = [
        probs[list(some)].sum().item()
        for some in itertools.combinations(range(6), int(kept.sum()) - 1)
    ]
    assert probs[kept].sum() >= p - 2e-6  # it reaches p
    assert max(sums) < p  # and no smaller set does
    assert probs[kept].min() >= probs[~kept].max() if (~kept).any() else True


@pytest.mark.parametrize("n", range(1, 11))
def test_top_p_of_equal_words_takes_the_first(n):
    """Ten times 0.1: rounding must not cost a word, nor add one."""
    for dtype in (torch.float32, torch.float64):
        kept = nucleus(torch.full((10,), 0.1, dtype=dtype), n / 10)
        assert kept.tolist() == [True] * n + [False] * (10 - n)


def test_top_p_one_keeps_even_the_smallest():
    logits = torch.tensor([0.0, -30.0, -80.0])
    assert top_p_filter(logits, 1.0).tolist() == logits.tolist()


# ── Top-k, min-p ─────────────────────────────────────────────────────────────────────


def test_top_k_of_equal_words_takes_the_first_and_exactly_k():
    logits = torch.tensor([[1.0, 3, 3, 3, 0], [2, 2, 2, 2, 2], [-INF, -INF, 1, 5, 1]])
    assert top_k_filter(logits, 2).isfinite().int().tolist() == [
        [0, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 0],
    ]  # fmt: skip
    assert top_k_filter(logits, 9).tolist() == logits.tolist()


@given(seed=st.integers(0, 10**6), k=st.integers(1, 300), levels=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_largest_is_a_stable_sort(seed, k, levels):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (3, 300), generator=generator).double()
    scores[scores == 0] = -INF
    values, index = scores.sort(dim=1, descending=True, stable=True)
    got = largest(scores, k)
    assert got[0].tolist() == values[:, :k].tolist()
    assert got[1].tolist() == index[:, :k].tolist()


def test_min_p_by_definition():
    logits = normal(3, 40, 9)
    probs = logits.softmax(-1)
    kept = min_p_filter(logits, 0.13).isfinite()
    assert kept.equal(probs >= 0.13 * probs.amax(-1, keepdim=True))
    assert 0 < kept.sum() < kept.numel()


# ── Temperature ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("row", [[1.0, 3, 2], [0.0, 3, -2], [2.0, 3, 3], [-INF, 3, 1]])
@pytest.mark.parametrize("t", [0, 0.0, 1e-310, 1e-45])
def test_temperature_zero_is_greedy(row, dtype, t):
    """Case B18, in half precision too; of equal words the first."""
    logits = torch.tensor([row], dtype=dtype)
    for more in ((), (top_k(2),), (top_p(0.5), min_p(0.5))):
        choose = (temperature(t), *more)
        assert probabilities(logits, choose).tolist() == [[0.0, 1.0, 0.0]]
        assert all(draw(logits, choose).item() == 1 for _ in range(20))
    assert draw(logits, None).item() == 1
    assert probabilities(logits, None).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_extreme_logits_give_no_nan(dtype):
    large = 6e4 if dtype == torch.float16 else 1e30
    logits = torch.tensor([[large, -large, 0], [1, 0, -INF]], dtype=dtype)
    for choose in ((), temperature(1e-30), temperature(1e30), top_p(0.3), min_p(0.1)):
        probs = probabilities(logits, choose)
        assert probs.isfinite().all() and probs.dtype == torch.float32
        close(probs.sum(-1), [1.0, 1.0], 1e-6)


def test_filters_keep_the_dtype():
    logits = normal(0, 2, 5).half()
    for choice in (temperature(0.5), temperature(0), top_k(2), top_p(0.5), min_p(0.5)):
        assert choice(logits).dtype == torch.float16


def test_temperature_between_its_limits():
    logits = normal(1, 4, 6)
    close(probabilities(logits, temperature(1.0)), logits.softmax(-1))
    close(probabilities(logits, temperature(1e9)), torch.full_like(logits, 1 / 6), 1e-8)
    close(probabilities(logits, temperature(0.5)), (logits * 2).softmax(-1))


# ── Drawing ──────────────────────────────────────────────────────────────────────────


def test_draws_have_their_probabilities():
    logits, N = normal(5, 7), 40_000
    choose = (temperature(1.3), top_k(5), top_p(0.95))
    probs = probabilities(logits, choose)
    drawn = draw(logits.expand(N, -1), choose, torch.Generator().manual_seed(0))
    counts = drawn.bincount(minlength=7)
    kept = probs > 0
    assert counts[~kept].sum() == 0 and 1 < kept.sum() < 7
    expected = N * probs[kept]
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum().item()
    assert chi_square < 20.5  # 4 degrees of freedom: one seed in 2,500 is above


def test_the_generator_decides_alone():
    logits = normal(2, 64, 9)
    first, again, other = (
        draw(logits, (), torch.Generator().manual_seed(seed)).tolist()
        for seed in (1, 1, 2)
    )
    assert first == again != other
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    draw(logits, top_p(0.9), torch.Generator().manual_seed(3))
    assert torch.random.get_rng_state().equal(before)


# ── Errors ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "value", "error", "words"),
    [
        (temperature, -0.1, ValueError, "-0.1"),
        (temperature, INF, ValueError, "inf"),
        (temperature, math.nan, ValueError, "nan"),
        (temperature, "1", TypeError, "'1'"),
        (temperature, True, TypeError, "True"),
        (top_p, 0, ValueError, "0"),
        (top_p, 1.1, ValueError, "1.1"),
        (top_p, math.nan, ValueError, "nan"),
        (top_p, None, TypeError, "None"),
        (min_p, 0.0, ValueError, "0.0"),
        (min_p, -1, ValueError, "-1"),
        (min_p, [0.5], TypeError, "[0.5]"),
        (top_k, 0, ValueError, "0"),
        (top_k, -3, ValueError, "-3"),
        (top_k, 2.0, TypeError, "2.0"),
        (top_k, True, TypeError, "True"),
    ],
)
def test_wrong_choices_are_refused(make, value, error, words):
    plain = {temperature: scale_by_temperature, top_p: top_p_filter,
             min_p: min_p_filter, top_k: top_k_filter}  # fmt: skip
    with pytest.raises(error, match=words.replace("[", r"\[")):
        make(value)
    with pytest.raises(error, match=words.replace("[", r"\[")):
        plain[make](torch.zeros(1, 3), value)


@pytest.mark.parametrize("choose", ["top_p", 0.7, [0.7], {"t": 1}])
def test_what_is_no_choice_is_refused(choose):
    called = []
    for call in (
        lambda: probabilities(torch.zeros(1, 3), choose),
        lambda: sample(called.append, torch.zeros(1, 1).long(), 2, choose),
    ):
        with pytest.raises(TypeError, match="choose must be"):
            call()
    assert not called


def test_a_choice_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="a choice left"):
        probabilities(torch.zeros(1, 3), [lambda x: x * math.nan])
    with pytest.raises(ValueError, match="a choice left"):
        probabilities(torch.zeros(1, 3), lambda x: x - INF)


def test_fp16_greedy_is_temperature_zero():
    table = normal(4, 9, 9, dtype=torch.float32).half()
    prompt = torch.arange(9)[:, None]
    expected = greedy(lambda ids: table[ids], prompt, 6).ids
    got = sample(lambda ids: table[ids], prompt, 6, temperature(0.0)).ids
    assert got.equal(expected)
