# SPDX-License-Identifier: MIT
"""Where do a trained model's heads look, and what changes when one is taken away?"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from deepdive.heads import (
    LONGEST,
    SENTENCES,
    HeadMaps,
    correlation,
    head_maps,
    look,
    pieces,
)
from deepdive.pretrained import minilm, pool, similarity
from deepdive.tokenizers import Encoded, Tokenizer
from deepdive.widgets.base import Widget, encode24
from deepdive.widgets.svg import Drawing, cividis, fmt


class HeadExplorer(Widget):
    """All heads of a trained encoder at a glance; choose one, look closely, remove it.

    Args:
        model, tokenizer: an encoder with `blocks`; MiniLM unless given.
        sentences: 2 … 8 short ones; the reader may add one while a kernel runs.
        maps: what `head_maps` returned, if it has been computed already.
        layer, head: the head shown first, counted from 0.

    Raises:
        WeightsMissing: MiniLM's files are not on this machine.

    Taught in: book/03_multi_head.ipynb
    """

    label: ClassVar[str] = "Heads of a trained encoder"
    height: ClassVar[int] = 1044
    height_mid: ClassVar[int] = 1160
    height_narrow: ClassVar[int] = 1675

    def __init__(
        self,
        model: nn.Module | None = None,
        tokenizer: Tokenizer | None = None,
        sentences: Sequence[str] = SENTENCES,
        *,
        maps: HeadMaps | None = None,
        layer: int = 0,
        head: int = 2,
        name: str = "head-explorer",
        **kwargs: Any,
    ) -> None:
        if (model is None) != (tokenizer is None):
            raise ValueError("give the model and its tokenizer, or neither")
        if model is None:
            model, tokenizer = minilm()
        self.model, self.tokenizer = model, tokenizer
        self.maps = head_maps(model, tokenizer, sentences) if maps is None else maps
        super().__init__(
            data=_data(self.maps),
            start=_start(layer, head),
            name=name,
            alt=_describe(self.maps, layer, head),
            caption=(
                "All heads of a trained encoder. A map shows where a head looks, not "
                "what the model does with it; removing the head is a test of that."
            ),
            **kwargs,
        )
        self.observe(self._answer, names="state")

    @classmethod
    def from_weights(
        cls,
        weights: Tensor | Mapping[str, Tensor] | Sequence[Tensor],
        rows: Sequence[str],
        columns: Sequence[str] | None = None,
        name: str = "head-explorer",
    ) -> HeadExplorer:
        """Show weights that are at hand, such as what `record` saw; nothing is removed.

        Args:
            weights: (1, H, T, S) for one layer, or one such tensor per layer.
            rows, columns: the T queries and the S keys; the same unless given.

        Raises:
            ValueError: more than one sentence in the batch, or sizes that do not fit.
        """
        layers = list(weights.values()) if isinstance(weights, Mapping) else weights
        layers = [layers] if isinstance(layers, Tensor) else list(layers)
        columns = rows if columns is None else columns
        tensor = torch.stack(
            [_one_sentence(w, len(rows), len(columns)) for w in layers]
        )  # (L, H, T, S)
        self = cls.__new__(cls)
        self.model = self.tokenizer = self.maps = None
        Widget.__init__(
            self,
            data=_bare_data(tensor, rows, columns),
            start=_start(0, 0),
            name=name,
            alt=(
                f"Attention maps of {tensor.shape[0]} layers, {tensor.shape[1]} heads "
                f"each, for {len(rows)} queries and {len(columns)} keys."
            ),
            caption="Rows are queries, columns are keys, bright is much.",
        )
        return self

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Refuse a state that the figure could not draw."""
        limits = {
            "layer": self.data["layers"],
            "head": self.data["heads"],
            "sentence": len(self.data["sentences"]) + 1,  # the last is the reader's own
        }
        for key, n in limits.items():
            value = state[key]
            if isinstance(value, bool) or value not in range(n):
                raise ValueError(f"{key} must be one of 0 … {n - 1}, got {value!r}")
        if state["view"] not in ("lines", "map"):
            raise ValueError(f"view must be 'lines' or 'map', got {state['view']!r}")
        if not isinstance(state["ask"], str) or not isinstance(state["removed"], bool):
            raise ValueError("ask must be text and removed True or False")
        return state

    def frame(self) -> str:
        """All maps of the first sentence, one of them closely, and the two rankings."""
        if self.maps is None:
            return _bare_frame(self.data, self.alt).svg()
        start = self.data["start"]
        return _frame(self.maps, start["layer"], start["head"], self.alt).svg()

    def _answer(self, change: Mapping[str, Any]) -> None:
        """Run the real model on the reader's sentence and send its maps."""
        text = change["new"]["ask"]
        if self.model is None or not text or text == change["old"].get("ask", ""):
            return
        own: dict[str, Any] = {"text": text}
        try:
            own |= own_sentence(self.model, self.tokenizer, text, self.maps.sentences)
        except (ValueError, TypeError, UnicodeError) as error:
            own["error"] = str(error)
        data = {key: value for key, value in self.data.items() if key != "start"}
        self.data = data | {"own": own}


