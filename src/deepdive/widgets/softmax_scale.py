# SPDX-License-Identifier: MIT
"""What does √d_k do for softmax? Random queries and keys of growing width show it.

    q, k₁ … k₁₆ ~ N(0, 1) in every component,      weights = softmax(q·k / (√d_k · T))

The variance of q·k is d_k, so unscaled scores spread with the width, one weight takes
all, and the slope of that weight, ∂p/∂score = p(1 − p), runs out.

Source: Vaswani et al. 2017, §3.2.1, footnote 4.
Taught in: book/02_attention.ipynb
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any

from deepdive.widgets.base import Widget
from deepdive.widgets.svg import Drawing, fmt

if TYPE_CHECKING:  # else when a widget is made: it takes as long as anywidget
    import numpy as np

WIDTHS = tuple(2**i for i in range(11))
TEMPERATURES = (0.25, 0.5, 1, 2, 4, 8, 16, 32)
MEASURES = ("largest", "slope", "dead")
KEYS = 16
SHOWN = 8


@lru_cache(maxsize=4)
def simulate(draws: int = 4000, seed: int = 2017) -> np.ndarray:
    """Scores q·k of one random query against 16 random keys, for every width.

    Each draw keeps the same vectors for all widths and cuts them to their first d_k
    components, so that a score grows as a random walk.

    Shapes:
        → (draws, 11 widths, 16 keys), rounded to 6 decimals

    Raises:
        ValueError: fewer draws than the widget shows.
    """
    if draws < SHOWN:
        raise ValueError(f"draws must be ≥ {SHOWN}, got {draws}")
    import numpy as np

    rng = np.random.default_rng(seed)
    widest = WIDTHS[-1]
    starts = [0, *WIDTHS[:-1]]
    scores = np.empty((draws, len(WIDTHS), KEYS))
    for first in range(0, draws, 100):
        size = min(100, draws - first)
        q = rng.standard_normal((size, 1, widest), dtype=np.float32)
        k = rng.standard_normal((size, KEYS, widest), dtype=np.float32)
        pieces = np.add.reduceat((q * k).astype(np.float64), starts, axis=-1)
        scores[first : first + size] = np.cumsum(pieces, axis=-1).swapaxes(1, 2)
    scores = scores.round(6)
    scores.setflags(write=False)
    return scores


def weights(
    scores: np.ndarray | list[float], d: int, scaled: bool, temperature: float = 1.0
) -> np.ndarray:
    """softmax(scores / (√d · T)), or softmax(scores / T) when not scaled.

    Shapes:
        scores (…, keys) → (…, keys)
    """
    import numpy as np

    logits = np.asarray(scores) / ((np.sqrt(d) if scaled else 1.0) * temperature)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def largest(probabilities: np.ndarray) -> tuple[float, float]:
    """Mean largest weight p, and mean slope p(1 − p) of it against its own score.

    The slope is the diagonal entry ∂pᵢ/∂sᵢ of softmax's Jacobian at the largest weight,
    s being what enters the softmax. At p = 1 nothing is left to learn from.

    Shapes:
        probabilities (draws, keys)

    >>> import numpy as np
    >>> largest(np.array([[0.5, 0.5], [1.0, 0.0]]))
    (0.75, 0.125)
    """
    top = probabilities.max(-1)
    return float(top.mean()), float((top * (1 - top)).mean())


def dead(probabilities: np.ndarray, below: float = 0.01) -> float:
    """Share of draws whose largest weight p has a slope p(1 − p) below `below`.

    A mean slope hides them: a few draws in the middle keep it up.

    Shapes:
        probabilities (draws, keys)

    >>> import numpy as np
    >>> dead(np.array([[0.5, 0.5], [1.0, 0.0]]))
    0.5
    """
    top = probabilities.max(-1)
    return float((top * (1 - top) < below).mean())


def curves(scores: np.ndarray) -> dict[str, list[list[float]]]:
    """Largest weight, slope and share of dead draws for every temperature and width.

    Returns:
        `raw_largest`, `raw_slope`, `raw_dead` (means over draws, not scaled), and
        `scaled_largest`, `scaled_slope`, `scaled_dead`; each [temperature][width],
        rounded to 6 decimals.
    """
    out: dict[str, list[list[float]]] = {}
    for way, scaled in (("raw", False), ("scaled", True)):
        found = [
            [
                (*largest(shares), dead(shares))
                for i, d in enumerate(WIDTHS)
                for shares in [weights(scores[:, i], d, scaled, t)]
            ]
            for t in TEMPERATURES
        ]
        for at, what in enumerate(MEASURES):
            out[f"{way}_{what}"] = [[round(p[at], 6) for p in row] for row in found]
    return out


@lru_cache(maxsize=4)
def _computed(draws: int, seed: int) -> tuple[dict[str, Any], int]:
    """The widget's data, and which shown draw is nearest to the mean curve."""
    import numpy as np

    scores = simulate(draws, seed)
    found = curves(scores)
    mean = np.array(found["raw_largest"][TEMPERATURES.index(1)])
    tops = np.stack(
        [weights(scores[:SHOWN, i], d, False).max(-1) for i, d in enumerate(WIDTHS)], -1
    )
    typical = int(np.abs(tops - mean).sum(-1).argmin())
    data = {
        "widths": list(WIDTHS),
        "temperatures": list(TEMPERATURES),
        "draws": draws,
        "scores": scores[:SHOWN].tolist(),
        **found,
    }
    return data, typical


