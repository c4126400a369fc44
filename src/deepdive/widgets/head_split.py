# SPDX-License-Identifier: MIT
"""What do more heads cost? Columns are cut into h bands, or grow with every band.

Vaswani et al. 2017, §3.2.2, chose d_head = d_model / h, so that the number of heads
does not change the number of parameters. Models that fix d_head pay for each head.
"""

from typing import Any, ClassVar

from deepdive.accounting import head_cost
from deepdive.widgets.base import Widget
from deepdive.widgets.svg import Drawing

WORDS = 100  # words N, where an example names no length of its own

PRESETS = (
    {
        "name": "“cats chase mice”",
        "d_model": 4,
        "n_heads": 2,
        "head_dim": 2,
        "seq_len": 3,
        "note": "The two heads of this book’s example.",
    },
    {
        "name": "The 2017 paper",
        "d_model": 512,
        "n_heads": 8,
        "head_dim": 64,
        "seq_len": WORDS,
        "note": "Base model of Vaswani et al. 2017, Table 3.",
    },
    {
        "name": "T5-11B",
        "d_model": 1024,
        "n_heads": 128,
        "head_dim": 128,
        "seq_len": WORDS,
        "note": "The heads together are 16 times as wide as the model.",
    },
    {
        "name": "Gemma-7B",
        "d_model": 3072,
        "n_heads": 16,
        "head_dim": 256,
        "seq_len": WORDS,
        "note": "Each head is a third wider than d / h = 192.",
    },
    {
        "name": "DeepSeek-V2",
        "d_model": 5120,
        "n_heads": 128,
        "head_dim": 128,
        "seq_len": WORDS,
        "note": (
            "Counted is a plain layer with heads as wide as DeepSeek-V2’s v, 128. "
            "There q and k are 192 wide (128 + 64 for rotary positions), and latent "
            "attention (MLA) projects through narrow latents: this counts the "
            "128-wide value side only, and the parameters are not DeepSeek-V2’s."
        ),
    },
)
START = 1  # the paper's eight heads


def count(n: int) -> str:
    """A whole number as the page writes it, with narrow spaces between thousands.

    >>> count(1048576).replace("\\u202f", " ")
    '1 048 576'
    """
    return f"{n:,}".replace(",", "\u202f")


