# SPDX-License-Identifier: MIT
"""What does a small GPT compute while it reads a text and goes on from it?

It is causal: what it computes for a piece does not change when the text goes on. So
the maps of one whole text hold the maps of all its beginnings, and one row of logits
for each piece holds every next step. Python computes them once (`read_on`); the page
shows them piece by piece, recomputes temperature, top-k and top-p as
`decoding.probabilities` does, and draws.

Taught in: book/08_gpt.ipynb
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from deepdive import shelf
from deepdive.ablation import ablate
from deepdive.attention import record
from deepdive.decoding import (
    CachedStep,
    greedy,
    nucleus,
    probabilities,
    temperature,
    top_k,
    top_p,
)
from deepdive.recipes import RECIPES, load_run
from deepdive.recipes.novels import END
from deepdive.recipes.novels import tokenizer as novels_tokenizer
from deepdive.tokenizers import Tokenizer, visible
from deepdive.widgets.base import Widget, encode24
from deepdive.widgets.svg import Drawing, cividis, fmt

TEXTS = (  # from chapters that no model of the book was trained on
    "It is a truth universally acknowledged, that",
    "Mr. Bennet made no",
    "I am very",
    "The next day",
)
STEPS = 10  # pieces that the model adds to each
LONGEST = 32  # pieces of an opening, the first one that begins every text included
MOST_TEXTS = 6
LISTED = 64  # next pieces that are kept by name; the others count together
SHOWN = 8  # bars
TABLED = 12  # rows of the table
TEMPERATURES = (0, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2)
KS = (1, 2, 3, 5, 10, 20, 40, 64)  # and the whole vocabulary
PS = (0.5, 0.8, 0.9, 0.95, 1)
HARD = "\u00a0"  # a space at which no line ends
CAPTION = (
    "A small GPT reads a text piece by piece and goes on from it. It is causal: what "
    "stands computed for a piece stays when the text grows. A model this small writes "
    "in the manner of its corpus, not sense."
)


@dataclass(frozen=True, eq=False)
class Reading:
    """All that the model computes for one text and its own way on, in float64.

    Attributes:
        text: the opening, without the piece that begins every text.
        ids: all T pieces; the first `opening` of them were given, the others are the
            model's most probable ones.
        logits: (T, V), row t after reading pieces 0 … t.
        maps: (L, H, T, T), causal.
        without: (L, H, T, V), the logits with one head removed.
    """

    text: str
    ids: list[int]
    opening: int
    logits: Tensor
    maps: Tensor
    without: Tensor


def widened(model: nn.Module) -> nn.Module:
    """A copy in float64 on the CPU: every machine then gets the same numbers."""
    return copy.deepcopy(model).double().cpu().eval()


@torch.no_grad()
def read_on(
    model: nn.Module,
    tokenizer: Tokenizer,
    text: str,
    steps: int = STEPS,
    begin: str = END,
) -> Reading:
    """Read a text, go on with the most probable pieces, and keep every number.

    Args:
        model: causal, with `blocks` and `new_caches`, such as `widened` gave.
        steps: pieces to add; fewer if the model ends the text.
        begin: the piece before every text, which also ends one; "" for none.

    Raises:
        TypeError: the text is no string.
        ValueError: it is empty or has too many pieces.
    """
    ids = _opening(model, tokenizer, text, steps, begin)
    stop = tokenizer.encode(begin).ids[0].tolist() if begin else []
    step = CachedStep(model, model.new_caches())
    new = greedy(step, torch.tensor([ids]), steps, stop=stop).rows()[0]
    whole = torch.tensor([ids + new])
    with record(model) as seen:
        logits = model(whole)[0]
    layers = range(len(model.blocks))
    heads = range(model.blocks[0].attention.n_heads)
    without = []
    for layer in layers:
        for head in heads:
            with ablate(model, layer, head):
                without.append(model(whole)[0])
    return Reading(
        text=text,
        ids=whole[0].tolist(),
        opening=len(ids),
        logits=logits,
        maps=torch.stack([seen[f"blocks.{i}.attention"][0] for i in layers]),
        without=torch.stack(without).unflatten(0, (len(layers), len(heads))),
    )


def _opening(model, tokenizer, text, steps, begin) -> list[int]:
    """The ids of an opening that can be read and gone on from."""
    if not isinstance(text, str):
        raise TypeError(f"expected a text, got {text!r}")
    if not text.strip():
        raise ValueError("there is no text; type how it begins")
    ids = tokenizer.encode(begin + text).ids[0].tolist()
    first = len(tokenizer.encode(begin).ids[0]) if begin else 0
    room = getattr(getattr(model, "config", None), "max_seq_len", None)
    most = min(LONGEST, (room or LONGEST + steps) - steps) - first
    if len(ids) - first > most:
        raise ValueError(
            f"this text has {len(ids) - first} pieces; up to {most} can be read here"
        )
    return ids


def cache_counts(opening: int, read: int) -> tuple[int, int]:
    """For how many pieces a layer computed key and value: with a cache, and without.

    The opening is read at once, the others one by one. With a cache each piece is
    computed once; without one, every step computes all pieces before it again.

        read,      opening + (opening + 1) + … + read

    >>> cache_counts(opening=3, read=5)
    (5, 12)
    """
    return read, sum(range(min(opening, read), read + 1))


@cache
def trained() -> tuple[nn.Module, Tokenizer]:
    """The book's small GPT and its tokenizer.

    Raises:
        FileNotFoundError: its weights are not there (`deepdive.shelf`).
    """
    _, model = load_run(shelf.weights("austen-gpt"), RECIPES)
    return model, novels_tokenizer()


class LiveTransformer(Widget):
    """Step through a text: next pieces, attention of every head, one head taken out.

    Args:
        model, tokenizer: a causal model with `blocks` and `new_caches`; the book's GPT
            trained on Jane Austen's novels unless given.
        texts: 1 … 6 openings of at most 31 pieces; while a kernel runs, the reader may
            type another.
        begin: the piece that stands before every text in the training; "" for none.
        steps: pieces that the model adds.
        text: which of the texts is shown first, from 0.
        n: how many pieces have been read at first; the whole opening unless given.
        layer, head: the head shown first, from 0; unless given, the one whose removal
            changes the first next piece's probabilities most.
        removed: whether it is taken out at first.
        temperature, k, p: how the next piece is chosen at first: one of `TEMPERATURES`,
            of `KS` (or the vocabulary's size, for no cut), of `PS`.
        name: slug, unique on its page.

    Raises:
        ValueError: any of these out of range, or a text too long.
        TypeError: texts is one string, or an item is no text.
        FileNotFoundError: no model was given and the book's weights are not there.

    Taught in: book/08_gpt.ipynb
    """

    label: ClassVar[str] = "A small GPT, piece by piece"
    height: ClassVar[int] = 1060
    height_mid: ClassVar[int] = 1150
    height_narrow: ClassVar[int] = 1960

    def __init__(
        self,
        model: nn.Module | None = None,
        tokenizer: Tokenizer | None = None,
        texts: Sequence[str] = TEXTS,
        *,
        begin: str = END,
        steps: int = STEPS,
        text: int = 0,
        n: int | None = None,
        layer: int | None = None,
        head: int | None = None,
        removed: bool = False,
        temperature: float = 1,
        k: int | None = None,
        p: float = 1,
        name: str = "live-transformer",
        **kwargs: Any,
    ) -> None:
        """Read all texts and show the state asked for."""
        if (model is None) != (tokenizer is None):
            raise ValueError("give the model and its tokenizer, or neither")
        if model is None:
            model, tokenizer = trained()
        if (layer is None) != (head is None):
            raise ValueError("give layer and head, or neither")
        _check_texts(texts)
        _one_of("text", text, range(len(texts)))
        self.model, self.tokenizer = widened(model), tokenizer
        self.begin, self.steps = begin, steps
        self.readings = [self._read(opening) for opening in texts]
        chosen = self.readings[text]
        n = chosen.opening if n is None else n
        if layer is None and n in range(1, len(chosen.ids) + 1):
            layer, head = strongest(chosen, n)
        size = chosen.logits.shape[-1]
        start = {
            "text": text, "n": n, "layer": layer or 0, "head": head or 0,
            "removed": removed, "temperature": temperature,
            "k": size if k is None else k, "p": p, "draws": 0, "ask": "",
        }  # fmt: skip
        data = _data(self.readings, tokenizer, LONGEST + steps)
        self._limits(start, data)
        super().__init__(
            data=data,
            start=start,
            name=name,
            alt=_describe(chosen, start, data["names"]),
            caption=CAPTION,
            **kwargs,
        )
        self.observe(self._answer, names="state")

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Refuse a state that the figure could not draw."""
        self._limits(state, self.data)
        return state

    def numbers(self) -> dict[str, list[list[float]]]:
        """What the table view shows for the present state, by table name."""
        s = self.state
        reading = self.readings[s["text"]]
        L, H = reading.maps.shape[:2]
        row = s["n"] - 1
        return {
            "next": next_table(reading, s),
            "attention": reading.maps[:, :, row, : s["n"]]
            .reshape(L * H, s["n"]).T.tolist(),
            "cache": [list(map(float, cache_counts(reading.opening, s["n"])))],
        }  # fmt: skip

    def frame(self) -> str:
        """The text with the weights of one head, all heads, and the next pieces."""
        start = self.data["start"]
        return _frame(self.alt, self.readings[start["text"]], start, self.data["names"])

    def _read(self, text: str) -> Reading:
        return read_on(self.model, self.tokenizer, text, self.steps, self.begin)

    def _limits(self, state: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Every choice must be one that can be drawn."""
        own = data["own"] or {}
        known = [*data["texts"], *([own] if "ids" in own else [])]
        _one_of("text", state["text"], range(len(known)))
        _one_of("n", state["n"], range(1, len(known[state["text"]]["ids"]) + 1))
        _one_of("layer", state["layer"], range(data["layers"]))
        _one_of("head", state["head"], range(data["heads"]))
        _one_of("temperature", state["temperature"], data["temperatures"])
        _one_of("k", state["k"], data["ks"])
        _one_of("p", state["p"], data["ps"])
        if not isinstance(state["ask"], str) or not isinstance(state["removed"], bool):
            raise ValueError("ask must be text and removed True or False")
        _one_of("draws", state["draws"], range(1000))

    def _answer(self, change: Mapping[str, Any]) -> None:
        """Run the real model on what the reader typed and send its numbers."""
        text = change["new"]["ask"]
        if not text or text == change["old"].get("ask", ""):
            return
        data = {key: value for key, value in self.data.items() if key != "start"}
        try:
            reading = self._read(text)
            own = _pack(reading)
            data["names"] = data["names"] | _names([own], self.tokenizer)
            self.readings = [*self.readings[: len(data["texts"])], reading]
        except (ValueError, TypeError, UnicodeError) as error:
            own = {"text": text, "error": str(error)}
        self.data = data | {"own": own}


def strongest(reading: Reading, n: int) -> tuple[int, int]:
    """The head whose removal moves most probability from one next piece to others."""
    before = reading.logits[n - 1].softmax(-1)
    moved = (reading.without[:, :, n - 1].softmax(-1) - before).abs().sum(-1)  # (L, H)
    layer, head = divmod(int(moved.argmax()), moved.shape[1])
    return layer, head


def next_table(reading: Reading, state: Mapping[str, Any]) -> list[list[float]]:
    """Rows of the table: the model's own probabilities, those drawn from, without.

    The twelve most probable next pieces, and all others together in the last row. The
    third column, with the head removed, is there for the first eight pieces.
    """
    logits = reading.logits[state["n"] - 1]
    own = probabilities(logits)
    cut = temperature(state["temperature"]), top_k(state["k"]), top_p(state["p"])
    drawn = probabilities(logits, cut)
    gone = probabilities(reading.without[state["layer"], state["head"], state["n"] - 1])
    ids = logits.sort(descending=True, stable=True).indices[:TABLED]
    rows = torch.stack([own[ids], drawn[ids], gone[ids]], 1).tolist()
    rows = [row if i < SHOWN else row[:2] for i, row in enumerate(rows)]
    return [*rows, [1 - float(own[ids].sum()), 1 - float(drawn[ids].sum())]]


# ---- JSON ------------------------------------------------------------------------


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError(f"expected a list of texts, got the string {texts!r}")
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise ValueError(f"expected 1 … {MOST_TEXTS} texts, got {len(texts)}")


def _one_of(name: str, value: Any, allowed: Sequence) -> None:
    if isinstance(value, bool) or value not in allowed:
        some = list(allowed)
        known = f"{some[0]} … {some[-1]}" if isinstance(allowed, range) else str(some)
        raise ValueError(f"{name} must be one of {known}, got {value!r}")


def _data(
    readings: Sequence[Reading], tokenizer: Tokenizer, longest: int
) -> dict[str, Any]:
    L, H = readings[0].maps.shape[:2]
    V = readings[0].logits.shape[-1]
    texts = [_pack(reading) for reading in readings]
    return {
        "layers": L,
        "heads": H,
        "vocabulary": V,
        "listed": min(LISTED, V),
        "shown": min(SHOWN, V),
        "tabled": min(TABLED, V),
        "longest": longest,
        "temperatures": list(TEMPERATURES),
        "ks": [*(k for k in KS if k < V), V],
        "ps": list(PS),
        "texts": texts,
        "names": _names(texts, tokenizer),
        "own": None,
    }


def _packed(values: Tensor, kind: torch.dtype) -> str:
    """The numbers' bytes, little-endian, as base64."""
    raw = values.to(kind).contiguous().numpy()
    return base64.b64encode(raw.astype(raw.dtype.newbyteorder("<")).tobytes()).decode()


def _pack(reading: Reading) -> dict[str, Any]:
    """One reading as JSON: what the eye can tell apart, and no more.

    Logits stand relative to the largest of their row. Beside the listed ones: for each
    temperature the log of the sum of the others' powers, and for each top-p how many
    pieces it takes and their sum, which the listed ones alone do not tell.
    """
    values, ids = reading.logits.sort(dim=-1, descending=True, stable=True)
    if values.shape[-1] > 1 << 16:
        raise ValueError(f"up to 65,536 pieces can be named, got {values.shape[-1]}")
    gaps = values - values[:, :1]
    warm = torch.tensor([t for t in TEMPERATURES if t], dtype=torch.float64)
    scaled = gaps[:, None] / warm[:, None]  # (T, temperatures, V)
    shares = scaled.softmax(-1)
    inside = torch.stack([nucleus(shares, p) for p in PS if p < 1], -2)
    before = reading.without.softmax(-1)  # (L, H, T, V)
    first = ids[:, :SHOWN].expand(*before.shape[:2], -1, -1)
    most, new = before.max(-1, keepdim=True)
    kept = torch.cat([before.gather(-1, first), most], -1)
    T = len(reading.ids)
    rows, columns = torch.tril_indices(T, T)
    return {
        "text": reading.text,
        "ids": reading.ids,
        "opening": reading.opening,
        "next": _packed(ids[:, :LISTED], torch.uint16),
        "gaps": _packed(gaps[:, :LISTED], torch.float32),
        "rest": _packed(scaled[..., LISTED:].logsumexp(-1), torch.float32),
        "nuclei": _packed(inside.sum(-1), torch.uint16),
        "masses": _packed((shares[:, :, None] * inside).sum(-1), torch.float32),
        "maps": _packed(
            (reading.maps[:, :, rows, columns] * 0xFFFF).round(), torch.uint16
        ),
        "gone": encode24(kept.clamp(0, 1).flatten().tolist()),
        "new": _packed(new, torch.uint16),
    }


def _names(texts: Iterable[Mapping[str, Any]], tokenizer: Tokenizer) -> dict[str, str]:
    """How each piece that occurs is written, by its id."""
    found: set[int] = set()
    for text in texts:
        found |= set(text["ids"])
        for key in ("next", "new"):
            raw = bytearray(base64.b64decode(text[key]))
            found |= set(torch.frombuffer(raw, dtype=torch.uint16).tolist())
    return {str(i): visible(tokenizer, i) for i in sorted(found)}


# ---- The first frame -------------------------------------------------------------


def short(layer: int, head: int) -> str:
    """The name of a head as readers see it, counted from 1: L1·H3."""
    return f"L{layer + 1}·H{head + 1}"


def percent(share: float) -> str:
    """A share in words: "3.4 %", and "< 0.1 %" for what would be 0.0 %; not broken.

    >>> [percent(share).replace("\u00a0", " ") for share in (0.0341, 0.00002)]
    ['3.4 %', '< 0.1 %']
    """
    return f"< 0.1{HARD}%" if 0 < share < 0.0005 else f"{fmt(100 * share, 1)}{HARD}%"


def _ranked(shares: Tensor, names: Mapping[str, str], n: int) -> list:
    """The n largest as (name, share)."""
    order = shares.sort(descending=True, stable=True).indices[:n].tolist()
    return [(names[str(i)], float(shares[i])) for i in order]


def _chosen(reading: Reading, state: Mapping[str, Any]) -> Tensor:
    """What the next piece is drawn from in this state."""
    row = state["n"] - 1
    if state["removed"]:
        return probabilities(reading.without[state["layer"], state["head"], row])
    cut = temperature(state["temperature"]), top_k(state["k"]), top_p(state["p"])
    return probabilities(reading.logits[row], cut)


def _describe(reading: Reading, state: Mapping[str, Any], names) -> str:
    """The first frame in two sentences."""
    n, layer, head = state["n"], state["layer"], state["head"]
    weights = reading.maps[layer, head, n - 1, :n]
    most = int(weights.argmax())
    first = ", ".join(
        f"“{name}” {percent(share)}"
        for name, share in _ranked(_chosen(reading, state), names, 3)
    )
    gone = f"without head {short(layer, head)} " if state["removed"] else ""
    count = reading.maps.shape[0] * reading.maps.shape[1]
    return (
        f"A text in {n} pieces with bars for the weights of {short(layer, head)}, most "
        f"on “{names[str(reading.ids[most])]}” ({fmt(float(weights[most]), 2)}), small "
        f"maps of {count} heads, and bars for the next piece. The most probable "
        f"{gone}are {first}."
    )


def _frame(alt: str, reading: Reading, start: Mapping[str, Any], names) -> str:
    page = Drawing(700, 0, alt)
    n, layer, head = start["n"], start["layer"], start["head"]
    page.text(16, 24, f"{short(layer, head)} at “{names[str(reading.ids[n - 1])]}”: "
              "how much it reads from each piece", 16, weight=650)  # fmt: skip
    y = _strip(page, 44, reading, start, names)
    page.text(16, y + 18, "frame: the last piece read · · is a space · grey: how the "
              "model goes on, its most probable pieces", 13, "muted")  # fmt: skip
    y += 52
    page.text(16, y, f"{reading.maps.shape[0] * reading.maps.shape[1]} heads", 15,
              weight=650)  # fmt: skip
    low = _heads(page, y + 14, reading, (layer, head), n)
    gone = f" without {short(layer, head)}" if start["removed"] else ""
    page.text(300, y, f"Next piece{gone}", 15, weight=650)
    shares = _chosen(reading, start)
    ranked = _ranked(shares, names, SHOWN)
    for i, (name, share) in enumerate(ranked):
        _bar(page, y + 14 + 25 * i, name, share, ranked[0][1])
    end = y + 14 + 25 * len(ranked)
    others = 1 - sum(share for _, share in ranked)
    page.text(300, end + 17, f"all other pieces: {percent(others)}", 14, "muted")
    page.height = max(low, end + 26) + 56
    for up, line in ((36, _with_or_without(reading, start, names)),
                     (14, _cache_line(reading, n))):  # fmt: skip
        page.text(16, page.height - up, line, 14)
    return page.svg()


def _with_or_without(reading: Reading, start: Mapping[str, Any], names) -> str:
    """What the next piece would be the other way: without the head, or with it."""
    other = {**start, "removed": not start["removed"]}
    first = ", ".join(
        f"“{name}” {percent(share)}"
        for name, share in _ranked(_chosen(reading, other), names, 3)
    )
    way = "Without" if other["removed"] else "With"
    return f"{way} {short(start['layer'], start['head'])}: {first}."


def _cache_line(reading: Reading, n: int) -> str:
    """For how many pieces keys and values were computed, now and at the end."""
    cached, again = cache_counts(reading.opening, n)
    line = f"Keys and values so far, in each layer: {cached} with a cache, {again}"
    if n == len(reading.ids):
        return f"{line} without."
    most, all_again = cache_counts(reading.opening, len(reading.ids))
    return f"{line} without; at the last piece {most} and {all_again}."


def _strip(page: Drawing, y: float, reading: Reading, start, names) -> float:
    """The text, a bar over each piece read; returns the y below it."""
    n, tall, x = start["n"], 26, 16.0
    weights = reading.maps[start["layer"], start["head"], n - 1].tolist()
    for i, token in enumerate(reading.ids):
        name = names[str(token)]
        width = max(34, 8.6 * len(name) + 10)
        if x + width > page.width - 16:
            x, y = 16.0, y + tall + 52
        ground = y + tall
        if i < n:
            high = max(1.0, round(tall * weights[i], 1))
            page.rect(x + 3, ground - high, width - 6, high, "k", radius=1)
            page.text(x + width / 2, ground + 38, fmt(weights[i], 2), 12, "muted",
                      "middle")  # fmt: skip
        colour = "ink" if i < n else "muted"
        page.text(x + width / 2, ground + 19, name, 15, colour, "middle",
                  650 if i == n - 1 else 400)  # fmt: skip
        if i == n - 1:
            page.rect(x + 1, ground + 3, width - 2, 23, None, "q", 3, 2)
        x += width
    return y + tall + 44


def _heads(page: Drawing, y: float, reading: Reading, chosen, n: int) -> float:
    """A small map for every head, down to the last piece read; returns y below."""
    L, H = reading.maps.shape[:2]
    T = len(reading.ids)
    side = min(46, 230 / H - 6)
    for h in range(H):
        page.text(46 + h * (side + 6) + side / 2, y + 2, f"H{h + 1}", 13, "muted",
                  "middle")  # fmt: skip
    for layer in range(L):
        top = y + 10 + layer * (side + 6)
        page.text(36, top + side / 2 + 5, f"L{layer + 1}", 13, "muted", "end")
        for h in range(H):
            x = 46 + h * (side + 6)
            page.rect(x, top, side, side, "soft", "line", 0)
            _map(page, x, top, side / T, reading.maps[layer, h, :n].tolist())
            if (layer, h) == chosen:
                page.rect(x - 2, top - 2, side + 4, side + 4, None, "ink", 2, 2.5)
    return y + 10 + L * (side + 6)


def _map(page: Drawing, x: float, y: float, cell: float, rows: list) -> None:
    """Causal rows in 16 shades, a path for each."""
    # All that may be read, in the darkest shade, and the brighter cells upon it.
    shades: dict[int, list[str]] = {0: ["M0 0" + "h1v1" * len(rows) + "H0z"]}
    for i, row in enumerate(rows):
        j = 0
        for shade, run in groupby(min(int(16 * weight), 15) for weight in row[: i + 1]):
            width = len(list(run))
            if shade:
                shades.setdefault(shade, []).append(f"M{j} {i}h{width}v1h-{width}z")
            j += width
    paths = "".join(
        f'<path d="{"".join(cells)}" fill="{cividis(shade / 15)}"/>'
        for shade, cells in sorted(shades.items())
    )
    place = f"translate({x:g} {y:g}) scale({cell:.4g})"
    page.parts.append(
        f'<g transform="{place}" shape-rendering="crispEdges">{paths}</g>'
    )


def _bar(page: Drawing, y: float, name: str, share: float, most: float) -> None:
    """One next piece: its name, its bar, its share."""
    page.text(386, y + 16, name, 15, anchor="end")
    page.rect(394, y + 3, max(1, round(220 * share / most, 1)), 17, "accent")
    page.text(622, y + 16, percent(share), 14)
