# SPDX-License-Identifier: MIT
"""How can a vector say where a word stands? Like a clock, with fast and slow hands.

    PE(p, 2i) = sin(p · θᵢ),   PE(p, 2i + 1) = cos(p · θᵢ),   θᵢ = 10,000^(−2i/d)
    PE(p) · PE(p + k) = Σᵢ cos(k · θᵢ),   whatever p

The second view takes the positions away and shuffles three words: attention gives the
same rows back, in the new order.

Source: Vaswani et al. 2017, §3.5.
Taught in: book/04_positions.ipynb
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from deepdive import trace
from deepdive.palette import DIVERGING, diverging
from deepdive.positions import SinusoidalPositions
from deepdive.positions.angles import frequencies
from deepdive.widgets.base import Widget
from deepdive.widgets.svg import Drawing, fmt

WIDTH = 16
BASE = 10_000.0
FIRST = 31  # the last place of p
STEPS = 32  # the longest k
LEVELS = 25  # shades of the heat map
VIEWS = ("code", "words")
# The order as given, then the five others; the second swaps who chases whom.
ORDERS = ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1))
SAME = 1e-9  # two rows of float64 that differ by less are one

Rows = list[list[float]]

CAPTIONS = {
    "code": (
        "The 2017 formula with 16 numbers for each position. That it also serves "
        "positions beyond those of training was the paper’s hope (“may allow”, §3.5), "
        "not a result."
    ),
    "words": (
        "One attention layer without a mask, with the book’s hand-picked matrices. "
        "A line or = marks a row that is found again, ≠ one that is not."
    ),
}


def codes(last: int = FIRST + STEPS, width: int = WIDTH) -> Rows:
    """PE of positions 0 … last, as the package computes it, in float32.

    Shapes:
        → (last + 1, width)
    """
    table = SinusoidalPositions(width, BASE)(torch.arange(last + 1))
    return table.double().tolist()


def hands(k: int, width: int = WIDTH) -> Rows:
    """For each frequency: θ, positions for one whole turn, degrees turned by k steps.

    Shapes:
        → (width / 2, 3)

    >>> [round(x, 1) for x in hands(6)[0]]
    [1.0, 6.3, 343.8]
    """
    thetas = frequencies(width, BASE, "cpu").double().tolist()
    return [[t, 2 * math.pi / t, math.degrees(k * t)] for t in thetas]


def products(p: int, width: int = WIDTH) -> Rows:
    """PE(p) · PE(p + k) for k = 0 … 32, and what it must be, Σ cos(k · θᵢ).

    Shapes:
        → (33, 2)
    """
    table = codes(p + STEPS, width)
    thetas = frequencies(width, BASE, "cpu").double().tolist()
    return [
        [
            sum(a * b for a, b in zip(table[p], table[p + k], strict=True)),
            sum(math.cos(k * theta) for theta in thetas),
        ]
        for k in range(STEPS + 1)
    ]


def shuffled(order: Sequence[int], placed: bool) -> dict[str, Any]:
    """“cats chase mice” in another order: what enters attention, and what leaves it.

    Args:
        order: which word stands first, second, third.
        placed: whether PE is added to the words' vectors.

    Shapes:
        words (3); input, output (3, 4), float64
    """
    example = trace.CATS.reorder(list(order))
    seen = trace.positions(example) if placed else trace.attention(example)
    return {
        "words": list(seen["words"]),
        "input": seen["X"].tolist(),
        "output": seen["output"].tolist(),
    }


def again(rows: Rows, others: Rows) -> list[int]:
    """For each row, where among the others it is found again; −1 where it is not.

    >>> again([[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [5.0, 6.0]])
    [-1, 0]
    """
    return [
        next(
            (
                j
                for j, other in enumerate(others)
                if max(abs(a - b) for a, b in zip(row, other, strict=True)) < SAME
            ),
            -1,
        )
        for row in rows
    ]


@lru_cache(maxsize=1)
def _computed() -> dict[str, Any]:
    """All the page needs: eight frequencies, and the six orders of three words."""
    return {
        "thetas": [row[0] for row in hands(0)],
        "first": FIRST,
        "steps": STEPS,
        "levels": LEVELS,
        "ramp": [f"#{stop}" for stop in DIVERGING],
        "words": [
            {kind: shuffled(o, kind == "placed") for kind in ("bare", "placed")}
            for o in ORDERS
        ],
    }


class Sinusoids(Widget):
    """A heat map of PE, eight clocks, and the dot product of two positions.

    The view "words" shows three words in two orders instead, and what attention makes
    of them without positions and with them.

    Args:
        p: the first position, 0 … 31.
        k: how many steps further the second one stands, 0 … 32.
        view: "code" or "words".
        order: which of `ORDERS` the words are shuffled into.
        placed: whether positions are added to the words.
        name: slug, unique on its page.

    Raises:
        ValueError: any of these out of range.

    Taught in: book/04_positions.ipynb
    """

    label = "Sinusoidal positions"
    height = 774
    height_mid = 798
    height_narrow = 1498

    def __init__(
        self,
        p: int = 12,
        k: int = 6,
        view: str = "code",
        order: int = 1,
        placed: bool = False,
        name: str = "sinusoids",
        **kwargs: Any,
    ) -> None:
        """Compute the frequencies and the six orders, and show one view."""
        start = {"view": view, "p": p, "k": k, "order": order, "placed": placed}
        self.check(start)
        if view == "words":
            self.label = "Three words, shuffled"
            self.height, self.height_mid, self.height_narrow = 678, 678, 1100
        super().__init__(
            data=_computed(),
            start=start,
            name=name,
            alt=_alt(start),
            caption=CAPTIONS[view],
            **kwargs,
        )

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """The view must exist and every number lie in its range."""
        if state["view"] not in VIEWS:
            raise ValueError(
                f"view must be one of {', '.join(VIEWS)}, got {state['view']!r}"
            )
        for key, most in (("p", FIRST), ("k", STEPS), ("order", len(ORDERS) - 1)):
            value = state[key]
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not 0 <= value <= most:
                raise ValueError(f"{key} must be 0 … {most}, got {value!r}")
        if not isinstance(state["placed"], bool):
            raise ValueError(f"placed must be True or False, got {state['placed']!r}")
        return state

    def numbers(self) -> dict[str, Rows]:
        """What the table view shows for the present state, by table name."""
        p, k = self.state["p"], self.state["k"]
        if self.state["view"] == "code":
            table = codes()
            return {
                "hands": hands(k),
                "products": products(p),
                "code": [
                    list(pair) for pair in zip(table[p], table[p + k], strict=True)
                ],
            }
        both = [
            shuffled(ORDERS[o], self.state["placed"]) for o in (0, self.state["order"])
        ]
        return {
            f"{part}.{i}": one[part]
            for part in ("output", "input")
            for i, one in enumerate(both)
        }

    def frame(self) -> str:
        """The view the widget starts with."""
        start = self.data["start"]
        if start["view"] == "words":
            drawing = Drawing(690, 360, self.alt)
            _draw_words(drawing, start["order"], start["placed"])
        else:
            drawing = Drawing(690, 448, self.alt)
            _draw_map(drawing, start["p"], start["k"])
            _draw_clocks(drawing, start["p"], start["k"])
            _draw_products(drawing, start["p"], start["k"])
        return drawing.svg()


def _alt(start: dict[str, Any]) -> str:
    """What the first frame shows, in two sentences."""
    if start["view"] == "words":
        first, other = (
            shuffled(ORDERS[o], start["placed"]) for o in (0, start["order"])
        )
        found = sum(j >= 0 for j in again(other["output"], first["output"]))
        return (
            f"Attention’s output for “{' '.join(first['words'])}” and for "
            f"“{' '.join(other['words'])}”, {'with' if start['placed'] else 'without'} "
            f"positions. {found} of 3 rows of the first are found again in the second."
        )
    rows = products(start["p"])
    return (
        "Heat map of PE, 64 positions by 16 dimensions, eight clocks with a hand for "
        f"p = {start['p']} and one for p + k = {start['p'] + start['k']}, and the dot "
        f"product of the two against k. It falls from {fmt(rows[0][0], 1)} at k = 0 to "
        f"{fmt(rows[3][0], 1)} at 3, rises to {fmt(rows[6][0], 1)} at 6, and is the "
        "same for every p."
    )


# The frame, 690 px wide; `sinusoids.js` draws the same at any width.
MAP_X, MAP_Y, CELL, ROW = 88, 76, 13, 5
SIDE_X, SIDE_WIDTH = 346, 344


def heat(
    table: Rows, x: float, y: float, width: float, height: float, levels: int = LEVELS
) -> list[tuple[str, str]]:
    """A heat map as one path for each shade, equal cells of a column joined.

    Returns:
        pairs (colour, path): 1,024 cells take 7 kB, not 100.
    """
    shades = [[_shade(v, levels) for v in row] for row in table]
    paths: dict[int, str] = {}
    for j in range(len(table[0])):
        start = 0
        for i in range(1, len(table) + 1):
            if i < len(table) and shades[i][j] == shades[start][j]:
                continue
            box = f"M{x + j * width:g} {y + start * height:g}h{width:g}"
            box += f"v{(i - start) * height:g}h{-width:g}z"
            level = shades[start][j]
            paths[level] = paths.get(level, "") + box
            start = i
    return [
        (diverging(2 * level / (levels - 1) - 1), path)
        for level, path in sorted(paths.items())
    ]


def _shade(value: float, levels: int) -> int:
    """Which of the shades, 0 for −1; halves go up, as in JavaScript."""
    return math.floor((value + 1) / 2 * (levels - 1) + 0.5)


def _paint(drawing: Drawing, rows: Rows, y: float, tall: float) -> None:
    """Rows of the table as shades, the first of them at y."""
    for colour, path in heat(rows, MAP_X, y, CELL, tall):
        drawing.parts.append(
            f'<path d="{path}" fill="{colour}" shape-rendering="crispEdges"/>'
        )


def _draw_map(drawing: Drawing, p: int, k: int) -> None:
    """Two rows enlarged, and below them the whole map with the two marked."""
    table, width = codes(), WIDTH * CELL
    right = MAP_X + width
    drawing.text(0, 18, "PE: a row for each position", 17, weight=600)
    _paint(drawing, table, MAP_Y, ROW)
    _paint(drawing, [table[p]], 26, 20)
    _paint(drawing, [table[p + k]], 50, 20)
    drawing.text(MAP_X - 22, 41, "PE(p)", 14, anchor="end", weight=600)
    drawing.text(MAP_X - 22, 65, "PE(p+k)", 14, "accent", "end", 600)
    drawing.circle(MAP_X - 12, 36, 4, "ink")
    drawing.circle(MAP_X - 12, 60, 5, None, "accent")
    for tick in (0, 16, 32, 48, 63):
        if abs(tick - p) * ROW > 15:
            level = MAP_Y + (tick + 0.5) * ROW
            drawing.text(MAP_X - 8, level + 5, str(tick), 14, "muted", "end")
    for place in (p, p + k):  # a rim of the page's colour lifts the row off the map
        top = MAP_Y + place * ROW
        drawing.rect(MAP_X - 4, top - 4, width + 8, ROW + 8, "paper", radius=0)
    for place, colour in ((p, "ink"), (p + k, "accent")):
        top = MAP_Y + place * ROW
        _paint(drawing, [table[place]], top, ROW)
        drawing.rect(MAP_X - 2, top - 2, width + 4, ROW + 4, None, colour, 0, 2)
    level = MAP_Y + (p + 0.5) * ROW + 5
    drawing.text(MAP_X - 8, level, f"p = {p}", 14, anchor="end", weight=600)
    level = MAP_Y + (p + k + 0.5) * ROW + 5
    drawing.text(right + 8, level, str(p + k), 14, "accent", weight=600)
    foot = MAP_Y + 64 * ROW + 30
    drawing.text(MAP_X, foot - 12, "0", 14, "muted")
    drawing.text(right, foot - 12, "15", 14, "muted", "end")
    drawing.text(MAP_X + width / 2, foot - 12, "dimension", 14, "muted", "middle")
    unit = (width - 52) / LEVELS
    for i in range(LEVELS):
        colour = diverging(2 * i / (LEVELS - 1) - 1)
        drawing.rect(MAP_X + 26 + unit * i, foot, unit + 0.5, 12, colour, radius=0)
    drawing.text(MAP_X + 20, foot + 11, "−1", 14, "muted", "end")
    drawing.text(right - 20, foot + 11, "+1", 14, "muted")


def tip(x: float, y: float, r: float, angle: float) -> tuple[float, float]:
    """Where a hand of length r ends: up at angle 0, then clockwise.

    >>> tip(50.0, 50.0, 20.0, 0.0)
    (50.0, 30.0)
    """
    return x + r * math.sin(angle), y - r * math.cos(angle)


def _turn(drawing: Drawing, x: float, y: float, r: float, start: float, by: float):
    """The arc a hand has gone, clockwise from `start`; a ring after a whole turn."""
    if by >= 2 * math.pi:
        drawing.circle(x, y, r, None, "line")
        return
    (x1, y1), (x2, y2) = (tip(x, y, r, a) for a in (start, start + by))
    drawing.parts.append(
        f'<path d="M{x1:.2f} {y1:.2f}A{r:g} {r:g} 0 {int(by > math.pi)} 1 {x2:.2f} '
        f'{y2:.2f}" fill="none" stroke-width="4" stroke="#57606a" '
        'style="stroke:var(--dd-muted,#57606a)"/>'
    )


def _draw_clocks(drawing: Drawing, p: int, k: int) -> None:
    """A clock for each frequency: one hand for p, one for p + k."""
    drawing.text(SIDE_X, 18, "A clock for each pair of columns", 17, weight=600)
    drawing.text(SIDE_X, 37, "below it: positions for a turn; turned by k", 14, "muted")
    step, r = SIDE_WIDTH / 4, 29
    for i, (theta, period, degrees) in enumerate(hands(k)):
        x, y = SIDE_X + (i % 4 + 0.5) * step, 79 + 109 * (i // 4)
        drawing.circle(x, y, r, "soft", "line")
        drawing.line(x, y - r, x, y - r + 5, "muted", 1.5)
        _turn(drawing, x, y, 14, p * theta, k * theta)
        for angle, colour in ((p * theta, "ink"), ((p + k) * theta, "accent")):
            end = tip(x, y, 23, angle)
            drawing.path([(x, y), end], colour, 2.5)
            if colour == "ink":
                drawing.circle(*(round(c, 2) for c in end), 4, "ink")
            else:
                drawing.circle(*(round(c, 2) for c in end), 5.5, None, "accent")
        drawing.text(x, y + r + 17, _plain(period), 14, "ink", "middle")
        drawing.text(x, y + r + 34, f"+{_plain(degrees)}°", 14, "accent", "middle")


def _plain(x: float) -> str:
    """Three digits or so: 0.1, 6.3, 63, 19 869."""
    if x < 9.95:
        return fmt(x, 1)
    return f"{math.floor(x + 0.5):,}".replace(",", "\u202f")


def _draw_products(drawing: Drawing, p: int, k: int) -> None:
    """PE(p) · PE(p + k): the line is Σ cos(k · θ), the dots come from this p."""
    rows = products(p)
    x, y, width, height = SIDE_X + 24, 316, SIDE_WIDTH - 36, 82
    drawing.text(SIDE_X, y - 41, "Dot product: the same for every p", 17, weight=600)
    drawing.text(SIDE_X, y - 22, "PE(p) · PE(p + k) against k", 14, "muted")
    for tick in (0, 4, 8):
        level = y + height * (1 - tick / 8)
        drawing.line(x, level, x + width, level)
        drawing.text(x - 11, level + 5, str(tick), 14, "muted", "end")
    places = [
        (x + i * width / STEPS, y + height * (1 - v[1] / 8)) for i, v in enumerate(rows)
    ]
    drawing.path(places, "muted", 1.5)
    for i, (dot, _) in enumerate(rows):
        drawing.circle(
            round(places[i][0], 2), round(y + height * (1 - dot / 8), 2), 2.6
        )
    drawing.circle(*(round(c, 2) for c in places[k]), 7, None, "accent")
    left = k > STEPS - 4
    at, level = places[k][0] + (-11 if left else 11), max(places[k][1] - 6, y - 1)
    if rows[k + (-3 if left else 3)][0] > rows[k][0]:  # the dots beside it rise
        level = min(places[k][1] + 21, y + height - 3)
    value, anchor = fmt(rows[k][0], 2), "end" if left else "start"
    drawing.text(at, level, value, 16, "accent", anchor, 650)
    rim = "paint-order:stroke;stroke:var(--dd-paper,#ffffff);stroke-width:5px;"
    drawing.parts[-1] = drawing.parts[-1].replace('style="', f'style="{rim}', 1)
    for tick in (0, 8, 16, 24, 32):
        place = x + tick * width / STEPS
        drawing.text(place, y + height + 19, str(tick), 14, "muted", "middle")
    drawing.text(x + width / 2, y + height + 38, "steps k", 14, "ink", "middle", 600)


def _draw_words(drawing: Drawing, order: int, placed: bool) -> None:
    """Two orders side by side: what goes in, what comes out, which rows agree."""
    pair = [shuffled(ORDERS[o], placed) for o in (0, order)]
    found = again(pair[1]["output"], pair[0]["output"])
    n = sum(j >= 0 for j in found)
    drawing.text(0, 18, f"{'With' if placed else 'Without'} positions: {n} of 3 output "
                 "rows are found again", 17, weight=600)  # fmt: skip
    tall, cell, label = 38, 64, 58
    block = label + 4 * cell
    added = "word’s vector + PE(position)" if placed else "word’s vector"
    for side, one in enumerate(pair):
        x = side * (690 - block)
        for part, y, words in (
            ("input", 74, f"in: {added}"),
            ("output", 230, "out of attention"),
        ):
            drawing.text(x, y - 12, words, 14, "muted")
            for t, row in enumerate(one[part]):
                level = y + t * tall + tall / 2 + 5
                drawing.text(x, level, one["words"][t], 15, weight=600)
                for j, value in enumerate(row):
                    drawing.cell(x + label + j * cell, y + t * tall, cell - 3, tall - 3,
                                 value, size=15, shade=False)  # fmt: skip
    for j, i in enumerate(found):
        level = 230 + j * tall + tall / 2 - 1
        if i < 0:
            drawing.text(345, level + 6, "≠", 20, "ink", "middle", 600)
            continue
        drawing.line(
            block + 3,
            230 + i * tall + tall / 2 - 1,
            690 - block - 6,
            level,
            "accent",
            2.5,
        )
