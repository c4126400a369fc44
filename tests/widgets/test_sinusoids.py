# SPDX-License-Identifier: MIT
"""Clocks, rotations and shuffled words: laws, the package, Python against Node."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import shapes
import torch

from conftest import WIDGETS, run_node
from deepdive import palette, trace
from deepdive.masks import Causal
from deepdive.positions import SinusoidalPositions
from deepdive.widgets import sinusoids
from deepdive.widgets.sinusoids import FIRST, ORDERS, STEPS, Sinusoids

SCRIPT = WIDGETS / "sinusoids.js"
TABLE = np.array(sinusoids.codes())
PLACES = range(FIRST + STEPS + 1)


@pytest.fixture(scope="module")
def page() -> dict:
    """Everything the page can compute, once."""
    program = """const { thetas, first, steps } = input;
      const upTo = (n) => Array.from({ length: n + 1 }, (_, i) => i);
      return { codes: m.codes(first + steps, thetas),
        hands: upTo(steps).map((k) => m.hands(k, thetas)),
        products: upTo(first).map((p) => m.products(p, steps, thetas)) };"""
    return run_node(program, SCRIPT, Sinusoids().data)


def test_table_is_the_formula_and_the_package() -> None:
    package = SinusoidalPositions(16)(torch.arange(64)).numpy()
    np.testing.assert_array_equal(TABLE, package)
    for p, i in itertools.product(PLACES, range(8)):
        angle = p / 10_000 ** (2 * i / 16)
        assert TABLE[p, 2 * i] == pytest.approx(math.sin(angle), abs=4e-6)
        assert TABLE[p, 2 * i + 1] == pytest.approx(math.cos(angle), abs=4e-6)


def test_page_computes_what_python_computes(page: dict) -> None:
    np.testing.assert_allclose(page["codes"], TABLE, rtol=0, atol=1.2e-7)
    for k in range(STEPS + 1):
        np.testing.assert_allclose(page["hands"][k], sinusoids.hands(k), rtol=1e-12)
    for p in range(FIRST + 1):
        ours = np.array(page["products"][p])
        np.testing.assert_allclose(ours, sinusoids.products(p), rtol=0, atol=1e-6)


def test_k_steps_are_one_rotation_for_every_p() -> None:
    """PE(p + k) from PE(p), pair by pair, by a turn that knows only k."""
    pairs = TABLE.reshape(-1, 8, 2)
    for k in (1, 6, 19, 32):
        angles = np.radians([row[2] for row in sinusoids.hands(k)])
        for p in range(FIRST + 1):
            sine, cosine = pairs[p].T
            turned = [
                sine * np.cos(angles) + cosine * np.sin(angles),
                cosine * np.cos(angles) - sine * np.sin(angles),
            ]
            np.testing.assert_allclose(
                np.stack(turned, -1), pairs[p + k], rtol=0, atol=8e-6
            )


def test_dot_product_knows_k_alone_and_is_not_monotone() -> None:
    rows = np.array([sinusoids.products(p) for p in range(FIRST + 1)])
    assert np.ptp(rows[..., 0], axis=0).max() < 2e-5
    np.testing.assert_allclose(rows[..., 0], rows[..., 1], rtol=0, atol=2e-5)
    curve = rows[0, :, 1]
    assert curve[0] == 8 == curve.max()
    assert curve[3] < curve[6] and curve[9] < curve[13] < curve[19]
    period = [row[1] for row in sinusoids.hands(0)]
    np.testing.assert_allclose(period, 2 * np.pi * 10 ** (np.arange(8) / 2), rtol=1e-6)


# ------------------------------------------------------------------------------ words
@pytest.mark.parametrize("order", ORDERS[1:], ids=str)
def test_shuffled_words_give_the_same_rows_unless_placed(order: tuple) -> None:
    first = sinusoids.shuffled(ORDERS[0], False)["output"]
    other = sinusoids.shuffled(order, False)["output"]
    assert sinusoids.again(other, first) == list(order)
    placed = [sinusoids.shuffled(o, True)["output"] for o in (ORDERS[0], order)]
    assert sinusoids.again(placed[1], placed[0]) == [-1, -1, -1]


def test_words_are_those_of_the_trace() -> None:
    for at, order in enumerate(ORDERS):
        example = trace.CATS.reorder(list(order))
        for kind, seen in (
            ("bare", trace.attention(example)),
            ("placed", trace.positions(example)),
        ):
            sent = Sinusoids().data["words"][at][kind]
            assert sent["output"] == seen["output"].tolist()
            assert sent["input"] == seen["X"].tolist()
            assert tuple(sent["words"]) == example.words
    assert sorted(ORDERS) == sorted(itertools.permutations(range(3)))


def test_a_causal_mask_would_tell_the_orders_apart() -> None:
    """Why the caption says “without a mask”."""
    one, two = (
        trace.attention(trace.CATS.reorder(list(o)), mask=Causal())["output"].tolist()
        for o in ORDERS[:2]
    )
    assert sinusoids.again(two, one) != list(ORDERS[1])


def test_page_finds_the_rows_that_python_finds() -> None:
    words = Sinusoids().data["words"]
    asked = [
        [one[kind]["output"], words[0][kind]["output"]]
        for one in words
        for kind in ("bare", "placed")
    ]
    found = run_node("return input.map((x) => m.again(...x));", SCRIPT, asked)
    assert found == [sinusoids.again(*pair) for pair in asked]


# ------------------------------------------------------------------------------ colour
def test_diverging_is_one_ramp_in_both_languages() -> None:
    xs = np.linspace(-1.2, 1.2, 241).tolist()
    program = "return input.xs.map((x) => m.diverging(x, input.ramp));"
    asked = {"xs": xs, "ramp": Sinusoids().data["ramp"]}
    assert run_node(program, SCRIPT, asked) == [palette.diverging(x) for x in xs]


def _linear(colour: str) -> np.ndarray:
    sent = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(sent <= 0.04045, sent / 12.92, ((sent + 0.055) / 1.055) ** 2.4)


# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def _oklab(linear: np.ndarray) -> np.ndarray:
    cones = [[0.4122214708, 0.5363325363, 0.0514459929],
             [0.2119034982, 0.6806995451, 0.1073969566],
             [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    axes = [[0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    return np.array(axes) @ np.cbrt(np.array(cones) @ linear)


def test_diverging_is_straight_grey_at_zero_and_ordered() -> None:
    xs = np.linspace(-1, 1, 81)
    colours = [palette.diverging(x) for x in xs]
    light = [palette.luminance(c) for c in colours]
    assert all(a <= b for a, b in itertools.pairwise(light)), "order lost in grey print"
    grey = [int(palette.diverging(0)[i : i + 2], 16) for i in (1, 3, 5)]
    assert max(grey) - min(grey) <= 8
    for ground in ("#ffffff", "#14181d"):  # zero can be told from either page
        low, high = sorted(map(palette.luminance, (ground, palette.diverging(0))))
        assert (high + 0.05) / (low + 0.05) >= 3
    places = np.array([_oklab(_linear(c)) for c in colours])
    for half, ends in ((slice(0, 41), (0, 40)), (slice(40, 81), (40, 80))):
        a, b = (places[i] for i in ends)
        straight = a + np.linspace(0, 1, 41)[:, None] * (b - a)
        assert np.abs(places[half] - straight).max() < 0.008


@pytest.mark.parametrize("kind", BLIND)
def test_diverging_reads_with_every_colour_vision(kind: str) -> None:
    """Minus, nought and plus stay far apart: 0.02 is a just noticeable step."""
    low, mid, high = (
        _oklab(np.clip(np.array(BLIND[kind]) @ _linear(palette.diverging(x)), 0, 1))
        for x in (-1, 0, 1)
    )
    gaps = [np.linalg.norm(a - b) for a, b in ((low, mid), (mid, high), (low, high))]
    assert min(gaps) > 0.15, gaps


def test_heat_map_covers_every_cell_once() -> None:
    ours = sinusoids.heat(TABLE.tolist(), 3, 5, 2, 4)
    theirs = run_node(
        "return m.heat(input.table, 3, 5, 2, 4, 25, input.ramp);", SCRIPT,
        {"table": TABLE.tolist(), "ramp": Sinusoids().data["ramp"]},
    )  # fmt: skip
    assert [tuple(pair) for pair in theirs] == ours
    shades = {}
    for colour, path in ours:
        for x, y, wide, tall in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-\d+z", path):
            assert wide == "2"
            for row in range(int(tall) // 4):
                cell = ((int(y) - 5) // 4 + row, (int(x) - 3) // 2)
                assert cell not in shades
                shades[cell] = colour
    assert len(shades) == 64 * 16
    for (p, j), colour in shades.items():
        step = round((TABLE[p, j] + 1) * 12)
        assert colour == palette.diverging(step / 12 - 1)


# ----------------------------------------------------------------------------- picture
def _both(widget: Sinusoids) -> list[list[shapes.Shape]]:
    """The page's shapes at the frame's width, and the frame's."""
    nodes = """(() => {
        const { data, state } = input, place = m.layout(690);
        if (state.view === "words") return m.drawWords(690, data, state).nodes;
        return [m.drawMap(place.map, data, state),
          m.drawClocks(place.clocks, data, state),
          m.drawProducts(place.dots, data, state)];
      })()"""
    asked = {"data": widget.data, "state": widget.state}
    return [shapes.of_page(nodes, SCRIPT, asked), shapes.of_frame(widget.frame())]


