# SPDX-License-Identifier: MIT
"""Kneser–Ney is its formula, spelt out over dictionaries, and obeys the chain rule.

Compared once by hand with nltk 3.10.4, `KneserNeyInterpolated(order, discount=0.3)` of
order 2, 3 and 4 on 400 pieces: equal to 2e-16, once D₁ is 0, for nltk takes nothing
from its counts of single pieces.
"""

import math
from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepdive.ngrams import KneserNey, between, estimated_discount
from deepdive.objectives import Loss, bits_per_byte
from deepdive.recipes import novels
from tests.compare import close

V = 5  # pieces; the texts below use four of them
TEXTS = st.lists(st.integers(0, V - 2), min_size=5, max_size=40).map(torch.tensor)
CONTEXTS = st.lists(st.integers(0, V - 1), max_size=6)
ORDERS = st.integers(0, 4)


def formula(text, order, D=None):
    """p(w, h) from the formula: tuples, dictionaries and a recursion."""
    grams = {
        n: Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
        for n in range(1, order + 1)
    }
    c = {order: grams.get(order, {})}
    for n in range(1, order):  # behind how many different pieces?
        c[n] = Counter(longer[1:] for longer in grams[n + 1])

    def discount(n):
        ones, twos = (sum(k == times for k in c[n].values()) for times in (1, 2))
        if D is not None:
            return D
        return ones / (ones + 2 * twos) if ones and twos else 1 / 2

    def p(w, h):
        if order == 0:
            return 1 / V
        n = len(h) + 1
        lower = p(w, h[1:]) if h else 1 / V
        following = [c[n][(*h, v)] for v in range(V) if (*h, v) in c[n]]
        if not following:
            return lower
        seen = max(c[n].get((*h, w), 0) - discount(n), 0)
        return (seen + discount(n) * len(following) * lower) / sum(following)

    return lambda w, h: p(w, tuple(h)[max(len(h) - order + 1, 0) :])


# ── One piece behind a context ───────────────────────────────────────────────────────


@given(TEXTS, ORDERS, CONTEXTS, st.sampled_from([None, 0.2, 1.0]))
def test_equals_the_formula(text, order, context, D):
    found = KneserNey(text, order, V, D).probabilities(context)
    p = formula(text.tolist(), order, D)
    close(found, [p(w, context) for w in range(V)])


@pytest.mark.parametrize("order", [1, 2, 3])
def test_equals_the_formula_behind_every_context(order):
    text = torch.tensor([0, 1, 2, 0, 1, 3, 0, 1, 2, 2, 2, 0, 3, 1, 0, 1, 2])
    model, p = KneserNey(text, order, V), formula(text.tolist(), order)
    for context in product(range(V), repeat=order - 1):
        close(model.probabilities(context), [p(w, context) for w in range(V)])


@given(TEXTS, ORDERS, CONTEXTS)
def test_is_a_distribution_and_nothing_is_impossible(text, order, context):
    p = KneserNey(text, order, V).probabilities(context)
    close(p.sum(), torch.ones((), dtype=torch.float64))
    assert p.min() > 0


@given(TEXTS, ORDERS, CONTEXTS, st.permutations(range(V)))
def test_the_numbers_of_the_pieces_are_only_names(text, order, context, names):
    p = KneserNey(text, order, V).probabilities(context)
    renamed = KneserNey(torch.tensor(names)[text].int(), order, V)  # 32 bits, too
    close(renamed.probabilities([names[id] for id in context])[names], p)


def test_by_hand():
    """0 1 0 2 0 1: 01 and 10 count 2 and 1, 02 and 20 once; D₂ = 3 / (3 + 2)."""
    model = KneserNey(torch.tensor([0, 1, 0, 2, 0, 1]), order=2, vocab_size=4)
    assert model.discounts == (0.5, 0.6)  # 0 stands behind two others; 1, 2 behind one
    p1 = [(2 - 0.5 + 1.5 / 4) / 4, (0.5 + 1.5 / 4) / 4, (0.5 + 1.5 / 4) / 4, 1.5 / 16]
    close(model.probabilities([]), p1)
    p2 = [0.6 * p for p in p1]  # 1 was followed once, by 0
    p2[0] += 1 - 0.6
    close(model.probabilities([1]), p2)


def test_frequent_behind_one_piece_only_is_no_guess_elsewhere():
    """“Francisco”: 1 comes nine times, always behind 0; 2 four times behind four."""
    text = torch.tensor([0, 1] * 9 + [3, 2, 4, 2, 5, 2, 6, 2])
    once, pair = (KneserNey(text, n, 7).probabilities([]) for n in (1, 2))
    assert once[1] > once[2]
    assert pair[1] < pair[2]


