# SPDX-License-Identifier: MIT
"""How much of each word is left in what a model knows at word T? Three readers.

    sₖ = ‖∂h_T/∂x_k‖,      share of word k = sₖ / Σⱼ sⱼ

A plain recurrent network (tanh; “plain RNN”), an LSTM and a small GPT of equal size, as
they were before their training and after it (`recipes.recurrent_grammar`). The second
picture is the arithmetic behind the fading: one number to the power of the distance.

Source: Bengio, Simard and Frasconi 1994; the idea of the picture: Madsen 2019.
Taught in: book/01_recurrence.ipynb
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import lru_cache
from typing import Any

import torch

from deepdive import shelf
from deepdive.device import seed_everything
from deepdive.fading import influence
from deepdive.palette import fmt
from deepdive.recipes import RECIPES, load_run
from deepdive.recipes import recurrent_grammar as rg
from deepdive.widgets.base import Widget
from deepdive.widgets.svg import Drawing

READERS = (("elman", "plain RNN"), ("lstm", "LSTM"), ("attention", "attention"))
SENTENCES = (  # what is read, and the place of the noun that the last verb needs
    (". the cat that the dogs hear that the birds see that the mice chase sleeps .", 2),
    (". the dogs that the small cat hears sleep .", 2),
    (". the cat sees the dogs . the white birds run .", 9),
)
NOUNS = {word for number in rg.g.NOUNS for word in number}
RHO = (0.8, 1.1)
CAPTIONS = {
    "readers": (
        "Height: how far a small change of each word would move the state at word T, "
        "as a share of the sum over all words. Bars: after training; dashed line: "
        "before it. Small is not forgotten: after training, all three choose the verb "
        "of the marked noun rightly."
    ),
    "gain": (
        "What is left of a word after n more of them, if each multiplies by the same "
        "factor."
    ),
}
STEPS = 100  # words, at most, on the second picture
TENS = (-10, 5)  # and its axis, in powers of ten
FLOOR = 6  # the lowest power of ten on the axis of shares is −6
TALL = 104  # each of the three plots, in px


@lru_cache(maxsize=1)
def measure() -> list[list[dict[str, list[list[float]]]]]:
    """Influence of every word on every state: [sentence][reader][when][T][k].

    Returns:
        The sizes ‖∂h_T/∂x_k‖ for k ≤ T, to 6 digits, under "start" and "trained".

    Raises:
        FileNotFoundError: the trained weights are not there (`deepdive.shelf`).
    """
    found: list = [[{} for _ in READERS] for _ in SENTENCES]
    for i, (name, _) in enumerate(READERS):
        folder = shelf.weights(f"grammar-{name}")
        recipe, trained = load_run(folder, RECIPES)
        seed_everything(0)  # the seed of that run: where its training began
        for when, model in (("start", recipe.model().eval()), ("trained", trained)):
            read = rg.reader(model.double())
            for j, (words, _) in enumerate(SENTENCES):
                ids = torch.tensor([rg.g.SYMBOLS.encode(words)])
                x = rg.vectors(model, ids)
                rows = [influence(read, x[:, : t + 1]) for t in range(x.shape[1])]
                found[j][i][when] = [
                    [float(f"{s:.6g}") for s in row.tolist()] for row in rows
                ]
    return found


def shares(sizes: Sequence[float]) -> list[float]:
    """Each size as a share of their sum.

    >>> shares([1.0, 3.0])
    [0.25, 0.75]
    """
    total = math.fsum(sizes)
    return [size / total for size in sizes]


def gain(rho: float, n: float) -> float:
    """What is left after n words, each of which multiplies by rho: ρⁿ.

    >>> round(gain(0.9, 20), 2)
    0.12
    """
    return rho**n


def halving(rho: float) -> float | None:
    """After how many words ρⁿ is a half, or two if ρ > 1; None for ρ = 1.

    >>> round(halving(0.9), 1)
    6.6
    """
    return None if rho == 1 else math.log(2) / abs(math.log(rho))


class FadingMemory(Widget):
    """Choose a word T and see how much each word before it still moves the state there.

    Args:
        sentence: number of one of the sentences, from 0.
        t: the word whose state is asked about, from 1; the noun's verb comes after the
            one that is shown at first.
        view: "readers", or "gain" for one number to the power of the distance.
        rho: that number, 0.8 … 1.1, rounded to hundredths.
        n: the distance, 0 … 100 words.
        log: whether the shares stand on an axis of powers of ten.
        name: slug, unique on its page.

    Raises:
        ValueError: any of these out of range.
        FileNotFoundError: the trained weights are not there (`deepdive.shelf`).

    Taught in: book/01_recurrence.ipynb
    """

    label = "What is left of each word"
    height = 800
    height_narrow = 1068

    def __init__(
        self,
        sentence: int = 0,
        t: int | None = None,
        view: str = "readers",
        rho: float = 0.9,
        n: int = 20,
        log: bool = False,
        name: str = "fading-memory",
        **kwargs: Any,
    ) -> None:
        """Show one sentence under three readers, or the powers of one number."""
        start = {
            "sentence": sentence,
            "t": 0 if t is None else t,
            "view": view,
            "rho": rho,
            "n": n,
            "log": log,
        }
        if t is None and sentence in range(len(SENTENCES)):
            start["t"] = verb(sentence)
        start = self.check(start)
        sizes = measure()
        super().__init__(
            data={
                "readers": [words for _, words in READERS],
                "sentences": [
                    {"words": words.split(), "noun": noun, "sizes": sizes[i]}
                    for i, (words, noun) in enumerate(SENTENCES)
                ],
                "rho": list(RHO),
                "steps": STEPS,
                "tens": list(TENS),
            },
            start=start,
            name=name,
            alt=_alt(start, sizes),
            caption=CAPTIONS[view],
            **kwargs,
        )

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Every number must be one that can be drawn."""
        if state["view"] not in ("readers", "gain"):
            raise ValueError(f"view must be readers or gain, got {state['view']!r}")
        if not isinstance(state["log"], bool):
            raise ValueError(f"log must be True or False, got {state['log']!r}")
        _whole("sentence", state["sentence"], 0, len(SENTENCES) - 1)
        _whole("t", state["t"], 1, len(SENTENCES[state["sentence"]][0].split()))
        _whole("n", state["n"], 0, STEPS)
        rho = state["rho"]
        ok = isinstance(rho, (int, float)) and not isinstance(rho, bool)
        if not ok or not RHO[0] <= rho <= RHO[1]:
            raise ValueError(f"rho must be {RHO[0]} … {RHO[1]}, got {rho!r}")
        return {**state, "rho": math.floor(100 * rho + 0.5) / 100}

    def numbers(self) -> dict[str, list[list[float]]]:
        """What the table view shows for the present state, by table name."""
        s = self.state
        columns = []
        for reader in self.data["sentences"][s["sentence"]]["sizes"]:
            for when in ("start", "trained"):
                row = reader[when][s["t"] - 1]
                columns += [row, shares(row)]
        steps = sorted({*range(0, STEPS + 1, 10), s["n"]})
        return {
            "influence": [list(row) for row in zip(*columns, strict=True)],
            "gain": [[gain(s["rho"], n)] for n in steps],
        }

    def frame(self) -> str:
        """The three readers above each other, or the power of one number."""
        start = self.data["start"]
        if start["view"] == "gain":
            return _draw_gain(self.alt, start["rho"], start["n"])
        one = self.data["sentences"][start["sentence"]]
        return _draw_readers(self.alt, one, start["t"], start["log"])