@torch.no_grad()
def own_sentence(
    model: nn.Module, tokenizer: Tokenizer, text: str, others: Sequence[str]
) -> dict[str, Any]:
    """Maps of one more sentence and its cosines to the others, as JSON.

    Raises:
        ValueError: the text is empty or has more than 16 pieces.
    """
    if not text.strip():
        raise ValueError("there is no text; type a sentence")
    tokens = pieces(tokenizer, text, least=1)
    device = model.blocks[0].attention.q_proj.weight.device
    batch = Encoded(*(x.to(device) for x in tokenizer.encode([text, *others])))
    weights, hidden = look(model, *batch)
    n = len(tokens)
    return {
        **_sentence(text, weights[0, :, :, :n, :n], tokens, tokens),
        "cosines": _plain(similarity(pool(hidden, batch.keep))[0, 1:]),
    }


# ---- JSON ------------------------------------------------------------------------


def _start(layer: int, head: int) -> dict[str, Any]:
    return {
        "layer": layer, "head": head, "sentence": 0, "view": "lines",
        "removed": False, "ask": "",
    }  # fmt: skip


def _plain(x: Tensor) -> list:
    """Nested lists; nine decimals are more than a table shows and half the bytes."""
    if x.dim() > 1:
        return [_plain(row) for row in x]
    return [round(value, 9) for value in x.tolist()]


def _sentence(text: str, weights: Tensor, rows, columns) -> dict[str, Any]:
    return {
        "text": text,
        "rows": list(rows),
        "columns": list(columns),
        "weights": encode24(weights.clamp(0, 1).flatten().tolist()),
    }


def _data(maps: HeadMaps) -> dict[str, Any]:
    layers, heads = maps.effect.shape
    return {
        "layers": layers,
        "heads": heads,
        "sentences": [
            _sentence(*item, item[-1])
            for item in zip(maps.sentences, maps.weights, maps.tokens, strict=True)
        ],
        "cosines": _plain(maps.cosines),
        "changes": _plain(maps.changes),
        "effect": _plain(maps.effect),
        "peak": _plain(maps.peak),
        "peak_on_words": _plain(maps.peak_on_words),
        "patterns": {name: _plain(x) for name, x in maps.patterns.items()},
        "values": _plain(maps.value_lengths),
        "pearson": correlation(maps.peak, maps.effect),
        "pearson_on_words": correlation(maps.peak_on_words, maps.effect),
        "verdict": verdict(maps),
        "longest": LONGEST,
        "own": None,
    }


def _bare_data(weights: Tensor, rows, columns) -> dict[str, Any]:
    return {
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "sentences": [_sentence(" ".join(rows), weights, rows, columns)],
        "own": None,
    }


def _one_sentence(weights: Tensor, T: int, S: int) -> Tensor:
    """(1, H, T, S) → (H, T, S), after naming whatever does not fit."""
    shape = tuple(weights.shape)
    if weights.dim() != 4:
        raise ValueError(
            f"weights must be (batch 1, heads, queries, keys), got {shape}"
        )
    if shape[0] != 1:
        raise ValueError(
            f"the batch axis of weights {shape} holds {shape[0]} sentences, and one "
            "can be drawn: choose it with weights[i : i + 1]"
        )
    if shape[2:] != (T, S):
        raise ValueError(
            f"weights {shape} have {shape[2]} queries and {shape[3]} keys, but {T} and "
            f"{S} words were given"
        )
    if max(T, S) > LONGEST:
        raise ValueError(f"up to {LONGEST} words can be drawn, got {T} and {S}")
    low, high = float(weights.min()), float(weights.max())
    if not (low >= 0 and high <= 1 + 1e-6):
        raise ValueError(f"weights must lie in 0 … 1, got {low:.3g} … {high:.3g}")
    return weights[0].double()


