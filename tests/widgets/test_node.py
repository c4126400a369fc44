# SPDX-License-Identifier: MIT
"""What the page recomputes equals what Python computes, to the last bits."""

import json
import random

import numpy as np
import pytest
from matplotlib import colormaps

from conftest import WIDGETS, run_node
from deepdive import palette
from deepdive.widgets import base, mask_grid, quiz, softmax_scale, svg


def test_fmt_and_count() -> None:
    cases = [
        0.0,
        -0.0,
        -0.0001,
        0.0005,
        0.125,
        -0.125,
        2.5,
        -1.25,
        1e6 / 3,
        -12.3456,
        0.9995,
    ]
    asked = [[x, d] for x in cases for d in (0, 1, 2, 3, 6)]
    found = run_node("return input.map(([x, d]) => m.fmt(x, d));", payload=asked)
    assert found == [svg.fmt(x, d) for x, d in asked]
    assert run_node("return [m.fmt(-Infinity), m.fmt(null), m.count(-16384)];") == [
        "−∞", "–", "−16\u202f384",
    ]  # fmt: skip


def test_cividis_is_one_map_and_its_ink_is_legible() -> None:
    xs = np.linspace(0, 1, 401).tolist()
    found = run_node(
        "return input.map((x) => [m.cividis(x), m.inkOn(m.cividis(x))]);", payload=xs
    )
    for x, (colour, ink) in zip(xs, found, strict=True):
        assert (colour, ink) == (svg.cividis(x), svg.ink_on(colour))
        light, dark = sorted(
            (palette.luminance(colour), palette.luminance(ink)), reverse=True
        )
        assert (light + 0.05) / (dark + 0.05) >= 4.5
        ours = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        theirs = [255 * c for c in colormaps["cividis"](x)[:3]]
        assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 12


def test_softmax() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 7)) * 40
    found = np.array(run_node("return input.map(m.softmax);", payload=rows.tolist()))
    powers = np.exp(rows - rows.max(-1, keepdims=True))
    np.testing.assert_allclose(
        found, powers / powers.sum(-1, keepdims=True), rtol=0, atol=1e-15
    )
    assert run_node("return [m.softmax([null, 1, 1]), m.softmax([null, null])];") == [
        [0, 0.5, 0.5], [0, 0],
    ]  # fmt: skip


def test_encode24() -> None:
    values = [0, 1, 0.5, 1 / 3, 0.0123456789, *np.random.default_rng(1).random(50)]
    packed = base.encode24(values)
    found = run_node(
        "return [...m.decode24(input[0], input[1])];", payload=[packed, len(values)]
    )
    np.testing.assert_allclose(found, values, rtol=0, atol=0.5 / 0xFFFFFF + 1e-15)
    with pytest.raises(ValueError, match=r"1\.5"):
        base.encode24([1.5])


def test_names_with_lowered_letters() -> None:
    program = """
      globalThis.document = { createElement: (tag) => ({
        tag, words: [], append(...w) { this.words.push(...w); }, setAttribute() {} }) };
      const flat = (list) => list.map((x) => (x.tag ? `<${x.words}>` : x)).join("");
      return input.map((words) => flat(m.rich(words)));
    """
    found = run_node(
        program, payload=["√d_k and W_Q", "head_dim", "n_heads", "d_model"]
    )
    assert found == ["√d<k> and W<Q>", "head_dim", "n_heads", "d<model>"]


# --------------------------------------------------------------------------------- W3
def test_softmax_scale_weights() -> None:
    scores = softmax_scale.simulate()[: softmax_scale.SHOWN]
    asked = [
        [scores[n, i].tolist(), d, scaled, t]
        for n in range(2)
        for i, d in enumerate(softmax_scale.WIDTHS)
        for scaled in (False, True)
        for t in softmax_scale.TEMPERATURES
    ]
    found = run_node(
        "return input.map((x) => m.weights(...x));", WIDGETS / "softmax_scale.js", asked
    )
    for (row, d, scaled, t), ours in zip(asked, found, strict=True):
        theirs = softmax_scale.weights(np.array(row), d, scaled, t)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
        assert abs(sum(ours) - 1) < 1e-12


def test_softmax_scale_slope_is_the_derivative() -> None:
    """p(1 − p) against a finite difference, and JS against Python."""
    row = softmax_scale.simulate()[0, 4]
    shares = softmax_scale.weights(row, 16, True)
    top, step = int(shares.argmax()), 1e-6
    bumped = [
        softmax_scale.weights(row + np.eye(16)[top] * step * sign * 4, 16, True)[top]
        for sign in (1, -1)
    ]  # 4 = √16, so that what enters the softmax moves by `step`
    slope = run_node(
        "return m.largest(input).slope;", WIDGETS / "softmax_scale.js", shares.tolist()
    )
    assert abs(slope - (bumped[0] - bumped[1]) / (2 * step)) < 1e-8
    assert abs(softmax_scale.largest(shares[None])[1] - slope) < 1e-15


def test_softmax_scale_counts_dead_draws() -> None:
    scores = softmax_scale.simulate()
    tops = softmax_scale.weights(scores[:, -1], 1024, False).max(-1)
    share = float(np.mean([p * (1 - p) < 0.01 for p in tops]))
    assert softmax_scale.dead(tops[:, None]) == pytest.approx(share, abs=1e-12)
    data, t = softmax_scale.SoftmaxScale().data, softmax_scale.TEMPERATURES.index(1)
    assert data["raw_dead"][t][-1] == pytest.approx(share, abs=1e-6)
    assert round(share, 2) == 0.76
    assert data["scaled_dead"][t][-1] == 0