def verb(sentence: int) -> int:
    """The word, from 1, after which the deciding noun's verb comes."""
    words, noun = SENTENCES[sentence]
    ids, number = words.split(), None
    for kind in (0, 1):
        if ids[noun] in rg.g.NOUNS[kind]:
            number = kind
    return max(i for i, w in enumerate(ids) if w in rg.g.SLEEPS[number])


def _whole(name: str, value: Any, low: int, high: int) -> None:
    """An integer between two others, both allowed."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} … {high}, got {value}")


def percent(share: float) -> str:
    """A share in words: "3.4 %", and "< 0.1 %" for what would be 0.0 %.

    >>> percent(0.0341), percent(0.00002)
    ('3.4 %', '< 0.1 %')
    """
    return "< 0.1 %" if share < 0.0005 else f"{fmt(100 * share, 1)} %"


def written(x: float) -> str:
    """A number above zero in few digits, as the page writes it.

    >>> written(0.1216), written(131.5), written(2.66e-5)
    ('0.12', '131.5', '2.7 · 10⁻⁵')
    """
    if 0.01 <= x < 1e4:
        return fmt(x, 1 if x >= 100 else 2 if x >= 0.1 else 3)
    with localcontext(rounding=ROUND_HALF_UP):
        digits, power = f"{Decimal(x):.1e}".split("e")
    return f"{digits} · 10{raised(int(power))}"


def raised(n: int) -> str:
    """An exponent in raised digits.

    >>> raised(-10)
    '⁻¹⁰'
    """
    return str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def ten(power: int) -> str:
    """A power of ten at an axis.

    >>> ten(-6), ten(0)
    ('10⁻⁶', '1')
    """
    return f"10{raised(power)}" if power else "1"


def up(share: float, high: float, log: bool) -> float:
    """How high a share stands on its axis, from 0 to 1; below 10⁻⁶ it stands at 0.

    >>> up(0.25, 0.5, log=False), up(0.001, 0.5, log=True)
    (0.5, 0.5)
    """
    if log:
        return max(0.0, 1 + math.log10(max(share, 1e-300)) / FLOOR)
    return share / high


def ticks(high: float, log: bool) -> list[tuple[float, str]]:
    """The lines of that axis, each with its label.

    >>> ticks(0.5, log=False)
    [(0.0, '0 %'), (0.25, '25 %'), (0.5, '50 %')]
    """
    if log:
        return [(10.0**p, ten(p)) for p in (-6, -4, -2, 0)]
    part = 0.5 if high > 0.5 else 0.25
    return [(j * part, f"{100 * j * part:g} %") for j in range(int(high / part) + 1)]


def _name(words: list[str], k: int) -> str:
    """Word k from 0; the first full stop stands for a beginning."""
    return words[k] if words[k] != "." else "(full stop)" if k else "(start)"


def _alt(start: dict[str, Any], sizes: list) -> str:
    """What the first frame shows, in two sentences."""
    if start["view"] == "gain":
        rho, n = start["rho"], start["n"]
        return (
            f"A straight line on an axis of powers of ten: {rho:g} to the power of the "
            f"distance. After {n} words {written(gain(rho, n))} is left."
        )
    words, noun = SENTENCES[start["sentence"]]
    ids, t = words.split(), start["t"]
    axis = ", on an axis of powers of ten" if start["log"] else ""
    if noun >= t:
        return (
            f"Bars for the words up to “{_name(ids, t - 1)}”: how much each moves "
            f"the state there, in a plain RNN, an LSTM and an attention model{axis}."
        )
    told = []
    for (_, reader), found in zip(READERS, sizes[start["sentence"]], strict=True):
        before, after = (
            percent(shares(found[when][t - 1])[noun]) for when in ("start", "trained")
        )
        told.append(f"{after} in the {reader} model (before training {before})")
    return (
        f"Bars: the share of each word in what moves the state at "
        f"“{_name(ids, t - 1)}”, in three readers{axis}. “{ids[noun]}”, "
        f"{t - 1 - noun} words back, has {', '.join(told)}."
    )


def _draw_readers(alt: str, one: dict[str, Any], t: int, log: bool) -> str:
    """Three plots with one axis of words below."""
    words, noun = one["words"], one["noun"]
    x, width, tall, gap, top = 56, 610, TALL, 50, 40
    drawing = Drawing(690, top + 3 * (tall + gap) + 78, alt)
    found = [
        [shares(sizes[when][t - 1]) for when in ("trained", "start")]
        for sizes in one["sizes"]
    ]
    high = math.ceil(4 * max(s for pair in found for row in pair for s in row)) / 4
    step = width / len(words)
    for i, (_, reader) in enumerate(READERS):
        y = top + i * (tall + gap)
        drawing.text(x, y - 12, reader, 16, weight=600)
        _draw_plot(drawing, (x, y, width, tall), found[i], (high, log), words, noun)
    low = top + 3 * (tall + gap) - gap
    for k, word in enumerate(words):
        here = k == t - 1
        colour = "ink" if k == noun or here else "muted" if k >= t else "accent"
        drawing.text(
            x + (k + 0.5) * step + 5, low + 18, word, 14, colour, "end",
            650 if k == noun or here else 400, -50,
        )  # fmt: skip
    drawing.text(x, low + 92, f"T = {t}: after “{_name(words, t - 1)}”", 14, weight=600)
    drawing.text(
        x, low + 114, "bars: after training · dashed line: before it · "
        "▼ the noun that decides the verb", 14, "muted",
    )  # fmt: skip
    return drawing.svg()


def _draw_plot(
    drawing: Drawing,
    box: tuple[float, float, float, float],
    found: list[list[float]],
    axis: tuple[float, bool],
    words: list[str],
    noun: int,
) -> None:
    """One reader: bars for what was found after training, dashes for before."""
    (x, y, width, tall), (bars, line) = box, found
    step = width / len(words)

    def place(k: float, share: float) -> tuple[float, float]:
        return round(x + k * step, 2), round(y + tall * (1 - up(share, *axis)), 2)

    for share, label in ticks(*axis):
        level = place(0, share)[1]
        drawing.line(x, level, x + width, level)
        drawing.text(x - 6, level + 5, label, 13, "muted", "end")
    for k, share in enumerate(bars):
        left, level = place(k + 0.14, share)
        fill = "ink" if k == noun else "accent"
        drawing.rect(left, level, round(0.72 * step, 2), y + tall - level, fill)
    centres = [place(k + 0.5, share) for k, share in enumerate(line)]
    drawing.path(centres, "muted", 2, "5 4")
    if len(centres) == 1:
        drawing.circle(*centres[0], 4, "muted")
    if noun < len(bars):
        at, level = place(noun + 0.5, max(bars[noun], line[noun]))
        drawing.text(at, level - 4, "▼", 13, anchor="middle")
        told = f"{words[noun]} {percent(bars[noun])}"
        drawing.text(at + 10, max(level - 5, y + 8), told, 15, weight=650)
        _rim(drawing)
        told = f"before training: {percent(line[noun])}"
        drawing.text(x + width, y - 12, told, 14, "muted", "end")


def _rim(drawing: Drawing) -> None:
    """Give the words drawn last a rim of the page's colour: they cross lines."""
    rim = "paint-order:stroke;stroke:var(--dd-paper,#ffffff);stroke-width:5px;"
    drawing.parts[-1] = drawing.parts[-1].replace('style="', f'style="{rim}', 1)