def test_what_counts_is_the_variety_in_front_not_behind():
    """1 comes behind four pieces, always before 0; 2 always behind 0, before four."""
    text = torch.tensor([3, 1, 0, 2, 4, 1, 0, 2, 5, 1, 0, 2, 6, 1, 0, 2, 3])
    one, pair = (KneserNey(text, n, 7).probabilities([]) for n in (1, 2))
    close(one[1], one[2])  # as frequent
    D, V = 0.5, 7  # 0, 2 and 4, 5, 6, 3 once; 1 four times; none twice: half
    seen = torch.tensor([1, 4, 1, 1, 1, 1, 1]).double()
    close(pair, (seen - D + D * 7 / V) / seen.sum())
    assert float(pair[1]) == pytest.approx(0.4) and float(pair[2]) == pytest.approx(0.1)


def test_order_0_is_uniform_and_order_1_the_shares_of_the_text():
    text = torch.tensor([0, 1, 1, 1, 2, 2, 3])
    assert KneserNey(text, 0, V).probabilities([2]).tolist() == [1 / V] * V
    D = 2 / (2 + 2)  # two pieces come once, one twice
    shares = torch.tensor([1.0, 3, 2, 1, 0]).double()
    expected = ((shares - D).clamp(min=0) + 4 * D / V) / 7
    close(KneserNey(text, 1, V).probabilities([2]), expected)


@pytest.mark.parametrize(
    ("counts", "D"),
    [([1, 1, 1, 2], 0.6), ([1, 2, 2, 9], 0.2), ([1, 1], 0.5), ([2], 0.5), ([], 0.5)],
)
def test_the_discount_comes_from_the_counts_of_1_and_2(counts, D):
    assert estimated_discount(torch.tensor(counts)) == D


# ── A stream ─────────────────────────────────────────────────────────────────────────


@given(TEXTS, ORDERS, TEXTS)
def test_the_loss_is_what_the_pieces_cost_one_by_one(text, order, judged):
    model = KneserNey(text, order, V)
    costs = [
        -math.log(model.probabilities(judged[:i])[piece])
        for i, piece in enumerate(judged.tolist())
    ]
    close(model.surprise(judged), costs)
    loss = model.loss(judged)
    assert loss.count == len(judged)
    assert loss.total.dtype == torch.float64
    assert float(loss.total) == pytest.approx(sum(costs), rel=1e-12)


def test_the_first_pieces_have_nothing_before_them():
    """Not the last row of a table, and not piece 0 either."""
    text = torch.tensor([0, 0, 1, 4, 4, 4, 0, 0, 2])
    for order in (2, 3):
        model = KneserNey(text, order, V)
        cost = model.surprise(torch.tensor([4, 0]))
        close(cost[0].neg().exp(), model.probabilities([])[4])
        close(cost[1].neg().exp(), model.probabilities([4])[0])


def chain(steps, T, seed):
    """A text of which each piece depends on the one before, by the rows of T."""
    numbers = torch.Generator().manual_seed(seed)
    draws = torch.multinomial(T, steps, replacement=True, generator=numbers)
    text = [0]
    for i in range(steps):
        text.append(int(draws[text[-1], i]))
    return torch.tensor(text)


T = torch.tensor([[0.1, 0.6, 0.3], [0.7, 0.1, 0.2], [0.25, 0.25, 0.5]]).double()


def test_a_chain_costs_its_entropy():
    """Where the truth is known: two pieces reach it, one cannot, three add nothing."""
    text, judged = chain(40_000, T, seed=0), chain(40_000, T, seed=1)
    cost = {n: float(KneserNey(text, n, 3).loss(judged).mean) for n in (1, 2, 3)}
    entropy = float(-T[judged[:-1], judged[1:]].log().mean())
    assert cost[2] == pytest.approx(entropy, abs=1e-3)
    assert cost[3] == pytest.approx(entropy, abs=1e-3)
    assert cost[1] > entropy + 0.1


# ── Both sides ───────────────────────────────────────────────────────────────────────


@given(TEXTS, ORDERS, st.integers(0, 4), st.integers(0, 4), st.integers(0, 99))
def test_a_gap_is_filled_by_the_probability_of_the_whole(text, order, L, R, seed):
    """Whatever is known on either side: p(text with w in it), normalised over w."""
    model, numbers = KneserNey(text, order, V), torch.Generator().manual_seed(seed)
    left = torch.randint(0, V, (3, L), generator=numbers)
    right = torch.randint(0, V, (3, R), generator=numbers)
    wholes = [
        [-model.loss(torch.cat([l, torch.tensor([w]), r])).total for w in range(V)]
        for l, r in zip(left, right, strict=True)
    ]
    expected = torch.tensor(wholes, dtype=torch.float64).softmax(dim=1)
    close(between(model, left, right), expected)


@given(TEXTS)
def test_two_neighbours_make_a_product(text):
    """Order 2: p(l) · p(w | l) · p(r | w), normalised; p(l) falls out."""
    model = KneserNey(text, 2, V)
    step = torch.stack([model.probabilities([v]) for v in range(V)])
    left, right = torch.arange(V).repeat(V), torch.arange(V).repeat_interleave(V)
    joint = model.probabilities([])[left, None] * step[left] * step[:, right].T
    close(between(model, left, right), joint / joint.sum(dim=1, keepdim=True))