def test_softmax_scale_means_are_those_of_theory() -> None:
    """Against another simulation: scores of unit queries are normal, lengths chi."""
    rng = np.random.default_rng(5)
    found = softmax_scale.curves(softmax_scale.simulate())
    for i, d in enumerate(softmax_scale.WIDTHS):
        scores = np.sqrt(rng.chisquare(d, (20000, 1))) * rng.normal(size=(20000, 16))
        for way, scaled in (("raw", False), ("scaled", True)):
            mean, slope = softmax_scale.largest(
                softmax_scale.weights(scores, d, scaled)
            )
            at = softmax_scale.TEMPERATURES.index(1)
            assert abs(found[f"{way}_largest"][at][i] - mean) < 0.012, (way, d)
            assert abs(found[f"{way}_slope"][at][i] - slope) < 0.004, (way, d)
    even = found["raw_largest"][softmax_scale.TEMPERATURES.index(1)][::2]
    np.testing.assert_allclose(even, [0.21, 0.42, 0.69, 0.85, 0.93, 0.96], atol=0.011)
    slopes = found["raw_slope"][softmax_scale.TEMPERATURES.index(1)][::2]
    np.testing.assert_allclose(
        slopes, [0.141, 0.200, 0.170, 0.099, 0.053, 0.027], atol=0.004
    )
    # √1024 = 32: temperature and scaling are one knob.
    hot = softmax_scale.TEMPERATURES.index(32)
    assert found["raw_largest"][hot][-1] == pytest.approx(
        found["scaled_largest"][softmax_scale.TEMPERATURES.index(1)][-1], abs=1e-6
    )


# --------------------------------------------------------------------------------- W7
def test_masks_equal_python_for_every_setting() -> None:
    asked = [
        [rule, n, prefix, window]
        for rule in mask_grid.RULES
        for n in range(1, 9)
        for prefix in range(0, 9)
        for window in range(1, 9)
    ]
    found = run_node(
        "return input.map((x) => [m.allowed(...x), Object.values(m.counts(...x))]);",
        WIDGETS / "mask_grid.js", asked,
    )  # fmt: skip
    for args, (mask, numbers) in zip(asked, found, strict=True):
        assert mask == mask_grid.allowed(*args), args
        assert numbers == list(mask_grid.counts(*args).values()), args


@pytest.mark.parametrize("n", range(2, 9))
def test_mask_counts_by_formula(n: int) -> None:
    causal, both = mask_grid.counts("causal", n), mask_grid.counts("bidirectional", n)
    assert causal == {
        "allowed": n * (n + 1) // 2, "cells": n * n, "kept": n - 1, "changed": 0,
        "leaks": 0,
    }  # fmt: skip
    assert both == {
        "allowed": n * n, "cells": n * n, "kept": 0, "changed": n - 1, "leaks": n - 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [{"n": 9}, {"rule": "sideways"}, {"window": 0}, {"prefix": -1}, {"words": ["one"]}],
    ids=str,
)
def test_mask_grid_refuses(wrong: dict) -> None:
    with pytest.raises(ValueError, match="must be"):
        mask_grid.MaskGrid(**wrong)


# ------------------------------------------------------------------------------- Quiz
def test_numbers_as_readers_write_them() -> None:
    written = [
        "0.5",
        "0,5",
        " −3 ",
        "-.25",
        "1e-3",
        "1E3",
        "",
        "x",
        "1,000.5",
        "--1",
        "1/2",
        "7.",
    ]
    found = run_node("return input.map(m.parseNumber);", WIDGETS / "quiz.js", written)
    assert found == [quiz.parse_number(text) for text in written]
    assert found[:4] == [0.5, 0.5, -3, -0.25]


def test_marking_equals_python_and_every_quiz_is_sound() -> None:
    rng = random.Random(3)
    for path in sorted(quiz.QUIZZES.glob("*.json")):
        made = quiz.Quiz.load(path.stem)
        items = made.data["items"]
        for _ in range(20):
            answers = {}
            for item in items:
                if item["kind"] == "number":
                    off = item.get("tolerance", 0)
                    near = [
                        item["answer"],
                        item["answer"] + off,
                        item["answer"] + 3 * off + 0.5,
                    ]
                    answers[item["id"]] = str(rng.choice(near)).replace(
                        ".", rng.choice(".,")
                    )
                else:
                    answers[item["id"]] = rng.randrange(len(item["options"]))
            made.state = {"answers": answers, "checked": {i["id"]: True for i in items}}
            js = run_node(
                "return m.score(input.items, input.state);", WIDGETS / "quiz.js",
                {"items": items, "state": made.state},
            ) if _ < 4 else list(made.score())  # fmt: skip
            assert js == list(made.score()), path.stem


def test_options_are_mixed_the_same_way_every_time() -> None:
    first, again = (quiz.Quiz.load("02_attention").data["items"] for _ in range(2))
    assert first == again
    places = [
        next(i for i, o in enumerate(item["options"]) if o["correct"])
        for path in quiz.QUIZZES.glob("*.json")
        for item in quiz.Quiz.load(path.stem).data["items"]
        if "options" in item
    ]
    assert len(set(places)) > 1, "the right answer always stands in the same place"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "essay"}, "kind must be"),
        ({"hint": "x"}, "unknown"),
        ({"prompt": "What is $d_k$?"}, "no TeX"),
        ({"options": [{"text": "a", "correct": True, "why": "b"}]}, "1 options"),
    ],
)
def test_quiz_refuses(change: dict, message: str) -> None:
    option = {"text": "yes", "correct": True, "why": "so"}
    item = {
        "id": "x", "kind": "choice", "prompt": "Really?",
        "options": [option, {**option, "text": "no", "correct": False}],
    }  # fmt: skip
    quiz.Quiz([item])
    with pytest.raises(ValueError, match=message):
        quiz.Quiz([json.loads(json.dumps({**item, **change}))])