def _circles(found: list[shapes.Shape], r: str) -> np.ndarray:
    """Centres of all circles of this size; ground and rim of one count once."""
    some = [s for s in found if s["tag"] == "circle" and s["r"] == r]
    centres = [
        (float(s["cx"]), float(s["cy"])) for s in some if s.get("fill") != "none"
    ]
    return np.array(centres or [(float(s["cx"]), float(s["cy"])) for s in some])


def _hands(found: list[shapes.Shape]) -> np.ndarray:
    """Where every line begins and ends, (n, 2, 2)."""
    lines = [
        [(float(s["x1"]), float(s["y1"])), (float(s["x2"]), float(s["y2"]))]
        if s["tag"] == "line"
        else shapes.points(s)
        for s in found
        if s["tag"] in ("line", "polyline")
    ]
    return np.array([line for line in lines if len(line) == 2])


def test_a_hand_starts_at_noon_and_goes_clockwise() -> None:
    angles = [0, math.pi / 2, math.pi, 3 * math.pi / 2, 1.0, 40.0]
    ours = [sinusoids.tip(10, 20, 5, a) for a in angles]
    np.testing.assert_allclose(
        ours[:4], [(10, 15), (15, 20), (10, 25), (5, 20)], atol=1e-12
    )
    theirs = run_node("return input.map((a) => m.tip(10, 20, 5, a));", SCRIPT, angles)
    np.testing.assert_allclose(theirs, ours, atol=1e-12)


