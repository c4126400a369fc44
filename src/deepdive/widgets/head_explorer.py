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
from deepdive.induction import CausalMaps
from deepdive.inputs import check_kind
from deepdive.palette import COLOURS
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


class CausalHeads(HeadExplorer):
    """The same for a language model: where its heads look, and what its loss needs.

    What lies ahead of a query is hatched. Removing a head changes what each piece
    costs, and two texts that are said twice show whether a head looks for repetitions.

    Args:
        maps: what `induction.causal_maps` returned.
        layer, head: the head shown first, counted from 0 in the model; unless given,
            the one whose removal costs most.
        text: the number of the text shown first; −2 the names said twice, −1 the
            random pieces.

    Raises:
        ValueError: there is no such layer, head or text.

    Taught in: book/08_gpt.ipynb
    """

    label: ClassVar[str] = "Heads of a trained language model"
    height: ClassVar[int] = 1090
    height_mid: ClassVar[int] = 1080
    height_narrow: ClassVar[int] = 1830

    def __init__(
        self,
        maps: CausalMaps,
        *,
        layer: int | None = None,
        head: int | None = None,
        text: int = 0,
        name: str = "causal-heads",
        **kwargs: Any,
    ) -> None:
        check_kind("maps", maps, CausalMaps)
        (L, H), first, n = maps.effect.shape, maps.first_layer, len(maps.texts)
        most = divmod(int(maps.effect.argmax()), H)
        layer = most[0] + first if layer is None else layer
        head = most[1] if head is None else head
        for what, i, low, size in (("layer", layer, first, L), ("head", head, 0, H)):
            if isinstance(i, bool) or i not in range(low, low + size):
                raise ValueError(
                    f"{what} must be one of {low} … {low + size - 1}, got {i!r}"
                )
        if isinstance(text, bool) or text not in range(-n, n):
            raise ValueError(f"text must be one of {-n} … {n - 1}, got {text!r}")
        self.model = self.tokenizer = None
        self.maps = maps
        Widget.__init__(
            self,
            data=_causal_data(maps),
            start={**_start(layer - first, head), "sentence": text % n},
            name=name,
            alt=_describe_causal(maps, layer - first, head, text % n),
            caption=(
                "All heads of a trained language model. A map shows where a head "
                "looks, not what the model does with it; removing the head is a test "
                "of that. In its pieces, · is a space and ↵ a new line."
            ),
            **kwargs,
        )

    def frame(self) -> str:
        """All maps of one text, one of them closely, and the two scatter plots."""
        start = self.data["start"]
        chosen = start["layer"], start["head"]
        return _causal_frame(self.maps, chosen, start["sentence"], self.alt).svg()


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


def _plain(x: Tensor, digits: int = 9) -> list:
    """Nested lists; nine decimals are more than a table shows and half the bytes."""
    if x.dim() > 1:
        return [_plain(row, digits) for row in x]
    return [round(value, digits) for value in x.tolist()]


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


def _causal_data(maps: CausalMaps) -> dict[str, Any]:
    layers, heads = maps.effect.shape
    return {
        "causal": True,
        "layers": layers,
        "heads": heads,
        "first": maps.first_layer,
        "sentences": [_causal_text(maps, i) for i in range(len(maps.texts))],
        "loss": maps.loss,
        "effect": _plain(maps.effect),
        "peak": _plain(maps.peak),
        "peak_on_words": _plain(maps.peak_beyond_first),
        "patterns": {name: _plain(x) for name, x in maps.patterns.items()},
        "pearson": correlation(maps.peak, maps.effect),
        "pearson_on_words": correlation(maps.peak_beyond_first, maps.effect),
        "verdict": causal_verdict(maps),
        "own": None,
    }


