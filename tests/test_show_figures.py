# SPDX-License-Identifier: MIT
"""Tables, source and figures: valid, readable by ear, and with the right numbers."""

import inspect
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from deepdive import figures, show, trace
from deepdive.attention import MultiHeadAttention, split_heads
from deepdive.feedforward import FeedForward
from deepdive.kernels import equation
from deepdive.masks import Causal
from deepdive.palette import cividis

WORDS = ["cats", "chase", "mice"]
DIAGRAMS = sorted((Path(figures.__file__).parent / "diagrams").glob("*.svg"))
LEAKS = r"<script|<style|<image|url\(http|xlink|\son\w+="


class Strict(HTMLParser):
    """Every opened element is closed, in order; the cells are kept."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("td", "th", "caption"):
            self.cells.append([tag, dict(attrs).get("scope"), ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th", "caption"):
            self.cells[-1][2] += data


def table(*args, **kwargs):
    return Strict(show.matrix(*args, **kwargs).html).cells


# ── show.table ───────────────────────────────────────────────────────────────────────


def test_a_table_of_results_names_rows_and_columns():
    rows = [
        {"layer": "a<b", "n": 1_000, "share": "5 %"},
        {"layer": "c", "n": 2, "share": 0.5},
    ]
    shown = show.table(iter(rows), "Costs & more")
    Strict(shown.html)
    assert "<caption>Costs &amp; more</caption>" in shown.html
    assert re.findall('<th scope="col".*?>(.*?)</th>', shown.html) == [
        "layer",
        "n",
        "share",
    ]
    assert re.findall('<th scope="row">(.*?)</th>', shown.html) == ["a&lt;b", "c"]
    number, text = '<td class="text-end">', "<td>"
    for cells in (f"{number}1,000</td>{text}5 %</td>", f"{number}2</td>{text}0.5</td>"):
        assert cells in shown.html
    lines = [line.split(maxsplit=2) for line in shown.text.splitlines()]
    assert lines[1:] == [
        ["layer", "n", "share"],
        ["a<b", "1,000", "5 %"],
        ["c", "2", "0.5"],
    ]


# ── show.matrix ──────────────────────────────────────────────────────────────────────


def test_headers_have_a_scope_and_cells_their_numbers():
    values = torch.tensor([[1.0, -2.34567], [0.5, 0.0]])
    cells = table(values, "scores", rows=["a", "b"], columns=["x", "y"])
    assert cells == [
        ["caption", None, "scores"],
        ["td", None, ""],
        ["th", "col", "x"],
        ["th", "col", "y"],
        ["th", "row", "a"],
        ["td", None, "1.000"],
        ["td", None, "−2.346"],
        ["th", "row", "b"],
        ["td", None, "0.500"],
        ["td", None, "0.000"],
    ]


@pytest.mark.parametrize("x", [-0.0, -0.0004, -1e-17, 1e-17])
def test_a_zero_has_no_minus(x):
    assert table([x], "x")[1][2] == "0.000"
    assert show.matrix([x], "x").text.split() == ["x", "0.000"]
    assert table([-0.0006], "x")[1][2] == "−0.001"


def test_digits_vectors_and_markup_in_words():
    assert [c[2] for c in table([1, 2.5], "v", digits=1)] == ["v", "1.0", "2.5"]
    cells = table([[1]], "a<b", rows=["<i>"], columns=["&"])
    assert [c[2] for c in cells] == ["a<b", "", "&", "<i>", "1.000"]
    assert 'class="dd-matrix dd-role-q"' in show.matrix([1], "Q", role="q").html


def test_text_form_has_the_same_numbers():
    text = show.matrix(
        [[1, -2], [3, 4]], "M", rows=["a", "bb"], columns=["x", "y"]
    ).text
    lines = text.splitlines()
    assert lines[0] == "M" and len({len(line) for line in lines[1:]}) == 1
    assert lines[2].split() == ["a", "1.000", "−2.000"]


def test_a_trained_layers_weights_can_be_shown():
    weight = torch.nn.Linear(2, 2).bfloat16().weight
    shown = [float(c[2].replace("−", "-")) for c in table(weight, "W")[1:]]
    expected = weight.detach().double().flatten()
    assert torch.allclose(torch.tensor(shown).double(), expected, atol=5.1e-4)


def test_tables_stand_side_by_side():
    a, b = show.matrix([1], "a"), show.matrix([2], "b")
    both = show.beside(a, b)
    Strict(both.html)
    assert a.html in both.html and b.html in both.html and both.text.startswith("a")
    assert set(both._repr_mimebundle_()) == {"text/html", "text/plain"}


# ── Contrast: ink on cividis ─────────────────────────────────────────────────────────


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_shaded_cells_are_readable():
    values = np.linspace(0, 1, 101)
    cells = re.findall(
        r"background:(#\w{6});color:(#\w{6})",
        show.matrix(values, "w", shade=True).html,
    )
    assert len(cells) == 101
    for ground, ink in cells:
        low, high = sorted([luminance(ground), luminance(ink)])
        assert (high + 0.05) / (low + 0.05) >= 4.5, ground


# ── show_source ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "obj",
    [equation, MultiHeadAttention, split_heads, FeedForward.forward, Causal.allowed],
)
def test_source_is_the_code_without_its_docstring(obj):
    text = show.show_source(obj).data
    code, where = re.fullmatch(r"```python\n(.*)\n```\n\n(.*)", text, re.S).groups()
    compile(code, "shown", "exec")
    assert '"""' not in code.split("def forward")[0]
    path, (lines, line) = Path(inspect.getsourcefile(obj)), inspect.getsourcelines(obj)
    assert {x.strip() for x in code.splitlines()} <= {x.strip() for x in lines}
    assert obj.__name__ in code and code == inspect.cleandoc("\n" + code)
    place = path.relative_to(Path(show.__file__).parent).as_posix()
    assert where == f"`src/deepdive/{place}`, line {line}"
    assert path.read_text("utf-8").splitlines()[line - 1] == lines[0].rstrip()


