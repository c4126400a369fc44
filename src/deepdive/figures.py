# SPDX-License-Identifier: MIT
"""How do the book's figures look? One style, as SVG that follows the page's theme.

Matplotlib draws with the light theme's colours; each of them is then replaced by a CSS
variable, so that one stored figure reads well on light and on dark pages and in print.
"""

import html
import io
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as MplFigure
from matplotlib.text import Text

from deepdive.palette import CIVIDIS, COLOURS, FONT, cividis, fmt, ink_on

# White is left alone: it is the ink of dark cells, not the colour of the page.
THEMED = {
    name: COLOURS[name] for name in ("q", "k", "v", "ink", "muted", "line", "soft")
}
RAMP = LinearSegmentedColormap.from_list("dd-weights", [f"#{c}" for c in CIVIDIS])
RC = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.titlecolor": COLOURS["ink"],
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "axes.grid": False,
    "grid.color": COLOURS["line"],
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",  # text stays text: searchable, and in the page's own font
}


@dataclass(frozen=True)
class Figure:
    """An SVG with its alternative text and caption, shown inline on page and in Lab."""

    svg: str
    alt: str
    caption: str

    def __post_init__(self):
        if not self.alt.strip() or not self.caption.strip():
            raise ValueError("a figure needs an alternative text and a caption")

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        label = html.escape(self.alt, quote=True)
        svg = self.svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        return {
            "text/html": f'<figure class="dd-figure">{svg}'
            f"<figcaption>{self.caption}</figcaption></figure>",
            "image/svg+xml": self.svg,
            "text/plain": f"Figure: {self.alt}",
        }


def subplots(width: float = 6.4, height: float = 3.0, **kwargs):
    """`plt.subplots` in the book's style; sizes in inches, 6.4 is the page's width."""
    with mpl.rc_context(RC):
        return plt.subplots(figsize=(width, height), **kwargs)


def finish(fig: MplFigure, alt: str, caption: str) -> Figure:
    """Turn a matplotlib figure into one of the book's, and close it.

    Args:
        alt: kind of figure, what is measured, the trend; at most two sentences.
        caption: what the figure shows; HTML such as <em> is allowed.
    """
    for text in fig.findobj(Text):
        colour = text.get_color()  # a name, or numbers
        if isinstance(colour, str) and colour == mpl.rcParamsDefault["text.color"]:
            text.set_color(COLOURS["ink"])
    buffer = io.StringIO()
    salt = "dd" + str(sum(alt.encode()) % 99991)  # ids differ between figures of a page
    with mpl.rc_context(RC | {"svg.hashsalt": salt, "svg.id": None}):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(fig)
    return Figure(theme(buffer.getvalue()), alt, caption)


def theme(svg: str) -> str:
    """Drop the XML preamble, name the page's font, and let CSS choose the colours."""
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    # Matplotlib's own <style> would speak to the whole page: say it on the root.
    svg = re.sub(r"\s*<style.*?</style>", "", svg, flags=re.S)
    svg = svg.replace("<svg ", '<svg stroke-linejoin="round" stroke-linecap="butt" ', 1)
    svg = re.sub(r"font: ([^;\"']*?px)[^;\"]*", rf"font: \1 {FONT}", svg)
    for name, colour in THEMED.items():
        svg = svg.replace(f": {colour}", f": var(--dd-{name}, {colour})")
    used = set(
        re.findall(r"#([\w.-]+)[\")]", svg)
    )  # of all the ids, few are referred to
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d{2})\d+", r"\1", tag[0]), svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def heatmap(ax, weights, rows, columns, title: str = "", digits: int = 3) -> None:
    """Draw attention weights: a row for each query, a column for each key.

    Args:
        weights: (T, S) numbers between 0 and 1.
        digits: decimals printed in each cell; 0 prints none.

    Raises:
        ValueError: the words do not fit the matrix, or it is not a matrix.
    """
    if hasattr(weights, "detach"):  # a tensor, perhaps of a layer that is trained
        weights = weights.detach().cpu().double()
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (len(rows), len(columns)):
        raise ValueError(
            f"weights {weights.shape} do not fit {len(rows)} × {len(columns)} words; "
            f"give one head of one batch entry at a time"
        )
    ax.pcolormesh(weights, cmap=RAMP, vmin=0, vmax=1, edgecolors="none")
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(title=title, xlabel="key", ylabel="query")
    for (i, j), weight in np.ndenumerate(weights) if digits else ():
        ink, text = ink_on(cividis(weight)), fmt(weight, digits)
        ax.text(j + 0.5, i + 0.5, text, color=ink, ha="center", va="center")


def diagram(name: str, alt: str, caption: str) -> Figure:
    """One of the book's drawn diagrams, from `deepdive/diagrams/<name>.svg`.

    Raises:
        ValueError: there is no such diagram.
    """
    folder = Path(__file__).parent / "diagrams"
    names = sorted(path.stem for path in folder.glob("*.svg"))
    if name not in names:
        raise ValueError(f"no diagram {name!r}; there are {', '.join(names)}")
    return Figure((folder / f"{name}.svg").read_text(encoding="utf-8"), alt, caption)