def _draw_gain(alt: str, rho: float, n: int) -> str:
    """ρⁿ over n, on an axis of powers of ten."""
    x, y, width, tall = 70, 50, 560, 320
    drawing = Drawing(690, 440, alt)
    low, high = TENS

    def place(steps: float, value: float) -> tuple[float, float]:
        level = (math.log10(value) - low) / (high - low)
        return x + width * steps / STEPS, y + tall * (1 - level)

    drawing.text(x - 40, 24, f"{rho:g} to the power of n", 16, weight=600)
    for power in range(low, high + 1, 5):
        level = place(0, 10.0**power)[1]
        drawing.line(x, level, x + width, level)
        drawing.text(x - 8, level + 5, ten(power), 13, "muted", "end")
    for steps in range(0, STEPS + 1, 20):
        drawing.text(
            place(steps, 1)[0], y + tall + 20, str(steps), 13, "muted", "middle"
        )
    drawing.text(x + width / 2, y + tall + 44, "words n", 14, anchor="middle")
    drawing.path([place(0, 1), place(STEPS, gain(rho, STEPS))], "accent", 2.5)
    here = place(n, gain(rho, n))
    drawing.line(here[0], y, here[0], y + tall, "ink", 1.5, "3 3")
    drawing.circle(*here, 6, "accent")
    right = n < 55
    level = here[1] + (24 if right == (rho > 1) else -10)  # beside the line, not on it
    level = min(max(level, y + 18), y + tall - 8)
    told, anchor = f"n = {n}: {written(gain(rho, n))}", "start" if right else "end"
    drawing.text(
        here[0] + (12 if right else -12), level, told, 16, anchor=anchor, weight=650
    )
    _rim(drawing)
    return drawing.svg()