def test_indentation_and_docstring_are_kept_on_request():
    code = show.show_source(FeedForward.forward).data
    assert "\n    return self.down(self.activation(self.up(x)))\n" in code
    assert "softmax(q kᵀ / √D + bias) v" in show.show_source(equation, True).data
    assert "softmax(q kᵀ / √D + bias) v" not in show.show_source(equation).data


@pytest.mark.parametrize("obj", [torch.nn.Linear, inspect.getsource, Path])
def test_foreign_source_is_refused(obj):
    with pytest.raises(ValueError, match="not part of deepdive"):
        show.show_source(obj)


@pytest.mark.parametrize("obj", [3, "equation", torch.ones(1), len])
def test_what_has_no_source_is_refused(obj):
    with pytest.raises(TypeError):
        show.show_source(obj)


# ── Figures ──────────────────────────────────────────────────────────────────────────


def heatmap_figure(alt="Heat map of weights: mice gets most.", weights=None):
    fig, ax = figures.subplots(3, 2.5)
    weights = torch.eye(3) if weights is None else weights
    figures.heatmap(ax, weights, WORDS, WORDS, title="weights")
    return figures.finish(fig, alt, "What is read from where.")


def line_figure(alt):
    fig, ax = figures.subplots(4, 3)
    ax.plot([0, 1, 2], [0, 1, 4], color=figures.COLOURS["q"])
    ax.plot([0, 1, 2], [4, 1, 0], color=figures.COLOURS["k"], marker="o")
    ax.set(xlabel="key", ylabel="score")
    return figures.finish(fig, alt, "Two lines.")


SHADES = {"#fff", "#ffffff", "#000000", *(cividis(i / 2000) for i in range(2001))}


def test_a_figure_speaks_and_follows_the_theme():
    bundle = line_figure(
        'Line chart of "scores": q grows & k falls.'
    )._repr_mimebundle_()
    page = bundle["text/html"]
    Strict(re.sub(r"<(path|use|rect|image)([^>]*)/>", r"<\1\2></\1>", page))
    assert page.count("aria-label=") == 1 and page.count('role="img"') == 1
    assert (
        'aria-label="Line chart of &quot;scores&quot;: q grows &amp; k falls."' in page
    )
    assert "<figcaption>Two lines.</figcaption>" in page
    for name in ("q", "k", "ink", "muted"):
        assert f"var(--dd-{name}, {figures.COLOURS[name]})" in page, name
    assert bundle["text/plain"].startswith("Figure: Line chart")
    ET.fromstring(bundle["image/svg+xml"])


def test_no_text_is_left_black_where_the_page_is_dark():
    fig, ax = figures.subplots(4, 3)
    ax.text(0.5, 0.5, "74%")
    ax.annotate("80/10/10", (0.1, 0.1))
    ax.plot([0, 1], label="one")
    ax.legend()
    svg = figures.finish(fig, "Line chart of one line.", "One line.").svg
    texts = re.findall(r"<text ([^>]*)>([^<]*)<", svg)
    assert {"74%", "80/10/10", "one"} <= {text for _, text in texts}
    assert not [text for how, text in texts if "fill: var(--dd-" not in how]


def ids(svg):
    return set(re.findall(r' id="([^"]*)"', svg))