# ---- The first frame -------------------------------------------------------------


def short(layer: int, head: int) -> str:
    """The name of a head as readers see it, counted from 1: L1·H3."""
    return f"L{layer + 1}·H{head + 1}"


def _ranks(effect: Tensor) -> Tensor:
    """1 for the head whose removal changes most."""
    order = effect.flatten().argsort(descending=True)
    return order.argsort().reshape(effect.shape) + 1


def signed(x: float, digits: int = 2) -> str:
    """A number with its sign, also where it is a plus."""
    return ("+" if x > 0 else "") + fmt(x, digits)


def verdict(maps: HeadMaps) -> str:
    """Does a sharp map mark a head that matters? What the two correlations say."""
    all_keys, words = (
        correlation(peak, maps.effect) for peak in (maps.peak, maps.peak_on_words)
    )
    sharp = maps.peak >= maps.peak.median()
    sinks = (maps.patterns["CLS"][sharp] > 0.5).double().mean()
    turns = "turns" if all_keys * words < 0 else "goes"
    first = (
        "Sharp maps are mostly sinks on [CLS]; leave that column out"
        if sinks > 0.5
        else "Leave the [CLS] column out"
    )
    return (
        f"{first} and the correlation {turns} from {signed(all_keys)} to "
        f"{signed(words)}. The picture does not settle it; removal does."
    )


def _describe(maps: HeadMaps, layer: int, head: int) -> str:
    effect, ranks = maps.effect, _ranks(maps.effect)
    all_keys, words = (
        signed(correlation(peak, effect)) for peak in (maps.peak, maps.peak_on_words)
    )
    return (
        f"Attention maps of {effect.numel()} heads on “{maps.sentences[0]}”, and two "
        f"scatter plots of how sharp each map is against how much removing the head "
        f"changes the sentences' cosines: correlation {all_keys} over all keys, "
        f"{words} with [CLS] left out. {short(layer, head)} is number "
        f"{int(ranks[layer, head])} of {effect.numel()} by what its removal changes."
    )


LEVELS = 16


class _Frame(Drawing):
    """A drawing that can set a small map in a few paths instead of many rectangles."""

    def thumb(
        self, x: float, y: float, side: float, weights: list[list[float]]
    ) -> None:
        """A map of side `side`, in 16 shades; the darkest is the ground."""
        T, S = len(weights), len(weights[0])
        self.rect(x, y, side, side, cividis(0), radius=0)
        shades: dict[int, list[str]] = {}
        for i, row in enumerate(weights):
            for j, w in enumerate(row):
                if level := min(int(w * LEVELS), LEVELS - 1):
                    shades.setdefault(level, []).append(f"M{j} {i}h1v1h-1z")
        paths = "".join(
            f'<path d="{"".join(cells)}" fill="{cividis(level / (LEVELS - 1))}"/>'
            for level, cells in sorted(shades.items())
        )
        place = f"translate({x:g} {y:g}) scale({side / S:.4g} {side / T:.4g})"
        self.parts.append(
            f'<g transform="{place}" shape-rendering="crispEdges">{paths}</g>'
        )


def _thumbs(
    page: _Frame, y: float, weights: Tensor, effect: Tensor | None, chosen
) -> float:
    """The grid of all maps; returns the y below it."""
    layers, heads = weights.shape[:2]
    side = min(46, (page.width - 60) / heads - 6)
    left = 44
    for h in range(heads):
        x = left + h * (side + 6) + side / 2
        page.text(x, y, f"H{h + 1}", 13, "muted", "middle")
    y += 8
    for layer in range(layers):
        page.text(left - 10, y + side / 2 + 5, f"L{layer + 1}", 13, "muted", "end")
        for h in range(heads):
            x = left + h * (side + 6)
            page.thumb(x, y, side, weights[layer, h].tolist())
            if effect is not None:
                long = side * float(effect[layer, h] / effect.max())
                page.rect(x, y + side + 2, max(1, round(long, 1)), 4, "muted", radius=0)
            if (layer, h) == chosen:
                page.rect(x - 2.5, y - 2.5, side + 5, side + 5, None, "ink", 2, 2.5)
        y += side + 11
    return y


