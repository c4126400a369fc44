# SPDX-License-Identifier: MIT
"""What happens to three words on their way through attention, number by number?

The steps of Vaswani et al. 2017, §3.2, on matrices small enough to follow with a
pencil. Python computes the example (`deepdive.trace`), the page recomputes what the
reader edits, and Python can read the edited example back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import exp
from typing import Any, ClassVar

import torch

from deepdive import trace
from deepdive.masks import Causal
from deepdive.widgets.base import Widget
from deepdive.widgets.svg import Drawing, cividis, fmt, ink_on

LARGEST = 8  # words, and columns: beyond that the printed numbers are no longer read
LIMIT = 100.0  # an edited entry lies in [−100, 100]
MATRICES = ("X", "W_Q", "W_K", "W_V", "W_O")
STEPS = (
    "overview",
    "X",
    "Q",
    "K",
    "V",
    "raw_scores",
    "scaled_scores",
    "weights",
    "head_outputs",
    "output",
)
SHARES = ("halves", "thirds", "quarters", "fifths", "sixths", "sevenths", "eighths")


def exact_ties(example: trace.Example, n_heads: int = 1, causal: bool = False) -> list:
    """Find the keys between which a query cannot decide: exactly equal scores.

    Each entry is read as the decimal that it prints as and multiplied as a fraction, so
    rounding neither makes a tie nor hides one.

    Shapes:
        → n_heads × T pairs (groups, zero): `groups` lists the tied columns, `zero` says
        that the query itself is zero

    >>> exact_ties(trace.CATS)[0][1]
    ([[0, 2]], False)
    """
    X, W_Q, W_K = (_fractions(getattr(example, name)) for name in MATRICES[:3])
    Q, K = _product(X, W_Q), _product(X, W_K)
    width = len(Q[0]) // n_heads
    found = []
    for h in range(n_heads):
        part = slice(h * width, (h + 1) * width)
        rows = []
        for i, query in enumerate(Q):
            seen: dict[Fraction, list[int]] = {}
            for j, key in enumerate(K[: i + 1] if causal else K):
                score = sum(a * b for a, b in zip(query[part], key[part], strict=True))
                seen.setdefault(score, []).append(j)
            groups = [columns for columns in seen.values() if len(columns) > 1]
            rows.append((groups, not any(query[part])))
        found.append(rows)
    return found


def _fractions(matrix: torch.Tensor) -> list[list[Fraction]]:
    """The entries as the decimals that they print as."""
    return [[Fraction(repr(x)) for x in row] for row in matrix.tolist()]


def _product(a: list[list[Fraction]], b: list[list[Fraction]]) -> list[list[Fraction]]:
    """The matrix product of lists of rows."""
    return [
        [
            sum(x * y for x, y in zip(row, column, strict=True))
            for column in zip(*b, strict=True)
        ]
        for row in a
    ]


class AttentionTrace(Widget):
    """Step through attention on a few words: X → Q, K, V → scores → weights → output.

    Args:
        example: words and matrices, at most 8 words and 8 columns.
        n_heads: the number of heads at the start; one and two can be switched between.
        editable: whether the reader may change the entries of X and of the weights.
        name: the slug that keeps two such figures on one page apart.

    Raises:
        TypeError: `example` is no `deepdive.trace.Example`.
        ValueError: too many words or columns, an entry that is no finite number, or
            heads that do not divide the width.

    Taught in: book/02_attention.ipynb, book/03_multi_head.ipynb
    """

    label: ClassVar[str] = "Attention, step by step"
    height: ClassVar[int] = 780
    height_narrow: ClassVar[int] = 1470

    def __init__(
        self,
        example: trace.Example = trace.CATS,
        n_heads: int = 1,
        editable: bool = True,
        name: str = "attention-trace",
        **kwargs: Any,
    ) -> None:
        _check(example, n_heads)
        self.example = example
        width = example.X.shape[-1]
        even = {2} if width % 2 == 0 else set()
        self._counts = sorted({1, n_heads} | even)
        traces = {
            str(n): trace.to_json(trace.attention(example, n)) for n in self._counts
        }
        for result in traces.values():
            result["words"] = list(example.words)
        self._heads = n_heads
        start = {
            "step": 0,
            "heads": n_heads,
            "pick": "",
            "edits": {},
            "reversed": False,
            "causal": False,
        }
        if n_heads > 1:  # one more row of matrices, or two where they stack
            self.height, self.height_narrow = 828, 2080
        super().__init__(
            data={"heads": self._counts, "traces": traces, "editable": editable},
            start=start,
            name=name,
            alt=_describe(example, n_heads),
            caption=(
                "Attention on “"
                + " ".join(example.words)
                + "”. The numbers are chosen "
                "by hand: they show how the calculation goes, not what a trained model "
                "does. Printed to 3 decimals, computed in full."
            ),
            **kwargs,
        )

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Refuse a state that the figure could not draw."""
        if state["step"] not in range(len(STEPS)):
            raise ValueError(
                f"step must be 0 … {len(STEPS) - 1}, got {state['step']!r}"
            )
        if state["heads"] not in self._counts:
            raise ValueError(
                f"heads must be one of {self._counts}, got {state['heads']!r}"
            )
        self._edited(state["edits"])
        return state

    @property
    def edited(self) -> trace.Example:
        """The example with the reader's entries, in the reader's order of words."""
        example = self._edited(self.state["edits"])
        if self.state["reversed"]:
            example = example.reorder(list(range(len(example.words)))[::-1])
        return example

    @property
    def result(self) -> dict:
        """Every matrix of what the reader sees, computed by `deepdive.trace`."""
        mask = Causal() if self.state["causal"] else None
        return trace.attention(self.edited, self.state["heads"], mask=mask)

    def _edited(self, edits: Mapping[str, float]) -> trace.Example:
        """The example with single entries replaced; keys such as "W_Q.2.0"."""
        changed = {name: getattr(self.example, name).clone() for name in MATRICES}
        for key, value in edits.items():
            name, *place = key.split(".")
            rows, columns = changed[name].shape if name in changed else (0, 0)
            inside = len(place) == 2 and all(p.isdecimal() for p in place)
            if not inside or int(place[0]) >= rows or int(place[1]) >= columns:
                raise ValueError(f"{key!r} names no entry; expected such as 'W_Q.2.0'")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not abs(value) <= LIMIT:
                raise ValueError(f"{key} must be a number of −100 … 100, got {value!r}")
            changed[name][int(place[0]), int(place[1])] = value
        return replace(self.example, **changed)

    def frame(self) -> str:
        """Scores, weights, values and outputs with their numbers; ties are marked."""
        example, n_heads = self.example, self._heads
        result = trace.to_json(trace.attention(example, n_heads))
        ties = exact_ties(example, n_heads)
        draw = _one_head if n_heads == 1 else _many_heads
        return draw(result, ties, self.alt).svg()