@pytest.mark.parametrize(("p", "k"), [(12, 6), (0, 0), (1, 2), (31, 32)])
def test_both_pictures_turn_the_hands_alike(p: int, k: int) -> None:
    """A tip stands at (sin, cos) of its position: to the right, and up."""
    thetas = [10 ** (-i / 2) for i in range(8)]
    for found in _both(Sinusoids(p=p, k=k)):
        dials, lines = _circles(found, "29"), _hands(found)
        assert len(dials) == 8
        for place, r in ((p, "4"), (p + k, "5.5")):
            tips = _circles(found, r)[-8:]  # the first of r = 4 is the key of the map
            wanted = [
                (23 * math.sin(place * t), -23 * math.cos(place * t)) for t in thetas
            ]
            np.testing.assert_allclose(tips - dials, wanted, atol=0.02)
            for dial, end in zip(dials, tips, strict=True):
                gaps = np.abs(lines - np.stack([dial, end])).max((1, 2))
                assert gaps.min() < 0.02, "a tip without its hand"
        arcs = [s["d"] for s in found if s["tag"] == "path" and "A14 14" in s["d"]]
        turned = [k * t for t in thetas if k * t < 2 * math.pi]
        assert len(arcs) == len(turned)
        for arc, dial, t in zip(arcs, dials[-len(arcs) :], turned, strict=True):
            x1, y1, large, sweep, x2, y2 = map(float, re.fullmatch(
                r"M(\S+) (\S+)A14 14 0 ([01]) ([01]) (\S+) (\S+)", arc
            ).groups())  # fmt: skip
            assert sweep == 1 and large == (t > math.pi)
            theta = thetas[len(thetas) - len(arcs) :][arcs.index(arc)]
            for end, angle in (((x1, y1), p * theta), ((x2, y2), p * theta + t)):
                want = dial + np.array([14 * math.sin(angle), -14 * math.cos(angle)])
                assert end == pytest.approx(want, abs=0.02)


@pytest.mark.parametrize(("p", "k"), [(12, 6), (3, 0), (31, 32)])
def test_both_pictures_place_the_dots_and_the_rows(p: int, k: int) -> None:
    values = np.array(sinusoids.products(p))
    for found in _both(Sinusoids(p=p, k=k)):
        ticks = {s["text"]: float(s["y"]) - 5 for s in found if s["tag"] == "text"
                 and s.get("text-anchor") == "end" and s["text"] in "48"}  # fmt: skip
        unit = (ticks["4"] - ticks["8"]) / 4
        ground = ticks["8"] + 8 * unit
        dots = _circles(found, "2.6")
        np.testing.assert_allclose(dots[:, 1], ground - unit * values[:, 0], atol=0.02)
        assert (np.diff(dots[:, 0]) > 8).all()
        np.testing.assert_allclose(_circles(found, "7")[0], dots[k], atol=0.02)
        (law,) = [s for s in found if s["tag"] == "polyline" and s["points"].count(",")
                  == STEPS + 1]  # fmt: skip
        np.testing.assert_allclose(shapes.points(law), dots, atol=0.02)
        frames = [float(s["y"]) for s in found if s["tag"] == "rect" and s["height"]
                  == "9" and s.get("class") != "sn-rim"]  # fmt: skip
        assert frames == [76 + 5 * place - 2 for place in (p, p + k)]


