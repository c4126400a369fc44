# SPDX-License-Identifier: MIT
"""How does Python draw a widget's first frame? With shapes in the book's colours.

Every colour is written twice: as a CSS variable, so that the frame follows the page
into dark mode, and as a plain value for programs that know no variables.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from deepdive.palette import COLOURS, FONT, cividis, fmt, ink_on


def _paint(prop: str, colour: str | None) -> str:
    """`fill` or `stroke` as attribute and as CSS variable."""
    if colour is None:
        return f'{prop}="none"'
    if colour in COLOURS:
        plain = COLOURS[colour]
        return f'{prop}="{plain}" style="{prop}:var(--dd-{colour},{plain})"'
    return f'{prop}="{colour}"'


_LOWERED = re.compile(r"\b([A-Za-z])_(model|head|ff|[A-Za-z0-9])\b")


def lowered(words: str, size: float) -> str:
    """Escape words for SVG; "d_k" gets a lowered k, as `svgRich` of common.js does."""

    def low(found: re.Match) -> str:
        return (
            f'{found[1]}<tspan dy="{size * 0.22:g}" font-size="{size * 0.75:g}">'
            f'{found[2]}</tspan><tspan dy="{-size * 0.22:g}">\u200b</tspan>'
        )

    return _LOWERED.sub(low, html.escape(words))


class Drawing:
    """A list of shapes that becomes one `<svg>` with a description.

    Colours are names of `COLOURS` or plain CSS colours; None paints nothing.
    """

    def __init__(self, width: float, height: float, alt: str) -> None:
        """Start an empty drawing of the given size in user units (about px)."""
        self.width, self.height, self.alt = width, height, alt
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 15,
        colour: str = "ink",
        anchor: str = "start",
        weight: int = 400,
        rotate: float = 0,
    ) -> None:
        """Words on the base line y; anchor is start, middle or end."""
        turn = f' transform="rotate({rotate:g} {x:g} {y:g})"' if rotate else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-weight="{weight}" '
            f'text-anchor="{anchor}" {_paint("fill", colour)}{turn}>'
            f"{lowered(words, size)}</text>"
        )

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str | None = "soft",
        stroke: str | None = None,
        radius: float = 2,
        stroke_width: float = 1,
    ) -> None:
        """A rectangle with slightly rounded corners."""
        border = (
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{radius:g}" fill="none" stroke-width="{stroke_width:g}" '
            f"{_paint('stroke', stroke)}/>"
        )
        if fill is not None:
            self.parts.append(
                f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
                f'rx="{radius:g}" {_paint("fill", fill)}/>'
            )
        if stroke is not None:
            self.parts.append(border)

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        colour: str = "line",
        width: float = 1,
        dash: str = "",
    ) -> None:
        """A straight line; `dash` as in SVG, such as "4 3"."""
        self.path([(x1, y1), (x2, y2)], colour, width, dash)

    def path(
        self,
        points: Sequence[tuple[float, float]],
        colour: str = "ink",
        width: float = 2,
        dash: str = "",
    ) -> None:
        """A line through the points."""
        broken = f' stroke-dasharray="{dash}"' if dash else ""
        places = " ".join(f"{round(x, 2):g},{round(y, 2):g}" for x, y in points)
        self.parts.append(
            f'<polyline points="{places}" fill="none" stroke-width="{width:g}" '
            f'stroke-linejoin="round" stroke-linecap="round"{broken} '
            f"{_paint('stroke', colour)}/>"
        )

    def circle(
        self,
        x: float,
        y: float,
        r: float,
        fill: str | None = "ink",
        stroke: str | None = None,
    ) -> None:
        """A dot or, with fill "paper" and a stroke, a ring."""
        if fill is not None:
            self.parts.append(
                f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" {_paint("fill", fill)}/>'
            )
        if stroke is not None:
            self.parts.append(
                f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" fill="none" '
                f'stroke-width="2" {_paint("stroke", stroke)}/>'
            )

    def hatch(self, x: float, y: float, width: float, height: float) -> None:
        """A blocked cell: soft ground with slanted lines, the same in every figure."""
        self.rect(x, y, width, height, "soft", "line")
        step = 8
        lines = []
        for shift in range(step, int(width + height), step):
            start = (x + max(0, shift - height), y + min(shift, height))
            end = (x + min(shift, width), y + max(0, shift - width))
            lines.append(f"M{start[0]:g} {start[1]:g}L{end[0]:g} {end[1]:g}")
        self.parts.append(
            f'<path d="{"".join(lines)}" fill="none" stroke-width="1" '
            f"{_paint('stroke', 'line')}/>"
        )

    def cell(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        value: float | None,
        digits: int = 3,
        size: float = 14,
        shade: bool = True,
    ) -> None:
        """One entry of a matrix: None is blocked; shaded entries lie in [0, 1]."""
        if value is None:
            self.hatch(x, y, width, height)
            return
        ground = cividis(value) if shade else "paper"
        self.rect(x, y, width, height, ground, None if shade else "line")
        ink = ink_on(ground) if shade else "ink"
        if digits >= 0:
            words = fmt(value, digits)
            self.text(
                x + width / 2, y + height / 2 + size * 0.35, words, size, ink, "middle"
            )

    def matrix(
        self,
        x: float,
        y: float,
        values: Sequence[Sequence[float | None]],
        width: float = 56,
        height: float = 34,
        rows: Sequence[str] = (),
        cols: Sequence[str] = (),
        digits: int = 3,
        size: float = 14,
        shade: bool = True,
        row_colour: str = "q",
        col_colour: str = "k",
    ) -> None:
        """A matrix with its top left cell at (x, y); names stand left of and above it.

        Rows are queries and columns keys wherever both appear. `digits=-1` draws the
        shade alone.
        """
        gap = 2
        for j, word in enumerate(cols):
            centre = x + j * (width + gap) + width / 2
            self.text(centre, y - 8, word, size, col_colour, "middle", 600)
        for i, row in enumerate(values):
            top = y + i * (height + gap)
            if rows:
                self.text(
                    x - 10,
                    top + height / 2 + size * 0.35,
                    rows[i],
                    size,
                    row_colour,
                    "end",
                    600,
                )
            for j, value in enumerate(row):
                self.cell(
                    x + j * (width + gap),
                    top,
                    width,
                    height,
                    value,
                    digits,
                    size,
                    shade,
                )

    def bars(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        values: Sequence[float],
        top: float = 1.0,
        colour: str = "accent",
        gap: float = 3,
    ) -> None:
        """Upright bars in the box with top left corner (x, y); `top` is full height."""
        step = width / len(values)
        for i, value in enumerate(values):
            tall = max(0.0, min(1.0, value / top)) * height
            self.rect(
                round(x + i * step + gap / 2, 2),
                round(y + height - tall, 2),
                round(step - gap, 2),
                round(tall, 2),
                colour,
                radius=1.5,
            )
        self.line(x, y + height, x + width, y + height, "muted")

    def svg(self) -> str:
        """The finished picture, with its description as accessible name."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'aria-label="{html.escape(self.alt)}" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" '
            f'font-family="{FONT}">{"".join(self.parts)}</svg>'
        )