def _check(example: trace.Example, n_heads: int) -> None:
    """Everything that the figure needs of its input, with the numbers at fault."""
    if not isinstance(example, trace.Example):
        raise TypeError(
            f"example must be a deepdive.trace.Example, got {type(example).__name__}"
        )
    T, width = example.X.shape
    if not (1 <= T <= LARGEST and 1 <= width <= LARGEST):
        raise ValueError(
            f"the figure prints up to {LARGEST} words and {LARGEST} columns, "
            f"got {T} words of {width} columns"
        )
    for name in MATRICES:
        for i, row in enumerate(getattr(example, name).tolist()):
            for j, x in enumerate(row):
                if not abs(x) <= LIMIT:  # NaN fails every comparison
                    raise ValueError(
                        f"{name}[{i}, {j}] must be a number of −100 … 100, got {x}"
                    )
    if isinstance(n_heads, bool) or not isinstance(n_heads, int):
        raise TypeError(f"n_heads must be an int, got {n_heads!r}")
    if n_heads < 1 or width % n_heads:
        raise ValueError(f"width {width} cannot be cut into {n_heads} heads")


def _describe(example: trace.Example, n_heads: int) -> str:
    """Alternative text: the kind of picture, and where each word looks most."""
    weights = trace.attention(example, n_heads)["weights"][0]
    rows = []
    for i, (groups, _) in enumerate(exact_ties(example, n_heads)[0]):
        top = int(weights[i].argmax())
        best = next((group for group in groups if top in group), [top])
        each = " each" if len(best) > 1 else ""
        rows.append(
            f"{example.words[i]} most to {_join(example.words[j] for j in best)} "
            f"({fmt(float(weights[i, top]))}{each})"
        )
    heads = "one head" if n_heads == 1 else f"{n_heads} heads"
    return (
        f"Matrices of attention with {heads}: scores, weights and outputs for "
        f"“{' '.join(example.words)}”. Weights{'' if n_heads == 1 else ' of head 1'}: "
        f"{', '.join(rows)}."
    )


