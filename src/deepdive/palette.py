# SPDX-License-Identifier: MIT
"""Which colour means what? One palette for text, figures and widgets.

The site defines the same colours as CSS variables, `--dd-q` and so on, once for light
and once for dark pages; the values here are the light ones.
"""

import math
from decimal import ROUND_HALF_UP, Decimal

COLOURS = {
    "q": "#0067a5",
    "k": "#b34a00",
    "v": "#00734f",
    "ink": "#1f2328",
    "muted": "#57606a",
    "line": "#c9d1d9",
    "paper": "#ffffff",
    "soft": "#f4f6f8",
    "accent": "#0067a5",
    "focus": "#0067a5",
}

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"

# Seventeen stops of the cividis map (Nuñez, Anderton and Renslow 2018); straight lines
# between them stay within 11/255 of it. `common.js` has the same list.
# fmt: off
CIVIDIS = [
    "00224e", "002e6a", "1a386f", "32436d", "434e6c", "535a6d",
    "61656f", "6f7073", "7d7c78", "8b8778", "9a9376", "aaa073",
    "bbad6d", "ccba64", "ddc858", "efd748", "fee838",
]
# fmt: on

# Signed numbers: blue below zero, grey at it, orange above; straight lines in Oklab
# (Ottosson 2020) between the three. Lightness rises all the way, so that the order
# survives a grey print and every kind of colour vision.
# fmt: off
DIVERGING = [
    "0b4f9c", "325f9a", "4f6e96", "6a7b92", "85888c",
    "a39381", "c29c72", "e0a65f", "ffae42",
]
# fmt: on


def fmt(value: float, digits: int = 3) -> str:
    """Write a number as the page does: true minus sign, never "−0.000".

    >>> fmt(-0.0001), fmt(-1.25, 1), fmt(float("-inf"))
    ('0.000', '−1.3', '−∞')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    step = Decimal(1).scaleb(-digits)
    text = str(abs(Decimal(value)).quantize(step, rounding=ROUND_HALF_UP))
    return ("−" if value < 0 and float(text) != 0 else "") + text


def cividis(x: float) -> str:
    """Colour of a weight between 0 and 1, as #rrggbb."""
    return _mix(CIVIDIS, min(max(float(x), 0.0), 1.0))


def diverging(x: float) -> str:
    """Colour of a number between −1 and 1, as #rrggbb; zero is grey.

    >>> diverging(-1), diverging(0), diverging(1)
    ('#0b4f9c', '#85888c', '#ffae42')
    """
    return _mix(DIVERGING, (min(max(float(x), -1.0), 1.0) + 1) / 2)


def _mix(stops: list[str], x: float) -> str:
    """The colour at x of [0, 1] on straight lines between the stops."""
    place = x * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    part = place - low
    mixed = (
        math.floor(
            int(stops[low][i : i + 2], 16) * (1 - part)
            + int(stops[low + 1][i : i + 2], 16) * part
            + 0.5
        )
        for i in (0, 2, 4)
    )
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""

    def linear(channel: float) -> float:
        return (
            channel / 12.92
            if channel <= 0.04045
            else ((channel + 0.055) / 1.055) ** 2.4
        )

    red, green, blue = (linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on the colour (always ≥ 4.5:1)."""
    light = luminance(colour)
    return "#000000" if (light + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"