def _frame(maps: HeadMaps, layer: int, head: int, alt: str) -> Drawing:
    weights, tokens = maps.weights[0], maps.tokens[0]
    page = _Frame(700, 0, alt)
    page.text(16, 22, f"{maps.effect.numel()} heads read “{maps.sentences[0]}”", 16,
              weight=650)  # fmt: skip
    page.text(16, 42, "each square: one head's map; bar: change of cosines when it is "
              "removed", 14, "muted")  # fmt: skip
    y = _thumbs(page, 66, weights, maps.effect, (layer, head)) + 34
    page.text(16, y, f"{short(layer, head)}, closely", 15, weight=650)
    page.text(150, y, "query ↓  reads from  key →", 13, "muted")
    page.matrix(78, y + 42, weights[layer, head].tolist(), 44, 32, tokens, tokens,
                size=13)  # fmt: skip
    below = y + 42 + len(tokens) * 34
    page.text(352, y, "Do sharp maps mark strong heads?", 15, weight=650)
    page.text(352, y + 22, "↑ mean change of cosines when removed", 13, "muted")
    for x, peak, words in (
        (352, maps.peak, "all keys"),
        (534, maps.peak_on_words, "[CLS] left out"),
    ):
        _scatter(page, x, y + 36, 148, 150, peak, maps.effect, (layer, head))
        page.text(x + 74, y + 222, words, 14, "ink", "middle", 600)
        found = signed(correlation(peak, maps.effect))
        page.text(x + 74, y + 241, f"correlation {found}", 14, "ink", "middle")
    page.height = max(below, y + 241)
    for line in textwrap.wrap(verdict(maps), 92):
        page.height += 22
        page.text(16, page.height, line, 14)
    page.height += 14
    return page


def _scatter(
    page: Drawing, x: float, y: float, width: float, height: float,
    peak: Tensor, effect: Tensor, chosen: tuple[int, int],
) -> None:  # fmt: skip
    """How peaked against how much removal changes, one ring for each head."""
    top = float(effect.max())
    page.text(x + 4, y + height * 0.06 + 4, fmt(top), 12, "muted")
    page.line(x, y, x, y + height, "muted")
    page.line(x, y + height, x + width, y + height, "muted")
    for place in torch.cartesian_prod(*map(torch.arange, effect.shape)).tolist():
        px = x + width * float(peak[tuple(place)])
        py = y + height * (1 - 0.94 * float(effect[tuple(place)]) / top)
        if tuple(place) == chosen:
            page.circle(px, py, 6, "ink")
            page.rect(px - 52, py - 23, 46, 18, "paper")
            page.text(px - 8, py - 9, short(*chosen), 13, "ink", "end", 650)
        else:
            page.circle(px, py, 3, None, "muted")
    page.text(x, y + height + 17, "0", 13, "muted", "middle")
    page.text(x + width, y + height + 17, "1", 13, "muted", "middle")
    page.text(x + width / 2, y + height + 17, "largest weight", 13, "muted",
              "middle")  # fmt: skip


def _bare_frame(data: Mapping[str, Any], alt: str) -> Drawing:
    import base64

    sentence = data["sentences"][0]
    T, S = len(sentence["rows"]), len(sentence["columns"])
    raw = base64.b64decode(sentence["weights"])
    numbers = [
        int.from_bytes(raw[i : i + 3], "little") / 0xFFFFFF
        for i in range(0, len(raw), 3)
    ]
    weights = torch.tensor(numbers).reshape(data["layers"], data["heads"], T, S)
    page = _Frame(700, 0, alt)
    y = _thumbs(page, 22, weights, None, (0, 0)) + 34
    if max(T, S) <= 8:
        page.text(16, y, f"{short(0, 0)}, closely", 15, weight=650)
        page.matrix(90, y + 42, weights[0, 0].tolist(), 52, 34, sentence["rows"],
                    sentence["columns"])  # fmt: skip
        y += 60 + T * 36
    page.height = y
    return page