def test_two_figures_share_no_id():
    a, b = line_figure("Line chart, first.").svg, line_figure("Line chart, second.").svg
    assert ids(a) and ids(b) and not ids(a) & ids(b)
    for svg in (a, b):
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        assert used <= ids(svg), "no reference points nowhere"


def test_a_figure_is_the_same_twice():
    assert heatmap_figure().svg == heatmap_figure().svg


def test_rows_are_queries_and_columns_keys():
    weights = torch.tensor([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]]).requires_grad_()
    fig, ax = figures.subplots(3, 2)
    figures.heatmap(ax, weights, WORDS[:2], WORDS)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    placed = {t.get_text(): t.get_position() for t in ax.texts}
    assert placed["0.700"] == (2.5, 0.5) and placed["1.000"] == (0.5, 1.5)
    assert ax.yaxis_inverted(), "the first query stands on top"
    figures.finish(fig, "Heat map.", "c")


@pytest.mark.parametrize("shape", [(2, 3, 3), (1, 1, 3, 3), (3,), (3, 2)])
def test_a_heatmap_takes_one_head_of_one_batch_entry(shape):
    fig, ax = figures.subplots()
    with pytest.raises(ValueError, match=re.escape(str(shape)) + ".*batch"):
        figures.heatmap(ax, torch.zeros(shape), WORDS, WORDS)
    figures.plt.close(fig)


@pytest.mark.parametrize("alt, caption", [("", "c"), ("a", " "), ("\n", "c")])
def test_no_figure_without_words(alt, caption):
    with pytest.raises(ValueError, match="alternative text"):
        figures.Figure("<svg />", alt, caption)


def test_an_unknown_diagram_is_named():
    with pytest.raises(ValueError, match=r"'nonsense'.*attention"):
        figures.diagram("nonsense", "a", "c")


# ── Diagrams ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda p: p.stem)
def test_diagrams_obey_their_rules(path):
    text = path.read_text("utf-8")
    root = ET.fromstring(text)
    assert len(text.encode()) <= 12_000 and "SPDX-License-Identifier" in text
    assert root.get("width") == "640"
    assert root.get("viewBox") == f"0 0 640 {root.get('height')}"
    assert not re.search(LEAKS, text), "no script, style, raster or outside thing"
    assert all(i.startswith(f"dgm-{path.stem}-") for i in ids(text))
    for style in re.findall(r'style="([^"]*)"', text):
        for colour in re.findall(r"(?<!, )#[0-9a-fA-F]{3,6}", style):
            assert colour in SHADES, "colours come from the theme"
    for size in re.findall(r"font-size[=:]\W*(\d+)", text):
        assert int(size) >= 12
    assert (
        "aria-label"
        in figures.diagram(path.stem, "a", "c")._repr_mimebundle_()["text/html"]
    )


def test_coordinates_are_shortened_and_tick_labels_are_not():
    fig, ax = figures.subplots(2, 2)
    ax.set_yticks([0.0025, 0.0125], ["0.0025", "0.0125"])
    svg = figures.finish(fig, "alt", "caption").svg
    assert ">0.0025<" in svg and ">0.0125<" in svg
    assert not re.search(r'[ "]\d+\.\d{3,}[ "]', svg)


def test_a_figure_styles_nothing_but_itself():
    fig, _ = figures.subplots(2, 2)
    assert "<style" not in figures.finish(fig, "alt", "caption").svg


def test_the_attention_diagram_prints_the_numbers_of_the_trace():
    chase = trace.attention()
    svg = figures.diagram("attention", "alt", "caption").svg
    printed = re.findall(r">(\d*\.?\d+)</text>", svg)
    scores = [f"{x:g}" for x in chase["raw_scores"][0][1].tolist()]
    weights = [f"{x:.3f}"[1:] for x in chase["weights"][0][1].tolist()]
    assert printed == scores + weights


def test_the_bert_diagram_prints_the_weights_of_the_trace():
    hidden = torch.tensor([0.0, 1, 0, 0], dtype=torch.float64)
    X = torch.stack([trace.CATS.X[0], hidden, trace.CATS.X[2]])
    q, k, v = (X @ W for W in (trace.CATS.W_Q, trace.CATS.W_K, trace.CATS.W_V))
    weights = (q @ k.T / 2).softmax(-1)
    shares = ((weights @ v)[1] @ trace.CATS_DAILY.X.T).softmax(-1)
    svg = figures.diagram("bert", "alt", "caption").svg
    printed = re.findall(r">(0\.\d{3})</text>", svg)
    expected = [f"{x:.3f}" for x in [*weights.flatten().tolist(), *shares.tolist()]]
    assert sorted(printed) == sorted(expected)
