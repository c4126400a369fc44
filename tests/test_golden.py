# SPDX-License-Identifier: MIT
"""The book's one example: stored numbers, exact arithmetic, and the package agree."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import pytest
import torch
from compare import close

from deepdive import trace
from deepdive.masks import Causal
from deepdive.trace import CATS, CATS_DAILY

GOLDEN = json.loads((Path(__file__).parent / "golden/cats_chase_mice.json").read_text())
BOOK = Path(__file__).parents[1] / "book"
ONE, TWO = trace.attention(), trace.attention(n_heads=2)
DAILY = trace.attention(CATS_DAILY, mask=Causal())


PRINTED = 1e-6  # the stored numbers are rounded to this


def exact(rows):
    """Decimals as fractions: 1.3 is 13/10 here, not the nearest float."""
    return [[Fraction(str(x)) for x in row] for row in rows]


def product(A, B):
    columns = list(zip(*B, strict=True))
    return [
        [sum(a * b for a, b in zip(row, c, strict=True)) for c in columns] for row in A
    ]


def exact_projection(name):
    return product(exact(GOLDEN["X"]), exact(GOLDEN[name]))


def exact_scores(columns):
    Q, K = exact_projection("W_Q"), exact_projection("W_K")
    K_T = list(zip(*(row[columns] for row in K), strict=True))
    return product([row[columns] for row in Q], K_T)


def softmax_by_hand(row, width):
    powers = [math.exp(float(x) / math.sqrt(width)) for x in row]
    return [p / math.fsum(powers) for p in powers]


HALVES = {"one": (slice(0, 4), 4), "head1": (slice(0, 2), 2), "head2": (slice(2, 4), 2)}
STORED = {"one": GOLDEN["single_head"]} | {
    f"head{i + 1}": head for i, head in enumerate(GOLDEN["two_heads"]["heads"])
}
TRACED = {
    "one": {name: ONE[name][0] for name in ("raw_scores", "scaled_scores", "weights")}
} | {
    f"head{i + 1}": {n: TWO[n][i] for n in ("raw_scores", "scaled_scores", "weights")}
    for i in (0, 1)
}


def test_the_inputs_are_the_stored_ones():
    assert list(CATS.words) == GOLDEN["tokens"]
    for name in ("X", "W_Q", "W_K", "W_V"):
        assert getattr(CATS, name).tolist() == GOLDEN[name]
    assert torch.equal(CATS.W_O, torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("name", ["Q", "K", "V", "output"])
def test_one_head(name):
    close(ONE[name], GOLDEN["single_head"][name], PRINTED, name)


@pytest.mark.parametrize("head", HALVES)
@pytest.mark.parametrize("name", ["raw_scores", "scaled_scores", "weights"])
def test_scores_and_weights(head, name):
    what = f"{name} of {head}"
    close(TRACED[head][name], STORED[head][name], PRINTED, what)


@pytest.mark.parametrize("name", ["concat", "output"])
def test_two_heads_joined(name):
    close(TWO[name], GOLDEN["two_heads"][name], PRINTED, f"{name} of two heads")


@pytest.mark.parametrize("head", [0, 1])
def test_two_heads_apart(head):
    stored = GOLDEN["two_heads"]["heads"][head]["output"]
    close(TWO["head_outputs"][head], stored, PRINTED, f"output of head{head + 1}")


def test_fourth_word():
    stored = GOLDEN["fourth_word"]
    for matrix, name in (("X", "x"), ("Q", "q"), ("K", "k"), ("V", "v")):
        close(DAILY[matrix][3], stored[name], PRINTED, f"daily's {name}")
    close(DAILY["weights"][0], stored["causal_weights"], PRINTED, "causal weights")
    close(DAILY["output"], stored["causal_output"], PRINTED, "causal output")
    assert CATS_DAILY.words[3] == stored["token"]


@pytest.mark.parametrize("head", HALVES)
def test_raw_scores_are_exact(head):
    columns, width = HALVES[head]
    scores = exact_scores(columns)
    assert exact(STORED[head]["raw_scores"]) == scores
    floats = [[float(x) for x in row] for row in scores]
    close(TRACED[head]["raw_scores"], floats, 1e-15, f"raw scores of {head}")
    by_hand = [softmax_by_hand(row, width) for row in scores]
    close(TRACED[head]["weights"], by_hand, 1e-15, f"weights of {head}")


def test_outputs_by_hand_unrounded():
    V = [[float(x) for x in row] for row in exact_projection("W_V")]
    one = [softmax_by_hand(row, 4) for row in exact_scores(slice(0, 4))]
    close(ONE["output"], product(one, V), 1e-15, "output of one head")
    halves = []
    for columns in (slice(0, 2), slice(2, 4)):
        weights = [softmax_by_hand(row, 2) for row in exact_scores(columns)]
        halves.append(product(weights, [row[columns] for row in V]))
    joined = [a + b for a, b in zip(*halves, strict=True)]
    close(TWO["output"], joined, 1e-15, "output of two heads")


@pytest.mark.parametrize(
    "weights, query, keys, stored",
    [
        (ONE["weights"][0], 1, (0, 2), 0.383652),
        (TWO["weights"][0], 0, (0, 2), 0.371426),
        (TWO["weights"][1], 1, (1, 2), 0.401112),
        (TWO["weights"][1], 2, (0, 1, 2), 0.333333),
    ],
    ids=["one head, chase", "head 1, cats", "head 2, chase", "head 2, mice"],
)
def test_ties_are_exact(weights, query, keys, stored):
    values = {weights[query, key].item() for key in keys}
    assert len(values) == 1, "a tie must be a tie to the last bit"
    assert abs(values.pop() - stored) < 1e-6


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_the_layer_is_the_trace(n_heads):
    out = trace.layer(n_heads=n_heads)(CATS.X[None])[0].detach()
    traced = trace.attention(n_heads=n_heads)["output"]
    close(out, traced, 1e-15, f"output of {n_heads} heads")


# W_O is the identity in the book's example; here it turns, stretches and mixes.
CROOKED = replace(CATS, W_O=torch.arange(16.0).double().view(4, 4).sin())


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_the_output_passes_through_w_o(n_heads):
    traced = trace.attention(CROOKED, n_heads)
    by_hand = product(traced["concat"].tolist(), CROOKED.W_O.tolist())
    close(traced["output"], by_hand, 1e-14, "concat W_O")
    close(traced["concat"], trace.attention(CATS, n_heads)["concat"], 0, "concat")
    out = trace.layer(CROOKED, n_heads)(CATS.X[None])[0].detach()
    close(out, traced["output"], 1e-14, f"the layer of {n_heads} heads")


@pytest.mark.parametrize("n_heads", [1, 2, 4])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_without_positions_order_means_nothing(n_heads, order):
    order = [*order]
    whole = trace.attention(n_heads=n_heads)
    moved = trace.attention(CATS.reorder(order), n_heads=n_heads)
    assert moved["words"] == tuple(CATS.words[i] for i in order)
    weights = whole["weights"][:, order][:, :, order]
    close(moved["output"], whole["output"][order], 1e-15, f"output of {n_heads} heads")
    close(moved["weights"], weights, 1e-15, f"weights of {n_heads} heads")


def test_json_keeps_every_digit():
    result = json.loads(json.dumps(trace.to_json(TWO)))
    for name in ("weights", "output", "scaled_scores"):
        assert result[name] == TWO[name].tolist()
    assert result["n_heads"] == 2 and result["words"] == list(CATS.words)


# ── On the pages ─────────────────────────────────────────────────────────────────────


def printed(chapter: str) -> list[list[str]]:
    """Every line of numbers that a chapter's cells show, words left out."""
    notebook = json.loads((BOOK / f"{chapter}.ipynb").read_text(encoding="utf-8"))
    lines = []
    for cell in notebook["cells"]:
        for out in cell.get("outputs", []):
            text = "".join(out.get("data", {}).get("text/plain", ""))
            for line in text.splitlines():
                lines.append([w for w in line.split() if w[0] in "−0123456789"])
    return lines


def golden_rows():
    """(chapter, name, row) for every matrix of one head and of two."""
    one, two = GOLDEN["single_head"], GOLDEN["two_heads"]
    found = [("02_attention", name, rows) for name, rows in one.items()]
    for number, head in enumerate(two["heads"], 1):
        found += [("03_multi_head", f"head {number} {n}", r) for n, r in head.items()]
    found += [("03_multi_head", n, two[n]) for n in ("concat", "output")]
    return [(chapter, name, row) for chapter, name, rows in found for row in rows]


@pytest.mark.parametrize("chapter", ["02_attention", "03_multi_head"])
def test_every_golden_number_is_printed_on_its_page(chapter):
    lines = printed(chapter)
    for page, name, row in golden_rows():
        if page == chapter:
            short = [f"{x:.1f}" for x in row]  # queries, keys and values end there
            rounded = [f"{x:.3f}" for x in row]
            ends = all(float(a) == x for a, x in zip(short, row, strict=True))
            shown = rounded in lines or (ends and short in lines)
            assert shown, f"{name}: {rounded} is not on the page"
