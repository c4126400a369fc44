# SPDX-License-Identifier: MIT
"""Every check knows the right answer, and answers every known mistake with its hint."""

import math

import numpy as np
import pytest
import torch

from deepdive import checks
from deepdive.checks import Check, Verdict, Wrong

ALL = checks.ALL
VALUES = {name: c for name, c in ALL.items() if not callable(c.right)}
FUNCTIONS = {name: c for name, c in ALL.items() if callable(c.right)}
MISTAKES = [(name, i) for name, c in ALL.items() for i in range(len(c.wrong))]


def test_there_are_checks_of_both_kinds():
    assert len(VALUES) >= 4 and len(FUNCTIONS) >= 4
    assert set(ALL) <= set(checks.__all__)


@pytest.mark.parametrize("name", ALL)
def test_the_right_answer_is_right(name):
    check = ALL[name]
    verdict = check(check.right)
    assert verdict and verdict.message == check.praise
    assert repr(verdict) == f"Right: {check.praise}"


@pytest.mark.parametrize("name, i", MISTAKES)
def test_a_known_mistake_gets_its_own_hint(name, i):
    check = ALL[name]
    verdict = check(check.wrong[i].answer)
    assert not verdict and verdict.message == check.wrong[i].hint


@pytest.mark.parametrize("name", ALL)
def test_enough_hints_all_different(name):
    hints = [wrong.hint for wrong in ALL[name].wrong]
    assert len(hints) >= 3 and len(set(hints)) == len(hints)
    assert all(hint.endswith((".", "?")) for hint in hints)