@pytest.mark.parametrize(
    "args",
    [{}, {"p": 0, "k": 0}, {"p": 31, "k": 32}, {"view": "words"},
     {"view": "words", "order": 0}, {"view": "words", "order": 3, "placed": True}],
    ids=str,
)  # fmt: skip
def test_both_pictures_say_the_same(args: dict) -> None:
    page, frame = map(shapes.texts, _both(Sinusoids(**args)))
    assert page == frame


@pytest.mark.parametrize("order", [0, 1, 3, 4])
def test_both_pictures_link_the_rows_that_are_found_again(order: int) -> None:
    links = [(0, 1, 2).index(word) for word in ORDERS[order]]
    for found in _both(Sinusoids(view="words", order=order)):
        ends = _hands(found)[:, :, 1]
        np.testing.assert_allclose(ends[:, 0] - 248, [38 * i for i in links], atol=1)
        np.testing.assert_allclose(ends[:, 1] - 248, [0, 38, 76], atol=1)


# ------------------------------------------------------------------------------- state
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"p": 32}, r"p must be 0 … 31, got 32"),
        ({"k": -1}, r"k must be 0 … 32, got -1"),
        ({"p": 1.5}, r"p must be 0 … 31, got 1\.5"),
        ({"p": True}, r"p must be 0 … 31, got True"),
        ({"order": 6}, r"order must be 0 … 5, got 6"),
        ({"view": "both"}, r"view must be one of code, words, got 'both'"),
        ({"placed": 1}, r"placed must be True or False, got 1"),
    ],
    ids=str,
)
def test_refuses(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sinusoids(**wrong)
    widget = Sinusoids()
    with pytest.raises(ValueError, match=message):
        widget.state = wrong


def test_page_mends_states_that_cannot_be_drawn() -> None:
    script = "return input.odd.map((s) => m.cleanState(s, input.data));"
    odd = [
        {"view": "x", "p": 99, "k": -3, "order": 9},
        {"view": "words", "p": 2.9, "k": 1e9, "order": 0},
    ]
    got = run_node(script, SCRIPT, {"data": Sinusoids().data, "odd": odd})
    assert got[0] == {"view": "code", "p": 31, "k": 0, "order": 5}
    assert got[1] == {"view": "words", "p": 2, "k": 32, "order": 0}


@pytest.mark.parametrize(
    "args",
    [{}, {"p": 0, "k": 0}, {"p": 31, "k": 32}, {"view": "words"},
     {"view": "words", "order": 3, "placed": True}],
    ids=str,
)  # fmt: skip
def test_first_frame_teaches(args: dict) -> None:
    widget = Sinusoids(**args)
    frame, state = widget.frame(), widget.state
    assert len(frame) < 40_000 and "nan" not in frame
    assert widget.alt.count(". ") <= 1, "two sentences at most"
    if state["view"] == "words":
        found = "0" if state["placed"] else "3"
        assert f"{found} of 3 output rows" in frame
        for rows in widget.numbers().values():
            for value in itertools.chain(*rows):
                assert palette.fmt(value) in frame
        return
    assert f"p = {state['p']}" in frame and "the same for every p" in frame
    assert palette.fmt(widget.numbers()["products"][state["k"]][0], 2) in frame
    for _, period, _ in sinusoids.hands(0):
        assert sinusoids._plain(period) in frame


@pytest.mark.parametrize(
    "args",
    [{}, {"p": 31, "k": 0}, {"view": "words", "order": 4},
     {"view": "words", "order": 0}, {"view": "words", "order": 2, "placed": True}],
    ids=str,
)  # fmt: skip
def test_page_describes_its_picture_as_python_does(args: dict) -> None:
    widget = Sinusoids(**args)
    asked = {"data": widget.data, "state": widget.state}
    said = run_node("return m.altOf(input.data, input.state);", SCRIPT, asked)
    assert said == widget.alt


def test_the_alternative_names_the_lowest_point() -> None:
    """The curve’s first valley is at 3, its first peak after that at 6."""
    curve = [row[0] for row in sinusoids.products(12)]
    assert min(range(7), key=curve.__getitem__) == 3
    assert max(range(3, 10), key=curve.__getitem__) == 6
    assert f"to {palette.fmt(curve[3], 1)} at 3" in Sinusoids().alt