class HeadSplit(Widget):
    """Cut columns into heads, and watch parameters and score entries.

    Args:
        d_model: columns of the layer's input.
        n_heads: heads at the start.
        head_dim: columns of one head; None for d_model / n_heads.
        seq_len: words N, for the score entries; None for what the example has, or 100.
        count_o: whether W_O is counted at the start.
        name: the slug that keeps two such figures on one page apart.

    Numbers that are none of `PRESETS` become one more example, before the others.

    Raises:
        TypeError, ValueError: as `head_cost`.

    Taught in: book/03_multi_head.ipynb
    """

    label: ClassVar[str] = "Cutting columns into heads"
    height: ClassVar[int] = 720
    height_narrow: ClassVar[int] = 1360

    def __init__(
        self,
        d_model: int = PRESETS[START]["d_model"],
        n_heads: int = PRESETS[START]["n_heads"],
        head_dim: int | None = None,
        seq_len: int | None = None,
        count_o: bool = True,
        name: str = "head-split",
        **kwargs: Any,
    ) -> None:
        cost = head_cost(
            d_model, n_heads, head_dim, WORDS if seq_len is None else seq_len, count_o
        )
        shape = {key: cost[key] for key in ("d_model", "n_heads", "head_dim")}
        presets = [dict(preset) for preset in PRESETS]
        known = [i for i, p in enumerate(presets) if shape.items() <= p.items()]
        if not known:
            own = {
                "name": "Your numbers",
                **shape,
                "seq_len": cost["seq_len"],
                "note": "",
            }
            presets.insert(0, own)
        preset = known[0] if known else 0
        self._presets = presets
        if seq_len is None:
            seq_len = presets[preset]["seq_len"]
        self._cost = head_cost(d_model, n_heads, cost["head_dim"], seq_len, count_o)
        start = {
            "preset": preset,
            "n_heads": n_heads,
            "rule": "split" if cost["width"] == d_model else "fixed",
            "head_dim": cost["head_dim"],
            "count_o": count_o,
            "seq_len": seq_len,
        }
        super().__init__(
            data={"presets": presets},
            start=start,
            name=name,
            alt=_describe(self._cost),
            caption=(
                "One attention layer, without biases. Q, K and V are cut into h heads; "
                "each head makes its own N × N map of scores."
            ),
            **kwargs,
        )

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Refuse a state that cannot be counted."""
        if state["preset"] not in range(len(self._presets)):
            last = len(self._presets) - 1
            raise ValueError(f"preset must be 0 … {last}, got {state['preset']!r}")
        if state["rule"] not in ("split", "fixed"):
            raise ValueError(f"rule must be 'split' or 'fixed', got {state['rule']!r}")
        self._count(state)
        return state

    @property
    def result(self) -> dict[str, Any]:
        """`head_cost` of what the reader has chosen."""
        return self._count(self.state)

    def _count(self, state: dict[str, Any]) -> dict[str, Any]:
        dim = None if state["rule"] == "split" else state["head_dim"]
        d_model = self._presets[state["preset"]]["d_model"]
        return head_cost(
            d_model, state["n_heads"], dim, state["seq_len"], state["count_o"]
        )

    def frame(self) -> str:
        """The bands with their numbers, and both counters with a small curve."""
        page = Drawing(720, 476, self.alt)
        _draw_bands(page, self._cost)
        _draw_counters(page, self._cost)
        return page.svg()


def _describe(cost: dict[str, Any]) -> str:
    """Alternative text: what is drawn, and how the two costs move with h."""
    n, dim, d = cost["n_heads"], cost["head_dim"], cost["d_model"]
    heads = f"{n} head" if n == 1 else f"{n} heads"
    return (
        f"Blocks of Q, K and V, {d} input columns in {heads} of {dim}: "
        f"{cost['parameters']:,} parameters and {cost['score_entries']:,} score "
        f"entries for {cost['seq_len']} words. With head width d / h the parameters "
        "stay flat as heads are added, with a fixed head width they grow, and score "
        "entries always grow."
    )


# ---- The first frame -------------------------------------------------------------


def _draw_bands(page: Drawing, cost: dict[str, Any]) -> None:
    """x, then Q, K, V cut into heads, then W_O; each with its count of parameters."""
    left, right = 62, 474
    unit = (right - left) / max(cost["width"], cost["d_model"])
    page.text(left, 22, _headline(cost), 15, "ink", weight=600)
    rows = (
        ("x", "ink", ""),
        ("Q", "q", "q"),
        ("K", "k", "k"),
        ("V", "v", "v"),
        ("O", "ink", "o"),
    )
    for i, (letter, role, key) in enumerate(rows):
        y = 38 + i * 44
        if not key:
            page.text(16, y + 22, "x", 15, role, weight=600)
            page.rect(left, y, cost["d_model"] * unit, 34, "soft", "ink")
            page.text(
                704, y + 22, f"{count(cost['d_model'])} columns", 15, "muted", "end"
            )
            continue
        page.text(16, y + 22, "W", 15, role, weight=600)
        page.text(31, y + 26, letter, 12, role, weight=600)
        _draw_heads(page, left, y, cost["n_heads"], cost["width"] * unit, role)
        sizes = (cost["d_model"], cost["width"])
        rows_, columns = sizes[::-1] if key == "o" else sizes
        amount = f"{count(rows_)} × {count(columns)} = {count(cost[key])}"
        page.text(704, y + 22, amount if cost[key] else "not counted", 15, "ink", "end")


def _draw_heads(
    page: Drawing, left: float, y: float, n: int, width: float, role: str
) -> None:
    """One block cut into n bands, every other one darker, numbered if they fit."""
    wide = width / n
    gap = 2 if wide >= 6 else 0
    for band in range(n):
        x = round(left + band * wide + gap / 2, 2)
        page.parts.append(f'<g fill-opacity="{0.38 if band % 2 else 0.17}">')
        page.rect(
            x, y, round(wide - gap, 2), 34, role, role if gap else None, 3 if gap else 0
        )
        page.parts.append("</g>")
        if wide >= 22:
            page.text(
                round(x + (wide - gap) / 2, 2),
                y + 22,
                str(band + 1),
                15,
                "ink",
                "middle",
            )
    if not gap:
        page.rect(left, y, width, 34, None, role, 0)


def _headline(cost: dict[str, Any]) -> str:
    """How wide the heads are together."""
    n, ratio = cost["n_heads"], cost["ratio"]
    wide = (
        "the model’s width"
        if ratio == 1
        else f"{times(ratio)} the model’s {count(cost['d_model'])}"
    )
    heads = f"{count(n)} head{'s' * (n > 1)}"
    return (
        f"{heads} × {count(cost['head_dim'])} columns = {count(cost['width'])}: {wide}"
    )


def _draw_counters(page: Drawing, cost: dict[str, Any]) -> None:
    """Two large numbers, each over its curve against the number of heads."""
    d, n, dim, N = (cost[key] for key in ("d_model", "n_heads", "head_dim", "seq_len"))
    last = max(2, n, min(d, max(4 * n, 8)))
    matrices = cost["parameters"] // cost["q"]
    cut = cost["width"] == d
    fixed = (
        f"width {count(dim)}",
        matrices * d * dim,
        matrices * d * dim * last,
        not cut,
    )
    split = ("width d / h", matrices * d * d, matrices * d * d, cut)
    entries = ("", N * N, last * N * N, True)
    _draw_curves(page, 16, "Parameters", cost["parameters"], [fixed, split], n, last)
    _draw_curves(page, 376, "Score entries", cost["score_entries"], [entries], n, last)


def _draw_curves(
    page: Drawing, x: float, title: str, now: int,
    lines: list[tuple[str, int, int, bool]], n: int, last: int,
) -> None:  # fmt: skip
    """Straight lines from one head to `last` heads, with the current point ringed."""
    foot, tall, wide = 446, 118, 320
    top = max(line[2] for line in lines)
    page.text(x, 292, title, 15, "muted")
    page.text(x, 318, count(now), 22, "ink", weight=700)
    for name, first, end, on in lines:
        y1, y2 = (foot - value / top * tall for value in (first, end))
        colour, weight = ("ink", 600) if on else ("muted", 400)
        page.path(
            [(x, y1), (x + wide, y2)], colour, 3 if on else 2, "" if on else "5 4"
        )
        if first == end:
            page.text(
                x + wide,
                y2 + (18 if end > 0.8 * top else -8),
                name,
                14,
                colour,
                "end",
                weight,
            )
        elif name:
            page.text(
                x + wide * 0.68,
                foot - (foot - y2) * 0.72,
                name,
                14,
                colour,
                "end",
                weight,
            )
    page.line(x, foot, x + wide, foot, "muted")
    page.text(x, foot + 20, "1 head", 14, "muted")
    page.text(x + wide, foot + 20, f"{count(last)} heads", 14, "muted", "end")
    page.circle(
        x + (n - 1) / (last - 1) * wide, foot - now / top * tall, 7, None, "accent"
    )


def times(ratio: float) -> str:
    """A ratio as the page writes it: 16×, 1.33×."""
    return f"{ratio:.2f}".rstrip("0").rstrip(".") + "×"