def _join(words: Iterable[str]) -> str:
    """“a”, “a and b”, “a, b and c”."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _short(x: float, digits: int = 3) -> str:
    """Up to so many decimals, without zeros at the end."""
    text = fmt(x, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def notices(result: Mapping[str, Any], ties: list) -> list[str]:
    """One sentence for each exact tie and each zero query.

    >>> notices(trace.to_json(trace.attention()), exact_ties(trace.CATS))
    ['exact tie: chase gives cats and mice 0.384 each']
    """
    words, said = result["words"], []
    for h, rows in enumerate(ties):
        where = "" if len(ties) == 1 else f"head {h + 1}, "
        for i, (groups, zero) in enumerate(rows):
            if zero and groups:
                share = SHARES[len(groups[0]) - 2]
                said.append(f"{where}zero query: {words[i]} gives even {share}")
                continue
            said += [
                f"{where}exact tie: {words[i]} gives {_join(words[j] for j in group)} "
                f"{fmt(result['weights'][h][i][group[0]])} each"
                for group in groups
            ]
    return said


def enough(least: int, same: Callable[[int], bool]) -> int:
    """The fewest digits, from `least` on, with which a printed sum can be redone."""
    return next((n for n in range(least, 9) if same(n)), 9)


def weight_in_full(result: Mapping[str, Any], head: int, i: int, j: int) -> str:
    """The calculation of one weight, as the page writes it under its title.

    >>> weight_in_full(trace.to_json(trace.attention()), 0, 1, 0)
    'e^1 / (e^1 + e^0.5 + e^1) = 2.718 / 7.085 = 0.384'
    """
    scores = result["scaled_scores"][head][i]
    value = result["weights"][head][i][j]
    mine, total = exp(scores[j]), sum(map(exp, scores))
    legible = total < 1e6 and mine >= 0.0005
    places = enough(
        3, lambda n: fmt(round(mine, n) / round(total, n) if total else 0) == fmt(value)
    )
    digits = 4
    if legible:
        digits = enough(
            4,
            lambda n: (
                _short(exp(round(scores[j], n)), places) == _short(mine, places)
                and _short(sum(exp(round(x, n)) for x in scores), places)
                == _short(total, places)
            ),
        )
    powers = [f"e^{_short(x, digits)}" for x in scores]
    middle = f" = {_short(mine, places)} / {_short(total, places)}" if legible else ""
    return f"{powers[j]} / ({' + '.join(powers)}){middle} = {fmt(value)}"


# ---- The first frame -------------------------------------------------------------


class _Page(Drawing):
    """A drawing that knows how this figure sets a matrix."""

    tall, gap, size = 34, 2, 15

    def titled(
        self,
        x: float,
        y: float,
        title: str,
        values: list[list[float]],
        cell: float,
        rows: Sequence[str] = (),
        cols: Sequence[str] = (),
        ties: Sequence[tuple[list[list[int]], bool]] | None = None,
        short: bool = False,
        role: str = "ink",
        row_colour: str = "q",
        col_colour: str = "k",
    ) -> float:
        """One matrix, shaded where ties are given; returns its right edge."""
        step = cell + self.gap
        right = x + len(values[0]) * step - self.gap
        self.width = max(self.width, right + 16)
        self.text((x + right) / 2, y - 32, title, self.size, role, "middle", 600)
        for j, word in enumerate(cols):
            self.text(x + j * step + cell / 2, y - 9, word, 14, col_colour, "middle")
        for i, row in enumerate(values):
            top = y + i * (self.tall + self.gap)
            if rows:
                self.text(x - 10, top + 22, rows[i], self.size, row_colour, "end", 600)
            for j, value in enumerate(row):
                ground = "paper" if ties is None else cividis(value)
                ink = "ink" if ties is None else ink_on(ground)
                border = "line" if ties is None else None
                left = x + j * step
                self.rect(left, top, cell, self.tall, ground, border)
                words = _short(value) if short else fmt(value)
                self.text(left + cell / 2, top + 22, words, self.size, ink, "middle")
        for i, (groups, _) in enumerate(ties or ()):
            for j in (j for group in groups for j in group):
                self.badge(x + j * step + cell - 3, y + i * (self.tall + self.gap) + 3)
        return right

    def pick(self, x: float, y: float, rows: int, cell: float) -> None:
        """A ring around the weight whose sum is written out below: row 2, column 1."""
        top = y + min(1, rows - 1) * (self.tall + self.gap)
        self.rect(x - 1, top - 1, cell + 2, self.tall + 2, None, "ink", 3, 3)

    def badge(self, x: float, y: float) -> None:
        """The sign of an exact tie; a shape, so that it needs no colour."""
        self.circle(x, y, 8, "paper", "ink")
        self.text(x, y + 4.5, "=", 13, "ink", "middle", 700)

    def arrow(self, x1: float, x2: float, y: float, *words: str) -> None:
        """From one matrix to the next, with what is done above the line."""
        for up, line in enumerate(reversed(words)):
            self.text((x1 + x2) / 2, y - 8 - 17 * up, line, 14, "muted", "middle")
        self.path([(x1, y), (x2, y)], "muted", 1.5)
        self.path([(x2 - 6, y - 5), (x2, y), (x2 - 6, y + 5)], "muted", 1.5)

    def height_of(self, rows: int) -> float:
        """What a matrix of so many rows takes."""
        return rows * (self.tall + self.gap)


def _one_head(result: dict, ties: list, alt: str) -> Drawing:
    """Scores → weights above, values → outputs below."""
    words, width = result["words"], len(result["Q"][0])
    rows, names = len(words), [str(j + 1) for j in range(width)]
    page, y = _Page(0, 0, alt), 58
    left, tall = 20 + 9 * max(map(len, words)), page.height_of(rows)
    raw, weights = result["raw_scores"][0], result["weights"][0]
    right = page.titled(
        left, y, "raw scores: query · key", raw, 58, words, words, short=True
    )
    start = right + 104
    page.arrow(right + 12, start - 10, y + tall / 2, f"÷ √{width}", "softmax")
    right = page.titled(start, y, "weights", weights, 64, (), words, ties[0])
    page.pick(start, y, rows, 64)
    for i in range(rows):
        page.text(right + 16, y + i * 36 + 22, "sum 1", 14, "muted")
    page.width = max(page.width, right + 70)
    y += tall + 68
    right = page.titled(
        left, y, "values V", result["V"], 42, words, names,
        short=True, role="v", row_colour="k", col_colour="muted",
    )  # fmt: skip
    start = right + 108 + left - 20
    page.arrow(right + 12, right + 84, y + tall / 2, "weights", "mix rows")
    mixed = result["head_outputs"][0]
    page.titled(start, y, "output", mixed, 58, words, names, col_colour="muted")
    return _finish(page, y + tall, result, ties)


def _many_heads(result: dict, ties: list, alt: str) -> Drawing:
    """One line for each head, and below them the joined output."""
    words, n_heads = result["words"], result["n_heads"]
    width, rows = len(result["Q"][0]), len(words)
    part, names = width // n_heads, [str(j + 1) for j in range(width)]
    page, y = _Page(0, 0, alt), 58
    left, tall = 20 + 9 * max(map(len, words)), page.height_of(rows)
    for h in range(n_heads):
        raw, mixed = result["raw_scores"][h], result["head_outputs"][h]
        title = f"head {h + 1}: raw scores"
        right = page.titled(left, y, title, raw, 50, words, words, short=True)
        start = right + 88
        page.arrow(right + 10, start - 8, y + tall / 2, f"÷ √{part}", "softmax")
        right = page.titled(
            start, y, "weights", result["weights"][h], 62, (), words, ties[h]
        )
        if h == 0:
            page.pick(start, y, rows, 62)
        start = right + 74
        page.arrow(right + 16, start - 8, y + tall / 2, f"· V{'₁₂₃₄₅₆₇₈'[h]}")
        own = names[h * part : (h + 1) * part]
        page.titled(start, y, f"output {h + 1}", mixed, 58, (), own, col_colour="muted")
        y += tall + 68
    title = "result: outputs side by side, times Wₒ"
    page.titled(left, y, title, result["output"], 76, words, names, col_colour="muted")
    return _finish(page, y + tall, result, ties)


def _finish(page: _Page, y: float, result: dict, ties: list) -> Drawing:
    """The ringed weight in full, the sentences, and the height that came out."""
    words, head = result["words"], "" if len(ties) == 1 else "head 1, "
    i = min(1, len(words) - 1)
    y += 32
    page.text(
        16, y, f"{head}{words[i]} to {words[0]}: {weight_in_full(result, 0, i, 0)}", 15
    )
    for line in notices(result, ties):
        y += 28
        page.badge(24, y - 5)
        page.text(40, y, line, 15, "ink")
    page.height = y + 18
    return page