e = math.e
Z = 1 + e + e**0.5
SIN_COS = (torch.sin, torch.cos)
STUDENTS = [
    ("fourth_state", math.tanh(0.328), "0.317"),
    ("fourth_state", 0.328, "tanh is still to come"),
    ("fourth_state", math.tanh(-0.3), "old state is missing"),
    ("steps_to_one_percent", 44, "rounded up"),
    ("steps_to_one_percent", 43, "One more step"),
    ("steps_to_one_percent", 10, "multiply"),
    ("steps_to_one_percent", 21.85, "is not it"),
    ("steps_to_one_percent", 43.7, "round up"),
    ("steps_to_one_percent", 44.3, "a whole number is asked"),
    ("strongest_factor", 2.0, "on the way up"),
    ("strongest_factor", 3, "past the top"),
    ("strongest_factor", 2.65, "above it tanh does"),
    ("strongest_factor", 1 / 0.6, "24 zeros gain"),
    ("strongest_factor", 3.2, "eight times"),
    ("steps_that_wait", 20 + 15, "side by side"),
    ("steps_that_wait", 2 * 20 + 15, "both read at once"),
    ("steps_that_wait", 20 * 15, "Count states"),
    (
        "gru_step",
        lambda x, h, W, U: (
            lambda r, z: (1 - z) * torch.tanh(x @ W[2] + r * (h @ U[2])) + z * h
        )(*torch.sigmoid(x @ W[:2] + h @ U[:2])),
        "the same numbers",
    ),
    (
        "gru_step",
        lambda x, h, W, U: (
            lambda r, z: z * torch.tanh(x @ W[2] + r * (h @ U[2])) + (1 - z) * h
        )(*torch.sigmoid(x @ W[:2] + h @ U[:2])),
        "exchanged",
    ),
    (
        "additive_attention",
        lambda s, H, W, U, v: (H.T * (v @ torch.tanh(s @ W + H @ U).T).softmax(0)).sum(
            1
        ),
        "the same numbers",
    ),
    (
        "additive_attention",
        lambda s, H, W, U, v: ((H @ U) @ v).softmax(0) @ H,
        "the tanh is missing",
    ),
    (
        "additive_attention",
        lambda s, H, W, U, v: (torch.tanh(s @ W + H @ U) @ v).softmax(0),
        "those are the weights",
    ),
    ("new_query", (0.5 + e + 0.5 * e**0.5) / Z, "0.186, 0.506, 0.307"),
    ("new_query", (0.5 + e**2 + 0.5 * e) / (1 + e**2 + e), "not divided"),
    ("new_query", e / Z, "weight of chase"),
    ("new_query", (1 + 0.6 * e + e**0.5) / Z, "keys were mixed"),
    ("new_query", (1 + e**0.5) / Z, "rows of X"),
    ("new_query", 1.25, "softmax comes first"),
    ("new_query", 0.7525, "0.186, 0.506, 0.307"),  # rounded on the way, as on paper
    ("new_query", (0.5 + e + 0.5 * e**0.5) / Z + 0.004, "close"),
    ("shifted_keys", e / (2 * e + e**0.5), "sees differences only"),
    ("shifted_keys", e**2 / (2 * e**2 + e), "division by √d_k = 2 is missing"),
    ("shifted_keys", e**2 / (e**2 + e**0.5 + e), "all three keys"),
    ("shifted_keys", e**0.5 / (2 * e + e**0.5), "chase on itself"),
    ("four_heads", e / (1 + 2 * e), "1/√1"),
    ("four_heads", e**0.5 / (1 + 2 * e**0.5), "divides by √4"),
    ("four_heads", e**0.5**0.5 / (1 + 2 * e**0.5**0.5), "divides by √2"),
    ("four_heads", 1 / (1 + 2 * e), "weight of cats"),
    ("t5_parameters", 67_108_864, "sixteen times"),
    ("t5_parameters", 4_194_304, "16,384 columns"),
    ("t5_parameters", 50_331_648, "W_O counts too"),
    ("t5_parameters", 16_777_216, "one matrix"),
    ("t5_parameters", 524_288, "one head"),
    ("t5_parameters", 67_000_000, "has to be exact"),
    ("four_heads", 0.2119416, "head 4"),
    ("one_sinusoid", math.sin(2), "sin 2 = 0.909"),
    ("one_sinusoid", math.sin(math.pi / 90), "took it for degrees"),
    ("one_sinusoid", math.cos(2), "fourth number"),
    ("one_sinusoid", -0.873, "first number"),
    ("one_sinusoid", 0.02, "exponent is missing"),
    ("whole_turn", 628, "2π radians"),
    ("whole_turn", 100, "1 radian"),
    ("whole_turn", 62.83, "not i/d"),
    (
        "sinusoids",
        lambda p, d: torch.stack(
            [f(p * 10_000 ** (-2 * i / d)) for i in range(d // 2) for f in SIN_COS], 1
        ),
        "the same numbers",
    ),
    (
        "sinusoids",
        lambda p, d: torch.stack(
            [f(p * 10_000 ** (-2 * i / d)) for f in SIN_COS for i in range(d // 2)], 1
        ),
        "before all cosines",
    ),
    (
        "sinusoids",
        lambda p, d: torch.stack(
            [f(p * 10_000 ** (-i / d)) for i in range(d // 2) for f in SIN_COS], 1
        ),
        "yours is i/d",
    ),
    (
        "sinusoids",
        lambda p, d: torch.stack(
            [f(p / 10_000 ** (2 * j / d)) for j in range(0, d, 2) for f in SIN_COS], 1
        ),
        "already counts in 2i",
    ),
    (
        "sinusoids",
        lambda p, d: torch.stack(
            [SIN_COS[j % 2](p / 10_000 ** (j / d)) for j in range(d)], 1
        ),
        "one for each column",
    ),
    (
        "sinusoids",
        lambda p, d: torch.stack(
            [SIN_COS[j % 2](p / 10_000 ** (2 * j / d)) for j in range(d)], 1
        ),
        "not the columns",
    ),
    (
        "sinusoids",
        lambda p, d: torch.stack(
            [
                f(torch.arange(len(p)) / 10_000 ** (2 * i / d))
                for i in range(d // 2)
                for f in SIN_COS
            ],
            1,
        ),
        "Use the positions given",
    ),
    ("add_positions", lambda x, table: x + table[: x.shape[-2]], "every sentence"),
    (
        "add_positions",
        lambda x, table: x + table[: x.size(0)].unsqueeze(1),
        "first axis is the batch",
    ),
    (
        "add_positions",
        lambda x, table: x + table[: x.shape[0] * x.shape[1]].view_as(x),
        "Each begins at 0",
    ),
    ("add_positions", lambda x, table: x + table[1 : 1 + x.shape[1]], "at position 0"),
    ("attention", lambda Q, K, V: (Q @ K.T).softmax(1) @ V, "not divided"),
    ("attention", lambda Q, K, V: (Q @ K.T / 2).softmax(1) @ V, "width of 4 only"),
    (
        "attention",
        lambda Q, K, V: Q @ K.T / Q.shape[1] ** 0.5 @ V,
        "softmax comes first",
    ),
    (
        "attention",
        lambda Q, K, V: (Q @ K.T / Q.shape[0] ** 0.5).softmax(1) @ V,
        "number of queries",
    ),
    (
        "attention",
        lambda Q, K, V: (Q @ K.T / Q.shape[1]).softmax(1) @ V,
        "not by the width",
    ),
    (
        "attention",
        lambda Q, K, V: (Q @ K.T / Q.shape[1] ** 0.5).softmax(0) @ V,
        "down the columns",
    ),
    (
        "attention",
        lambda Q, K, V: (Q @ K.T / Q.shape[1] ** 0.5).softmax(1) @ K,
        "keys are mixed",
    ),
    ("causal_weights", lambda s: torch.tril(s.softmax(1)), "less than 1"),
    ("causal_weights", lambda s: (s * torch.ones_like(s).tril()).softmax(1), "−∞"),
    (
        "causal_weights",
        lambda s: s.masked_fill(torch.ones_like(s).tril(-1) > 0, -1e30).softmax(1),
        "up to t",
    ),
    (
        "causal_weights",
        lambda s: s.masked_fill(torch.ones_like(s).triu(0) > 0, -torch.inf).softmax(1),
        "diagonal",
    ),
    ("split", lambda x, h: x.view(x.shape[0], h, -1, x.shape[2] // h), "cut up"),
    ("split", lambda x, h: torch.stack([x[..., i::h] for i in range(h)], 1), "H-th"),
    ("split", lambda x, h: torch.stack(x.chunk(h, -1), 2), "Exchange words and heads"),
    ("sum_of_heads", lambda h, W: torch.cat([*h], 1) @ W, "the same numbers"),
    ("sum_of_heads", lambda h, W: torch.cat([*h], 1) @ W / len(h), "average"),
    ("sum_of_heads", lambda h, W: torch.cat([*h], 1) @ W.T, "columns"),
    ("sum_of_heads", lambda h, W: h.view(h.shape[1], -1) @ W, "mixes words"),
    ("normed_entry", 5 / 3, "36/4 = 9"),
    ("normed_entry", 1.67, "36/4 = 9"),
    ("normed_entry", 5 / 12**0.5, "divides by all four"),
    ("normed_entry", 9 / 5, "RMSNorm"),
    ("block_parameters", 3_152_384, "1,050,624"),
    ("block_parameters", 3_145_728, "matrices are all there"),
    ("block_parameters", 2_889_728, "W_O"),
    (
        "layer_norm",
        lambda x, g, b, e: (
            (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + e).sqrt() * g + b
        ),
        "d − 1",
    ),
    (
        "who_moves",
        lambda norm, x: torch.stack(
            [
                (norm(x + 3 * torch.eye(len(x))[:, j : j + 1]) - norm(x)).abs().sum(1)
                > 1e-6
                for j in range(len(x))
            ],
            1,
        ).double(),
        "constant added",
    ),
    (
        "who_moves",
        lambda norm, x: torch.stack(
            [
                (norm(x * (1 + 9 * torch.eye(len(x))[:, [j]])) - norm(x)).abs().sum(1)
                > 1e-6
                for j in range(len(x))
            ],
            1,
        ).double(),
        "times a number",
    ),
    (
        "pre_norm_block",
        lambda x, a, f, n, m: m(n(x + a(x)) + f(n(x + a(x)))),
        "that is post-norm",
    ),
    ("third_word", (0.5 * e**1.5 + e**0.8 + 0.5 * e) / (e**1.5 + e**0.8 + e), "0.475"),
    ("third_word", (0.5 * e**3 + e**1.6 + 0.5 * e**2) / (e**3 + e**1.6 + e**2), "√d_k"),
    ("third_word", (e**1.5 + 0.6 * e**0.8 + e) / (e**1.5 + e**0.8 + e), "keys were"),
    ("third_word", (e**1.5 + e) / (e**1.5 + e**0.8 + e), "rows of X"),
    ("third_word", 0.5, "only cats"),
    ("third_word", 0.4755, "weight of cats"),
    ("third_word", 0.475, "weight of cats"),
    ("third_word", 2.05, "softmax comes first"),
    ("decoder_layer", 4_204_032, "three norms"),
    ("decoder_layer", 3_152_384, "encoder layer"),
    ("decoder_layer", 4_194_304, "matrices alone"),
    ("decoder_layer", 4_197_376, "of projections and network"),
    ("decoder_layer", 4_200_960, "the norms are missing"),
    ("decoder_layer", 4_203_008, "one norm"),
    (
        "target_shift",
        lambda y, s: torch.cat([0 * y[:, :1] + s, y[:, :-1]], 1),
        "before",
    ),
    ("target_shift", lambda y, s: y.clone(), "its own label"),
    ("target_shift", lambda y, s: torch.cat([y[:, -1:], y[:, :-1]], 1), "come round"),
    (
        "target_shift",
        lambda y, s: torch.cat([y[:, 1:], 0 * y[:, :1] + s], 1),
        "the other way",
    ),
    ("target_shift", lambda y, s: torch.cat([0 * y[:, :1] + s, y], 1), "too long"),
    (
        "target_shift",
        lambda y, s: torch.cat([0 * y[:, :1] + s, y[:, 1:]], 1),
        "first label's place",
    ),
    ("unmasked_dice", 0.38, "the last is a guess"),
    ("unmasked_dice", 2.30, "with its mask"),
    ("unmasked_dice", 0, "never read"),
    ("unmasked_dice", 1.92, "the other way round"),
    ("unmasked_dice", 0.46, "all six digits"),
    (
        "smoothed_loss",
        lambda x, y, e: (
            -(
                ((1 - e) * torch.eye(x.shape[1])[y] + e / x.shape[1]) * x.log_softmax(1)
            ).sum(1)
        ),
        "label_smoothing",
    ),
    (
        "smoothed_loss",
        lambda x, y, e: -(1 - e) * x.log_softmax(1)[range(len(y)), y],
        "share ε is missing",
    ),
    (
        "smoothed_loss",
        lambda x, y, e: (
            -((1 - e) * torch.eye(x.shape[1])[y] * x.log_softmax(1)).sum(1)
            - e * x.log_softmax(1).sum(1)
        ),
        "every word got ε",
    ),
    (
        "smoothed_loss",
        lambda x, y, e: -x.log_softmax(1)[range(len(y)), y],
        "eps does nothing",
    ),
    (
        "smoothed_loss",
        lambda x, y, e: (
            (1 - e) * x.softmax(1)[range(len(y)), y] + e * x.softmax(1).mean(1)
        ),
        "take the logarithm",
    ),
    (
        "smoothed_loss",
        lambda x, y, e: -(1 - e) * x[range(len(y)), y] - e * x.mean(1),
        "raw logits",
    ),
    (
        "smoothed_loss",
        lambda x, y, e: (
            -(1 - e) * x.log_softmax(0)[range(len(y)), y] - e * x.log_softmax(0).mean(1)
        ),
        "down the columns",
    ),
    ("zero_mask_loss", 1.32, "a third of each"),
    ("zero_mask_loss", 0.267, "Take −log"),
    ("zero_mask_loss", 1.3, "Divide by 3"),
    ("zero_mask_loss", 1.154, "price of daily"),
    ("zero_mask_loss", 1.386, "an even guess"),
    ("zero_mask_loss", 0.941, "daily is missing"),
    ("zero_mask_loss", 1.395, "query is zero too"),
    ("wrong_among_visible", 1.7, "88 of 100"),
    ("wrong_among_visible", 1.5 / 0.88, "88 of 100"),
    ("wrong_among_visible", 1.5, "are not visible"),
    ("wrong_among_visible", 50, "*asked*"),
    ("wrong_among_visible", 0.017, "in percent"),
    ("wrong_among_visible", 1.5 / 0.85, "not 85"),
    (
        "hide_pieces",
        lambda ids, chosen, lot, other, mask: torch.stack(
            [
                torch.where(
                    chosen,
                    torch.where(lot < 0.8, mask, torch.where(lot < 0.9, other, ids)),
                    ids,
                ),
                torch.where(chosen, ids, -100),
            ]
        ),
        "every chosen piece is asked",
    ),
    (
        "hide_pieces",
        lambda ids, chosen, lot, other, mask: torch.stack(
            [
                torch.where(chosen & (lot < 0.8), mask, ids),
                torch.where(chosen, ids, -100),
            ]
        ),
        "nothing is swapped",
    ),
    (
        "hide_pieces",
        lambda ids, chosen, lot, other, mask: torch.stack(
            [
                torch.where(lot < 0.8, mask, torch.where(lot < 0.9, other, ids)),
                torch.where(chosen, ids, -100),
            ]
        ),
        "not chosen are spoilt",
    ),
    (
        "hide_pieces",
        lambda ids, chosen, lot, other, mask: torch.stack(
            [
                torch.where(
                    chosen & (lot < 0.9),
                    other,
                    torch.where(chosen & (lot < 0.8), mask, ids),
                ),
                torch.where(chosen, ids, -100),
            ]
        ),
        "catches those just hidden",
    ),
    (
        "hide_pieces",
        lambda ids, chosen, lot, other, mask: torch.stack(
            [
                torch.where(
                    chosen & (lot < 0.8),
                    mask,
                    torch.where(chosen & (lot < 0.9), other, ids),
                ),
                ids.masked_fill(chosen, -100),
            ]
        ),
        "the wrong way round",
    ),
    (
        "hide_pieces",
        lambda ids, chosen, lot, other, mask: torch.stack(
            [
                torch.where(
                    chosen & (lot < 0.8),
                    mask,
                    torch.where(chosen & (lot < 0.9), other, ids),
                ),
                torch.where(chosen, ids, 0),  # no hint for it; six rows are given
            ]
        ),
        "Compare result[1, 0]: yours is",
    ),
    (
        "cloze_loss",
        lambda logits, labels: torch.stack(
            [
                torch.nn.functional.cross_entropy(row, label)
                if (label >= 0).any()
                else row.sum() * 0
                for row, label in zip(logits, labels, strict=True)
            ]
        ),
        "0 for a row without any",
    ),
    (
        "cloze_loss",
        lambda logits, labels: torch.stack(
            [
                torch.nn.functional.cross_entropy(row, label)
                for row, label in zip(logits, labels, strict=True)
            ]
        ),
        "0/0",
    ),
    ("four_guesses", 2**2.25, "2.25 on average"),
    ("four_guesses", 4.76, "2.25 on average"),
    ("four_guesses", 4.75, "cut off, not rounded"),
    ("four_guesses", 4.8, "Two decimals will do"),
    ("four_guesses", 1 / ((1 / 2 + 1 / 4 + 1 / 8 + 1 / 8) / 4), "mean probability"),
    ("four_guesses", math.log(2 * 4 * 8 * 8) / 4, "in nats"),
    ("four_guesses", 2 * 4 * 8 * 8, "Take their mean"),
    ("gpt2_parameters", 124_439_808, "38.6 million"),
    ("gpt2_parameters", 117e6, "the paper's figure"),
    ("gpt2_parameters", 163_037_184, "word table itself"),
    ("gpt2_parameters", 124_438_272, "one more norm"),
    ("gpt2_parameters", 124_439_808 - 12 * 4 * 768, "attention's four biases, or"),
    ("gpt2_parameters", 124_439_808 - 12 * 9 * 768, "have biases"),
    ("gpt2_parameters", 124_439_808 - 12 * 13 * 768, "no biases and no norms"),
    ("gpt2_parameters", 124_439_808 - (12 * 4 + 2) * 768, "no norm is counted"),
    ("gpt2_parameters", 768 * (50_257 + 1_024 + 12 * 12 * 768), "tables and matrices"),
    ("gpt2_parameters", 124_000_000, "has to be exact"),
    (
        "next_word_losses",
        lambda x, ids: torch.nn.functional.cross_entropy(
            x[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"
        ),
        "causal_lm",
    ),
    (
        "next_word_losses",
        lambda x, ids: torch.nn.functional.cross_entropy(
            x.transpose(1, 2), ids, reduction="none"
        ),
        "just read",
    ),
    (
        "next_word_losses",
        lambda x, ids: torch.nn.functional.cross_entropy(
            x[:, 1:].transpose(1, 2), ids[:, :-1], reduction="none"
        ),
        "the other way",
    ),
    (
        "next_word_losses",
        lambda x, ids: torch.nn.functional.cross_entropy(
            x.transpose(1, 2), ids.roll(-1, 1), reduction="none"
        ),
        "came round",
    ),
    (
        "top_p_probabilities",
        lambda q, p: (
            lambda s, i: (
                lambda kept: torch.zeros_like(q).scatter(0, i, kept / kept.sum())
            )(torch.where(s.cumsum(0) - s < p, s, 0.0))
        )(*q.sort(descending=True)),
        "the same numbers",
    ),
    (
        "top_p_probabilities",
        lambda q, p: (
            lambda s, i: (
                lambda kept: torch.zeros_like(q).scatter(0, i, kept / kept.sum())
            )(torch.where(s.cumsum(0) - s <= p, s, 0.0))
        )(*q.sort(descending=True)),
        "one word too many",
    ),
    (
        "top_p_probabilities",
        lambda q, p: (
            (lambda s, i: torch.zeros_like(q).scatter(0, i, s * (s.cumsum(0) <= p)))(
                *q.sort(descending=True)
            )
            / q[q.argsort(descending=True)][q.sort(descending=True)[0].cumsum(0) <= p]
            .sum()
            .clamp(min=0)
        ),
        "is dropped",
    ),
    ("top_p_probabilities", lambda q, p: q * (q >= p) / (q * (q >= p)).sum(), "bounds"),
    (
        "top_p_probabilities",
        lambda q, p: (
            q
            * (
                q
                >= q.sort(descending=True)[0][
                    (q.sort(descending=True)[0].cumsum(0) < p - 1e-9)
                    .sum()
                    .clamp(max=len(q) - 1)
                ]
            )
        ),
        "Now divide",
    ),
    ("two_rulers", math.log(20, 2) / 2.7 - math.log(2.6, 2), "1.601 bits"),
    ("two_rulers", 0.222, "1.601 bits"),
    ("two_rulers", 0.22, "1.601 bits"),
    ("two_rulers", math.log(20) / 2.7 - math.log(2.6), "nats"),
    ("two_rulers", 20 / 2.7 - 2.6, "cannot be shared out"),
    ("left_bucket", 10, "eight exact"),
    ("left_bucket", 26, "to the right"),
    ("left_bucket", 17, "looking back"),
    ("left_bucket", 20, "that is the distance"),
    ("left_bucket", 11, "rounded up"),
    ("left_bucket", 2, "exact ones lie before"),
    ("left_bucket", 9, "a factor of 16"),
    ("target_pieces", 206, "51 marks"),
    ("target_pieces", 205, "one is missing"),
    ("target_pieces", 154, "marks are missing"),
    ("target_pieces", 921, "encoder reads"),
    ("target_pieces", 309, "not before each piece"),
    ("target_pieces", 207, "rounded up"),
    ("target_pieces", 1024, "not the whole text"),
    (
        "backward_buckets",
        lambda d, n, m: torch.tensor(
            [
                b if b < n // 2 else min(n - 1, n // 2 + int(1e-6 + n / 2 * r))
                for x in d.tolist()
                for b in [max(-x, 0)]
                for r in [math.log(max(b, 1) / (n // 2)) / math.log(m / (n // 2))]
            ]
        ),
        "near half exact",
    ),
    (
        "backward_buckets",
        lambda d, n, m: torch.tensor(
            [
                b if b < n // 2 else n // 2 + int(1e-6 + n / 2 * r)
                for x in d.tolist()
                for b in [max(-x, 0)]
                for r in [math.log(max(b, 1) / (n // 2)) / math.log(m / (n // 2))]
            ]
        ),
        "the buckets go on",
    ),
    (
        "backward_buckets",
        lambda d, n, m: torch.tensor([min(max(-x, 0), n - 1) for x in d.tolist()]),
        "a single distance",
    ),
    (
        "newest_bias",
        lambda t, n, m: torch.stack(
            [
                t[
                    checks.backward_buckets.right(torch.tensor([i + 1 - n]), len(t), m)[
                        0
                    ]
                ]
                for i in range(n)
            ],
            1,
        ),
        "beside the newest key",
    ),
    ("newest_bias", lambda t, n, m: t[:1].T.expand(-1, n), "at place 0"),
    (
        "newest_bias",
        lambda t, n, m: torch.stack(
            [
                t[checks.backward_buckets.right(torch.tensor([-i]), len(t), m)[0]]
                for i in range(n)
            ],
            1,
        ),
        "oldest first",
    ),
    ("newest_bias", lambda t, n, m: 0 * t[:1].T.expand(-1, n), "without a bias"),
]


@pytest.mark.parametrize("name, answer, part", STUDENTS)
def test_mistakes_as_a_student_writes_them(name, answer, part):
    """Numbers from the mathematics, functions written in another way."""
    assert part in ALL[name](answer).message


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("answer", [None, ...])
def test_dots_are_no_answer_yet(name, answer):
    assert not ALL[name](answer) and "no answer yet" in ALL[name](answer).message


GARBAGE = [
    "two",
    "",
    [],
    {},
    object(),
    1 + 2j,
    math.nan,
    math.inf,
    10**400,
    torch.ones(2),
    torch.tensor([]),
    np.ones(3),
    ValueError("x"),
    int,
    print,
    lambda: 1,
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("answer", GARBAGE, ids=repr)
def test_garbage_is_told_kindly(name, answer):
    verdict = ALL[name](answer)
    assert isinstance(verdict, Verdict) and not verdict and verdict.message


@pytest.mark.parametrize("name", VALUES)
def test_numbers_of_any_type_count(name):
    right = VALUES[name].right
    for answer in (torch.tensor(right).double(), np.float64(right), str(right)):
        assert VALUES[name](answer)
    assert not VALUES[name](right + 2 * VALUES[name].tolerance)


@pytest.mark.parametrize("name", VALUES)
def test_three_printed_digits_are_enough(name):
    """A reader may round as the page does."""
    assert VALUES[name](round(VALUES[name].right, 3))


def raises(*_):
    raise RuntimeError("sizes 3 and 4")


def dots(*_):
    return ...


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "answer, part",
    [
        (lambda *_: None, "returns nothing yet"),
        (dots, "returns nothing yet"),
        (raises, "stops with RuntimeError: sizes 3 and 4"),
        (lambda: 1, "stops with TypeError"),
        (lambda *_: 3.0, "got float"),
        (lambda *_: torch.zeros(1), "got (1,)"),
        (lambda *a: (a, a), "got tuple"),
        (3, "a function is expected, got 3"),
    ],
    ids=["None", "dots", "raises", "arguments", "float", "shape", "tuple", "number"],
)
def test_functions_that_do_not_answer(name, answer, part):
    verdict = FUNCTIONS[name](answer)
    assert not verdict and part in verdict.message


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_miss_shows_the_first_row(name):
    right = FUNCTIONS[name].right
    verdict = FUNCTIONS[name](lambda *a: right(*a) + 0.25)
    assert not verdict and "yours is (" in verdict.message
    assert not FUNCTIONS[name](lambda *a: right(*a) * math.nan)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_ways_of_being_right(name):
    """Single precision is right, and so is a function that spoils its arguments."""
    right = FUNCTIONS[name].right

    def spoils(*arguments):
        out = right(*arguments).clone()
        for x in arguments:
            if isinstance(x, torch.Tensor):
                x.zero_()
        return out

    assert FUNCTIONS[name](spoils)
    assert FUNCTIONS[name](spoils), "the cases survive the first call"
    if right(*FUNCTIONS[name].cases[0]).is_floating_point():  # not ids
        assert FUNCTIONS[name](lambda *a: right(*a).clone().requires_grad_())


def test_html_is_escaped():
    check = Check(1.0, "yes", [Wrong(2.0, "a < b.")])
    assert "a &lt; b." in check(2)._repr_html_()
    assert "&lt;b&gt;" in check("<b>")._repr_html_()
    assert "dd-right" in check(1)._repr_html_()