def _causal_text(maps: CausalMaps, i: int) -> dict[str, Any]:
    """A text's maps up to the diagonal, and what each of its pieces costs."""
    T = len(maps.tokens[i])
    below = maps.weights[i][..., *torch.tril_indices(T, T)]
    return {
        **_sentence(maps.texts[i], below, maps.tokens[i], maps.tokens[i]),
        "causal": True,
        "copy": maps.copies[i],
        "losses": _plain(maps.losses[i], 6),
        "changes": _plain(maps.changes[i], 6),
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


def _named(maps: CausalMaps, layer: int, head: int) -> str:
    """The same where the figure begins with a later layer of its model."""
    return short(layer + maps.first_layer, head)


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


def causal_verdict(maps: CausalMaps) -> str:
    """Does a sharp map mark a head that the loss needs? What the numbers say."""
    all_keys, beyond = (
        signed(correlation(peak, maps.effect))
        for peak in (maps.peak, maps.peak_beyond_first)
    )
    better = int((maps.effect < 0).sum())
    return (
        f"Sharpness and what removal costs go together with a correlation of "
        f"{all_keys} over all keys, {beyond} with the first piece left out. The loss "
        f"is lower without {better} of the {maps.effect.numel()} heads, one at a time."
    )


def _describe_causal(maps: CausalMaps, layer: int, head: int, text: int) -> str:
    effect, ranks = maps.effect, _ranks(maps.effect)
    return (
        f"Attention maps of {effect.numel()} heads on “{maps.texts[text]}”, hatched "
        f"above the diagonal, and two scatter plots of how sharp each map is against "
        f"how much the loss rises without the head. {_named(maps, layer, head)} is "
        f"number {int(ranks[layer, head])} of {effect.numel()}: "
        f"{signed(float(effect[layer, head]), 3)} nats a piece."
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
        """A map of side `side`, in 16 shades; the darkest is the ground.

        None is what lies ahead of a causal model's query.
        """
        T, S = len(weights), len(weights[0])
        self.rect(x, y, side, side, cividis(0), radius=0)
        if weights[0][-1] is None:
            self.ahead(x, y, side, T)
        shades: dict[int, list[str]] = {}
        for i, row in enumerate(weights):
            for j, w in enumerate(row):
                if level := min(int((w or 0) * LEVELS), LEVELS - 1):
                    shades.setdefault(level, []).append(f"M{j} {i}h1v1h-1z")
        paths = "".join(
            f'<path d="{"".join(cells)}" fill="{cividis(level / (LEVELS - 1))}"/>'
            for level, cells in sorted(shades.items())
        )
        place = f"translate({x:g} {y:g}) scale({side / S:.4g} {side / T:.4g})"
        self.parts.append(
            f'<g transform="{place}" shape-rendering="crispEdges">{paths}</g>'
        )

    def ahead(self, x: float, y: float, side: float, T: int) -> None:
        """The hatched staircase above the diagonal of a map of T rows."""
        cell = side / T
        lines = ""
        for k in range(1, int(2 * side), 6):  # on the lines x + y = c
            if 2 < (c := k / cell) < 2 * T - 1:
                low = f"{c / 2 + 0.5:.3g} {c / 2 - 0.5:.3g}"
                lines += f"M{low}L{min(c, T):.3g} {max(0.0, c - T):.3g}"
        soft, line = (f"var(--dd-{n},{COLOURS[n]})" for n in ("soft", "line"))
        self.parts.append(
            f'<g transform="translate({x:g} {y:g}) scale({cell:.4g})">'
            f'<path d="M1 0{"v1h1" * (T - 1)}V0z" fill="{COLOURS["soft"]}" '
            f'style="fill:{soft}"/><path d="{lines}" stroke-width="{1 / cell:.3g}" '
            f'stroke="{COLOURS["line"]}" style="stroke:{line}" fill="none"/></g>'
        )


def _thumbs(
    page: _Frame, y: float, weights: Tensor, effect: Tensor | None, chosen,
    most: float = 46, causal: bool = False, first: int = 0,
) -> float:  # fmt: skip
    """The grid of all maps, at most so wide; returns the y below it."""
    layers, heads = weights.shape[:2]
    side = min(most, (page.width - 60) / heads - 6)
    left = 44
    for h in range(heads):
        x = left + h * (side + 6) + side / 2
        page.text(x, y, f"H{h + 1}", 13, "muted", "middle")
    y += 8
    for layer in range(layers):
        row = f"L{layer + 1 + first}"
        page.text(left - 10, y + side / 2 + 5, row, 13, "muted", "end")
        for h in range(heads):
            x = left + h * (side + 6)
            page.thumb(x, y, side, _rows(weights[layer, h], causal))
            if effect is not None:
                long = side * float(effect[layer, h].abs() / effect.abs().max())
                ink = ("muted", None) if effect[layer, h] >= 0 else (None, "muted")
                page.rect(x, y + side + 2, max(1, round(long, 1)), 4, *ink, radius=0)
            if (layer, h) == chosen:
                page.rect(x - 2.5, y - 2.5, side + 5, side + 5, None, "ink", 2, 2.5)
        y += side + 11
    return y


def _rows(weights: Tensor, causal: bool) -> list[list[float | None]]:
    """A map as lists, with None for what a causal model cannot see."""
    return [
        [None if causal and j > i else w for j, w in enumerate(row)]
        for i, row in enumerate(weights.tolist())
    ]


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


def _causal_frame(maps: CausalMaps, chosen, text: int, alt: str) -> Drawing:
    weights, tokens = maps.weights[text], maps.tokens[text]
    page = _Frame(700, 0, alt)
    page.text(16, 22, f"{maps.effect.numel()} heads read “{maps.texts[text]}”", 16,
              weight=650)  # fmt: skip
    page.text(16, 42, "square: a head's map, what lies ahead is hatched; bar: the loss "
              "rises without it (hollow: falls)", 14, "muted")  # fmt: skip
    room = 280 / weights.shape[1] - 6
    below = _thumbs(page, 66, weights, maps.effect, chosen, min(58, room), True,
                    maps.first_layer)  # fmt: skip
    x, y, cell = 420, 138, 264 / len(tokens)
    name = _named(maps, *chosen)
    page.text(330, 66, f"{name}, closely", 15, weight=650)
    page.text(466, 66, "query ↓  reads from  key →", 13, "muted")
    page.thumb(x, y, 264, _rows(weights[chosen], True))
    for i, word in enumerate(tokens):
        here = (i + 0.5) * cell
        page.text(x - 6, y + here + 4, word, 12, "q", "end")
        page.text(x + here + 3, y - 5, word, 12, "k", rotate=-55)
    y = max(below, y + 264) + 34
    page.text(16, y, "Do sharp maps mark strong heads?", 15, weight=650)
    page.text(16, y + 22, "↑ change of the loss when removed", 13, "muted")
    for x, peak, words in (
        (60, maps.peak, "all keys"),
        (250, maps.peak_beyond_first, "first piece left out"),
    ):
        _scatter(page, x, y + 36, 148, 150, peak, maps.effect, chosen, name)
        page.text(x + 74, y + 222, words, 14, "ink", "middle", 600)
        found = signed(correlation(peak, maps.effect))
        page.text(x + 74, y + 241, f"correlation {found}", 14, "ink", "middle")
    for i, line in enumerate(textwrap.wrap(causal_verdict(maps), 34)):
        page.text(440, y + 48 + 21 * i, line, 14)
    page.height = y + 260
    return page


def _scatter(
    page: Drawing, x: float, y: float, width: float, height: float,
    peak: Tensor, effect: Tensor, chosen: tuple[int, int], name: str = "",
) -> None:  # fmt: skip
    """How peaked against how much removal changes, one ring for each head."""
    top, low = float(effect.max()), min(0.0, float(effect.min()))

    def up(change: float) -> float:
        return y + height * (1 - 0.94 * (change - low) / (top - low))

    page.text(x + 4, y + height * 0.06 + 4, fmt(top), 12, "muted")
    page.line(x, y, x, y + height, "muted")
    page.line(x, up(0), x + width, up(0), "muted")
    for place in torch.cartesian_prod(*map(torch.arange, effect.shape)).tolist():
        px = x + width * float(peak[tuple(place)])
        py = up(float(effect[tuple(place)]))
        if tuple(place) == chosen:
            page.circle(px, py, 6, "ink")
            page.rect(px - 52, py - 23, 46, 18, "paper")
            page.text(px - 8, py - 9, name or short(*chosen), 13, "ink", "end", 650)
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