def test_many_gaps_are_each_as_if_alone():
    text = chain(2_000, T, seed=2)
    model = KneserNey(text, 3, 3)
    left = torch.stack([text[:-4], text[1:-3]], dim=1)[:600]
    right = torch.stack([text[3:-1], text[4:]], dim=1)[:600]
    many = between(model, left, right)
    for i in (0, 255, 256, 599):
        close(many[i : i + 1], between(model, left[i : i + 1], right[i : i + 1]))
    assert between(model, left[:0], right[:0]).shape == (0, 3)


def test_a_chains_gaps_have_their_true_odds():
    model = KneserNey(chain(40_000, T, seed=3), 2, 3)
    left, right = torch.arange(3).repeat(3), torch.arange(3).repeat_interleave(3)
    truth = T[left] * T[:, right].T
    truth /= truth.sum(dim=1, keepdim=True)
    assert (between(model, left, right) - truth).abs().max() < 0.02


# ── The novels ───────────────────────────────────────────────────────────────────────


def costs(train, judged, orders):
    return [
        float(KneserNey(train, n, novels.VOCABULARY).loss(judged).mean) for n in orders
    ]


def test_longer_contexts_fit_their_own_text_better():
    text = novels.stream("dev")
    found = costs(text, text, range(6))
    assert found[0] == pytest.approx(math.log(novels.VOCABULARY), rel=1e-12)
    assert found == sorted(found, reverse=True)
    assert found[5] < found[1] / 3


def test_a_small_text_teaches_little_beyond_pairs():
    """74,178 pieces: order 3 is still better than 2 on chapters not counted."""
    one, two, three = costs(novels.stream("dev"), novels.stream("test"), (1, 2, 3))
    assert one > two + 1 > three + 1


@pytest.mark.slow
def test_the_novels_held_out():
    train, judged = novels.stream("train"), novels.stream("test")
    n_bytes = int(novels.byte_lengths()[judged].sum())
    models = [KneserNey(train, n, novels.VOCABULARY) for n in range(1, 6)]
    bits = [bits_per_byte(model.loss(judged), n_bytes) for model in models]
    assert bits == sorted(bits, reverse=True)  # each order helps, less and less
    assert bits == pytest.approx([2.94, 1.89, 1.56, 1.52, 1.51], abs=0.02)
    gaps = range(2, len(judged) - 2, 40)
    left, right = (judged[[i + step for i in gaps]] for step in (-1, 1))
    hidden = judged[list(gaps)]
    p = between(models[1], left, right)
    both = (p.argmax(dim=1) == hidden).double().mean()
    assert both > 0.35


# ── What is refused ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"order": 7}, ValueError, "order 7 needs as many tokens, got 6"),
        ({"order": -1}, ValueError, "order must be ≥ 0"),
        ({"order": 2.0}, TypeError, "order must be an integer"),
        ({"vocab_size": 2}, ValueError, r"tokens ids must lie in 0 … 1, got 0 … 2"),
        ({"discount": 0}, ValueError, "discount must be 0 < D ≤ 1, got 0"),
        ({"discount": math.nan}, ValueError, "got nan"),
        ({"tokens": torch.zeros(2, 3).long()}, ValueError, r"\(N,\).*got \(2, 3\)"),
        ({"tokens": torch.zeros(6)}, TypeError, "int32 or int64"),
    ],
)
def test_wrong_counts_are_refused(change, error, words):
    right = {"tokens": torch.tensor([0, 1, 0, 2, 0, 1]), "order": 2, "vocab_size": 4}
    with pytest.raises(error, match=words):
        KneserNey(**right | change)


@pytest.mark.parametrize(
    ("context", "error", "words"),
    [
        ([1, 4], ValueError, "context has 4, not in 0 … 3"),
        ([1.0], TypeError, "each id of context must be a int"),
        (3, TypeError, "context must be a Sequence"),
        (torch.tensor([[1]]), ValueError, r"context must be \(n,\)"),
    ],
)
def test_wrong_contexts_are_refused(context, error, words):
    model = KneserNey(torch.tensor([0, 1, 0, 2, 0, 1]), 2, 4)
    with pytest.raises(error, match=words):
        model.probabilities(context)


def test_wrong_gaps_are_refused():
    model = KneserNey(torch.tensor([0, 1, 0, 2, 0, 1]), 2, 4)
    two, three = torch.zeros(2).long(), torch.zeros(3).long()
    with pytest.raises(ValueError, match="as many, got 2 and 3"):
        between(model, two, three)
    with pytest.raises(ValueError, match="right ids must lie in 0 … 3"):
        between(model, two, two + 4)
    with pytest.raises(ValueError, match=r"left must be \(N,\) or \(N, any\)"):
        between(model, two[:, None, None], two)
    with pytest.raises(TypeError, match="model must be a KneserNey"):
        between(Loss(two, 2), two, two)