class SoftmaxScale(Widget):
    """Bars of 16 softmax weights as d_k grows, with and without ÷ √d_k.

    The first draw shown is the one, of eight, nearest to the mean curve.

    Args:
        d: width shown first, a power of two up to 1024.
        scaled: whether the scores are divided by √d_k at first.
        name: slug, unique on its page.
        draws: how many draws the means are taken over.
        seed: of the simulation.

    Raises:
        ValueError: a width that is not in `WIDTHS`, or too few draws.

    Taught in: book/02_attention.ipynb
    """

    label = "Softmax with and without ÷ √d_k"
    height = 710
    height_mid = 735
    height_narrow = 1280

    def __init__(
        self,
        d: int = 64,
        scaled: bool = False,
        name: str = "softmax-scale",
        draws: int = 4000,
        seed: int = 2017,
        **kwargs: Any,
    ) -> None:
        """Simulate, and show the given width first."""
        data, typical = _computed(draws, seed)
        start = {"d": d, "scaled": bool(scaled), "t": 1, "draw": typical}
        self.check(start)
        at = WIDTHS.index(d)
        raw, mild = (
            data[f"{w}_largest"][TEMPERATURES.index(1)] for w in ("raw", "scaled")
        )
        super().__init__(
            data=data,
            start=start,
            name=name,
            alt=(
                f"Bars of 16 softmax weights at d_k = {d}, and the mean largest weight "
                f"against d_k. Unscaled it climbs from {fmt(raw[0], 2)} to "
                f"{fmt(raw[-1], 2)} ({fmt(raw[at], 2)} here); divided by √d_k it stays "
                f"between {fmt(min(mild), 2)} and {fmt(max(mild), 2)}."
            ),
            caption=(
                f"Random q and k with unit variance, 16 keys, {draws} draws. The bars "
                "are one draw; the lines are means over all of them. Trained q and k "
                "need not be independent, so this shows a tendency, no trained model."
            ),
            **kwargs,
        )

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Width, temperature and draw must be among those computed."""
        for key, allowed in (
            ("d", WIDTHS),
            ("t", TEMPERATURES),
            ("draw", range(SHOWN)),
        ):
            if state[key] not in allowed:
                raise ValueError(
                    f"{key} must be one of {list(allowed)}, got {state[key]!r}"
                )
        if not isinstance(state["scaled"], bool):
            raise ValueError(f"scaled must be True or False, got {state['scaled']!r}")
        return state

    def numbers(self) -> dict[str, list[list[float]]]:
        """What the table view shows for the present state, by table name."""
        state = self.state
        at, t = WIDTHS.index(state["d"]), TEMPERATURES.index(state["t"])
        scores = self.data["scores"][state["draw"]][at]
        divisor = (sqrt(state["d"]) if state["scaled"] else 1.0) * state["t"]
        shares = weights(scores, state["d"], state["scaled"], state["t"])
        return {
            "weights": [
                [score, score / divisor, share]
                for score, share in zip(scores, shares.tolist(), strict=True)
            ],
            "means": [
                [
                    self.data[f"{way}_{what}"][t][i]
                    for way in ("raw", "scaled")
                    for what in MEASURES
                ]
                for i in range(len(WIDTHS))
            ],
        }

    def frame(self) -> str:
        """Bars on the left, the two mean curves on the right."""
        start = self.data["start"]
        at = WIDTHS.index(start["d"])
        scores = self.data["scores"][start["draw"]][at]
        shares = weights(scores, start["d"], start["scaled"])
        drawing = Drawing(690, 396, self.alt)
        _draw_bars(drawing, shares, start)
        t = TEMPERATURES.index(1)
        for top, what, words, high in (
            (40, "largest", "mean largest weight", 1.0),
            (238, "slope", "mean slope p(1 − p)", 0.25),
        ):
            rows = [self.data[f"{way}_{what}"][t] for way in ("raw", "scaled")]
            _draw_curves(drawing, top, words, rows, high, at)
        drawing.text(430, 220, "by the number that enters the softmax", 13, "muted")
        raw, mild = (self.data[f"{way}_dead"][t][at] for way in ("raw", "scaled"))
        drawing.text(
            34, 380, f"Slope below 0.01: {raw:.0%} of the draws unscaled, "
            f"{mild:.0%} divided by √d_k.".replace("%", " %"), 14,
        )  # fmt: skip
        return drawing.svg()


def _draw_bars(drawing: Drawing, shares: np.ndarray, start: dict[str, Any]) -> None:
    """Left half of the frame."""
    x, y, width, height = 34, 40, 350, 270
    divisor = f" ⁄ √{start['d']}" if start["scaled"] else ""
    drawing.text(
        x, 22, f"weights = softmax(q·k{divisor}),  d_k = {start['d']}", 16, weight=600
    )
    for tick in (0, 0.25, 0.5, 0.75, 1):
        level = y + height * (1 - tick)
        drawing.line(x, level, x + width, level)
        drawing.text(x - 6, level + 5, f"{tick:g}", 13, "muted", "end")
    colour = "accent" if start["scaled"] else "muted"
    drawing.bars(x, y, width, height, shares.tolist(), colour=colour, gap=6)
    top = int(shares.argmax())
    drawing.text(
        x + (top + 0.5) * width / KEYS,
        y + height * (1 - shares[top]) - 7,
        fmt(float(shares[top])),
        16,
        anchor="middle",
        weight=650,
    )
    for i in (0, 3, 7, 11, 15):
        place = x + (i + 0.5) * width / KEYS
        drawing.text(place, y + height + 18, str(i + 1), 13, "muted", "middle")
    drawing.text(x + width / 2, y + height + 38, "key", 14, "k", "middle", 600)


def _draw_curves(
    drawing: Drawing,
    y: float,
    words: str,
    rows: list[list[float]],
    high: float,
    at: int,
) -> None:
    """One of the two plots of the right half."""
    x, width, height = 460, 146, 96
    drawing.text(x - 30, y - (18 if high == 1 else 36), words, 15, weight=600)
    for tick in (0, high / 2, high):
        level = y + height * (1 - tick / high)
        drawing.line(x, level, x + width, level)
        drawing.text(x - 6, level + 5, f"{tick:g}", 13, "muted", "end")
    step = width / (len(WIDTHS) - 1)
    drawing.line(x + at * step, y - 6, x + at * step, y + height, "ink", 1.5, "3 3")
    for row, colour, dash in ((rows[0], "muted", "6 4"), (rows[1], "accent", "")):
        points = [
            (x + i * step, y + height * (1 - v / high)) for i, v in enumerate(row)
        ]
        drawing.path(points, colour, 2.5, dash)
        drawing.circle(*points[at], 5, colour)
        name = "unscaled" if dash else "÷ √d_k"
        drawing.text(x + width + 11, points[-1][1] + 5, name, 14, colour, "start", 600)
    for i in (0, 2, 4, 6, 10):
        drawing.text(
            x + i * step, y + height + 17, str(WIDTHS[i]), 13, "muted", "middle"
        )
