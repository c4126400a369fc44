# SPDX-License-Identifier: MIT
"""W1: its numbers are those of the trained readers, and the page computes as Python."""

import json
import math

import numpy as np
import pytest
import shapes
import torch

from conftest import WIDGETS, run_node
from deepdive import shelf
from deepdive.recipes import RECIPES, load_run
from deepdive.recipes import recurrent_grammar as rg
from deepdive.widgets import FadingMemory, fading_memory

SCRIPT = WIDGETS / "fading_memory.js"


@pytest.fixture(scope="module")
def widget() -> FadingMemory:
    return FadingMemory()


@pytest.mark.parametrize("reader", [0, 1, 2])
@pytest.mark.parametrize("t", [1, 15])
def test_sizes_are_those_of_torchs_jacobian(widget, reader, t) -> None:
    one = widget.data["sentences"][0]
    name = fading_memory.READERS[reader][0]
    model = load_run(shelf.weights(f"grammar-{name}"), RECIPES)[1].double()
    x = rg.vectors(model, torch.tensor([rg.g.SYMBOLS.encode(" ".join(one["words"]))]))
    read = rg.reader(model)
    jacobian = torch.autograd.functional.jacobian(lambda x: read(x)[0, t - 1], x)
    sizes = jacobian[:, 0].square().sum((0, 2)).sqrt()
    assert (sizes[t:] == 0).all()
    found = one["sizes"][reader]["trained"][t - 1]
    assert found == pytest.approx(sizes[:t].tolist(), rel=1e-5)


@pytest.mark.parametrize("kind", [name for name, _ in fading_memory.READERS])
def test_readers_read_what_their_models_know(kind) -> None:
    """A reader of vectors gives what the model computes from the words."""
    model = load_run(shelf.weights(f"grammar-{kind}"), RECIPES)[1]
    ids, _ = rg.far(2, 4)
    with torch.no_grad():
        states = rg.reader(model)(model.token(ids))
        torch.testing.assert_close(states, model.hidden(ids), atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", [name for name, _ in fading_memory.READERS])
@pytest.mark.parametrize("sentence", [0, 1, 2])
def test_small_is_not_forgotten(kind, sentence) -> None:
    """As the caption says: once trained, each reader chooses the right verb."""
    words, noun = fading_memory.SENTENCES[sentence]
    model = load_run(shelf.weights(f"grammar-{kind}"), RECIPES)[1]
    ids = torch.tensor([rg.g.SYMBOLS.encode(words)])
    with torch.no_grad():
        part = model(ids)[0, fading_memory.verb(sentence) - 1].softmax(-1)
    one, several = (
        sum(part[rg.g.SYMBOLS.ids[verb]].item() for verb in verbs)
        for verbs in rg.g.SLEEPS
    )
    ours = several if words.split()[noun] in rg.g.NOUNS[1] else one
    assert ours > 0.9 * (one + several)
    assert "Small is not forgotten" in fading_memory.CAPTIONS["readers"]


def test_every_word_of_every_sentence_is_there(widget) -> None:
    for one, (words, noun) in zip(
        widget.data["sentences"], fading_memory.SENTENCES, strict=True
    ):
        assert one["words"] == words.split()
        assert one["words"][noun] in fading_memory.NOUNS
        for reader in one["sizes"]:
            for when in ("start", "trained"):
                assert [len(row) for row in reader[when]] == [
                    i + 1 for i in range(len(one["words"]))
                ]
    assert len(json.dumps(widget.data)) < 40_000


def test_what_the_figure_is_there_to_show(widget) -> None:
    """Before training the cells halve each word; attention does not; after it neither
    cell does, and attention finds the noun."""
    one = widget.data["sentences"][0]
    noun, t = one["noun"], widget.state["t"]
    assert one["words"][t] == "sleeps"
    parts = [
        {w: np.array(fading_memory.shares(r[w][t - 1])) for w in ("start", "trained")}
        for r in one["sizes"]
    ]
    for cell in parts[:2]:
        fade = (cell["start"][1] / cell["start"][-1]) ** (1 / (t - 2))
        assert 0.4 < fade < 0.65
        assert cell["trained"][noun] > 10 * cell["start"][noun]
    others = parts[2]["start"][:-1]
    assert others.max() < 2 * others.min()
    behind = parts[2]["trained"].argsort()[::-1]
    assert noun in behind[:2] and parts[2]["trained"][noun] > 0.05


@pytest.mark.parametrize(
    ("rho", "n", "left"), [(0.9, 20, 0.12), (0.95, 50, 0.077), (1.05, 100, 131.5)]
)
def test_powers(rho, n, left) -> None:
    assert fading_memory.gain(rho, n) == pytest.approx(left, rel=0.02)
    assert str(left) in FadingMemory(view="gain", rho=rho, n=n).frame()
    shown = run_node("return m.written(m.gain(...input));", SCRIPT, [rho, n])
    assert shown == str(left)


def test_the_page_computes_as_python_does(widget) -> None:
    rhos = [0.8, 0.9, 0.95, 1, 1.05, 1.1]
    asked = [[rho, n] for rho in rhos for n in range(0, 101, 7)]
    found = run_node("return input.map((x) => m.gain(...x));", SCRIPT, asked)
    np.testing.assert_allclose(
        found, [fading_memory.gain(*pair) for pair in asked], rtol=1e-12
    )
    found = run_node("return input.map(m.halving);", SCRIPT, rhos)
    assert found[3] is None and fading_memory.halving(1) is None
    for rho, half in zip(rhos, found, strict=True):
        if rho != 1:
            assert half == pytest.approx(fading_memory.halving(rho), rel=1e-12)
            assert rho**half == pytest.approx(0.5 if rho < 1 else 2)
    rows = [r["trained"][-1] for r in widget.data["sentences"][1]["sizes"]]
    found = run_node("return input.map(m.shares);", SCRIPT, rows)
    for row, ours in zip(rows, found, strict=True):
        np.testing.assert_allclose(ours, fading_memory.shares(row), rtol=1e-12)
        assert sum(ours) == pytest.approx(1)
    few = [0.0, 0.0004, 0.0341, 0.124, 1.0]
    found = run_node("return input.map(m.percent);", SCRIPT, few)
    assert found == [fading_memory.percent(x) for x in few]


def test_a_live_picture_is_described_as_the_printed_one(widget) -> None:
    asked = [(0, 1), (0, 3), (0, 15), (1, 8), (2, 7), (2, 12)]
    states = [{**widget.data["start"], "sentence": j, "t": t} for j, t in asked]
    gains = [(0.9, 20), (0.8, 100), (1.0, 7), (1.1, 100)]
    states += [
        {**widget.data["start"], "view": "gain", "rho": rho, "n": n} for rho, n in gains
    ]
    states += [{**state, "log": True} for state in states]
    found = run_node(
        "return input.states.map((s) => m.describe(s, input.data));",
        SCRIPT, {"data": widget.data, "states": states},
    )  # fmt: skip
    assert found == [fading_memory._alt(s, fading_memory.measure()) for s in states]
    assert "(start)" in found[0] and "(full stop)" in found[4]


def test_numbers_are_written_alike() -> None:
    few = [2.66e-5, 0.0999, 0.1216, 1.0, 13.78, 131.5, 12500.0, 13780.6, 9.96e-5]
    few += [fading_memory.gain(rho, n) for rho in (0.8, 1.1) for n in range(101)]
    found = run_node("return input.map(m.written);", SCRIPT, few)
    assert found == [fading_memory.written(x) for x in few]
    assert found[:4] == ["2.7 · 10⁻⁵", "0.100", "0.12", "1.00"]
    assert found[6:9] == ["1.3 · 10⁴", "1.4 · 10⁴", "1.0 · 10⁻⁴"]
    found = run_node("return input.map(m.ten);", SCRIPT, [-10, 0, 5])
    assert found == ["10⁻¹⁰", "1", "10⁵"]
    assert found == [fading_memory.ten(p) for p in (-10, 0, 5)]
    parts = [k / 2000 for k in range(2001)]  # with the halves that tools round apart
    found = run_node("return input.map(m.percent);", SCRIPT, parts)
    assert found == [fading_memory.percent(x) for x in parts]


def test_both_axes_rise_and_are_the_same_in_both_languages() -> None:
    parts = [0.0, 1e-9, 1e-6, 1e-4, 0.001, 0.02, 0.25, 0.5, 0.75, 1.0]
    asked = [[x, high, log] for x in parts for high in (0.75, 1) for log in (0, 1)]
    found = run_node("return input.map((x) => m.up(...x));", SCRIPT, asked)
    assert found == pytest.approx([fading_memory.up(*one) for one in asked], abs=1e-12)
    powers = [fading_memory.up(x, 0.75, True) for x in parts]
    assert powers == sorted(powers)
    assert powers[:5] == pytest.approx([0, 0, 0, 1 / 3, 0.5]) and powers[-1] == 1
    assert fading_memory.up(0.75, 0.75, False) == 1
    for high, log in (
        (0.25, False),
        (0.5, False),
        (0.75, False),
        (1, False),
        (1, True),
    ):
        lines = run_node("return m.ticks(...input);", SCRIPT, [high, log])
        ours = fading_memory.ticks(high, log)
        assert [label for _, label in lines] == [label for _, label in ours]
        assert [x for x, _ in lines] == pytest.approx([x for x, _ in ours])


def _line(found: list, name: str, mark: tuple[str, str]) -> dict[str, str]:
    """The polyline of this class on the page, or with this mark in the frame."""
    lines = [s for s in found if s["tag"] == "polyline"]
    (one,) = [s for s in lines if s.get("class") == name or mark in s.items()]
    return one


def _levels(found: list, tall: float, ground: float) -> tuple[list, list]:
    """How high the bars and the line of one plot stand, as parts of its height."""
    bars = [s for s in found if s["tag"] == "rect"]
    for bar in bars:  # all stand on the ground
        foot = float(bar["y"]) + float(bar["height"])
        assert foot == pytest.approx(ground, abs=0.01)
    line = _line(found, "fm-before", ("stroke-dasharray", "5 4"))
    return (
        [float(bar["height"]) / tall for bar in bars],
        [(ground - y) / tall for _, y in shapes.points(line)],
    )


STATES = [(0, 15, False), (0, 15, True), (1, 8, False), (1, 8, True), (2, 7, True)]


@pytest.mark.parametrize(("sentence", "t", "log"), STATES)
def test_both_pictures_show_the_sizes(widget, sentence, t, log) -> None:
    """Bars are what training left, the line what was before it; none swapped."""
    made = FadingMemory(sentence=sentence, t=t, log=log)
    sizes = widget.data["sentences"][sentence]["sizes"]
    wanted = [
        [np.array(one[when][t - 1]) / sum(one[when][t - 1]) for when in
         ("trained", "start")] for one in sizes
    ]  # fmt: skip
    high = math.ceil(4 * max(row.max() for pair in wanted for row in pair)) / 4
    asked = {"state": made.state, "data": made.data}
    frame = shapes.of_frame(made.frame())
    heads = [frame.index(next(s for s in frame if s["text"] == name))
             for name in made.data["readers"]] + [len(frame)]  # fmt: skip
    for i, pair in enumerate(wanted):
        pair = [np.clip(1 + np.log10(r) / 6, 0, 1) if log else r / high for r in pair]
        page = shapes.of_page(
            f"m.plot({i}, {{ x: 0, y: 0, w: 1000, tall: 1000 }}, input.state, "
            "input.data, false)", SCRIPT, asked,
        )  # fmt: skip
        part, tall = frame[heads[i] : heads[i + 1]], fading_memory.TALL
        ground = 40 + i * (tall + 50) + tall
        for found in (_levels(page, 1000, 1000), _levels(part, tall, ground)):
            np.testing.assert_allclose(found[0], pair[0], atol=2e-4)
            np.testing.assert_allclose(found[1], pair[1], atol=2e-4)


@pytest.mark.parametrize(
    "args",
    [{}, {"log": True}, {"sentence": 1, "t": 8, "log": True}, {"sentence": 2, "t": 7},
     {"t": 1}, {"view": "gain"}, {"view": "gain", "rho": 0.8, "n": 100},
     {"view": "gain", "rho": 0.855, "n": 3}, {"view": "gain", "rho": 1.1, "n": 100}],
    ids=str,
)  # fmt: skip
def test_both_pictures_say_the_same(args) -> None:
    made = FadingMemory(**args)
    draw = "drawGain" if made.state["view"] == "gain" else "drawReaders"
    found = shapes.of_page(
        f"m.{draw}(690, m.cleanState(input.state, input.data), input.data)[1]",
        SCRIPT, {"state": made.state, "data": made.data},
    )  # fmt: skip
    page, frame = shapes.texts(found), shapes.texts(shapes.of_frame(made.frame()))
    # The frame also names the word T, which stands in the page's summary, and writes
    # the mark that the page draws.
    assert page == [w for w in frame if w != "▼" and not w.startswith("T = ")]
    marks = sum(s.get("class") == "fm-here-mark" for s in found)
    assert frame.count("▼") == marks
    assert len(frame) - len(page) - marks == (draw == "drawReaders")


@pytest.mark.parametrize(("rho", "n"), [(0.9, 20), (1.1, 100), (0.8, 50), (1, 60)])
def test_both_pictures_put_the_point_where_it_is(rho, n) -> None:
    made = FadingMemory(view="gain", rho=rho, n=n)
    page = shapes.of_page("m.drawGain(690, input.state, input.data)[1]", SCRIPT,
                          {"state": made.state, "data": made.data})  # fmt: skip
    for found in (page, shapes.of_frame(made.frame())):
        ticks = {s["text"]: float(s["y"]) - 5 for s in found if s["tag"] == "text"}
        dot = next(s for s in found if s["tag"] == "circle")
        unit = (ticks["1"] - ticks["10⁵"]) / 5
        assert unit > 0
        assert ticks["10⁻¹⁰"] == pytest.approx(ticks["1"] + 10 * unit, abs=0.01)
        level = ticks["1"] - unit * n * math.log10(rho)
        assert float(dot["cy"]) == pytest.approx(level, abs=0.01)
        left, right = shapes.points(_line(found, "fm-line", ("stroke-width", "2.5")))
        assert left[1] == pytest.approx(ticks["1"], abs=0.01)
        last = ticks["1"] - unit * 100 * math.log10(rho)
        assert right[1] == pytest.approx(last, abs=0.01)
        place = left[0] + (right[0] - left[0]) * n / 100
        assert float(dot["cx"]) == pytest.approx(place, abs=0.01)


def test_the_line_under_the_picture(widget) -> None:
    asked = [{"view": "gain", "rho": rho, "n": 10} for rho in (0.9, 1, 1.1)]
    asked += [{"t": 2}, {"t": 3}, {"t": 15}]
    script = """const { data, asked } = input;
        return asked.map((s) => m.summaryOf({ ...data.start, ...s }, data));"""
    said = run_node(script, SCRIPT, {"data": widget.data, "asked": asked})
    assert said[0] == (
        "A factor of 0.9 a word: after 10 words 0.35 is left; "
        "it halves every 6.6 words."
    )
    assert said[1].endswith("1.00 is left; nothing is lost or added.")
    assert said[2].endswith("it doubles every 7.3 words.")
    assert said[3].endswith("yet to come.") and "“cat”, this word:" in said[4]
    one = widget.data["sentences"][0]
    for name, sizes in zip(widget.data["readers"], one["sizes"], strict=True):
        after, before = (
            fading_memory.percent(fading_memory.shares(sizes[when][14])[one["noun"]])
            for when in ("trained", "start")
        )
        assert f"{name} {after}, before training {before}" in said[5]


def test_the_page_mends_states_that_cannot_be_drawn(widget) -> None:
    odd = [
        {"t": 99}, {"sentence": 7, "t": 0}, {"rho": 9}, {"n": -3}, {"view": "x"},
        {"sentence": 1, "t": 15},
    ]  # fmt: skip
    script = """const { data, odd } = input;
        return odd.map((s) => m.cleanState({ ...data.start, ...s }, data));"""
    found = run_node(script, SCRIPT, {"data": widget.data, "odd": odd})
    assert [f["t"] for f in found] == [17, 1, 15, 15, 15, 10]
    assert found[1]["sentence"] == 2 and found[2]["rho"] == 1.1
    assert found[3]["n"] == 0 and found[4]["view"] == "readers"
    for state in found:
        widget.check(state)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sentence": 3}, "sentence must be 0 … 2, got 3"),
        ({"t": 18}, "t must be 1 … 17, got 18"),
        ({"t": 1.5}, "t must be an integer"),
        ({"view": "both"}, "view must be readers or gain"),
        ({"rho": 2.0}, r"rho must be 0\.8 … 1\.1, got 2\.0"),
        ({"n": 101}, "n must be 0 … 100"),
        ({"log": 1}, "log must be True or False"),
    ],
)
def test_wrong_input(wrong, message) -> None:
    with pytest.raises(ValueError, match=message):
        FadingMemory(**wrong)


@pytest.mark.parametrize("sentence", [0, 1, 2])
def test_first_frame_teaches(sentence) -> None:
    made = FadingMemory(sentence=sentence)
    frame, (words, noun) = made.frame(), fading_memory.SENTENCES[sentence]
    assert words.split()[made.state["t"]] in ("sleep", "sleeps", "run")
    for reader in made.data["sentences"][sentence]["sizes"]:
        for when in ("start", "trained"):
            part = fading_memory.shares(reader[when][made.state["t"] - 1])[noun]
            assert fading_memory.percent(part).replace("<", "&lt;") in frame
    early = FadingMemory(sentence=sentence, t=1)
    assert "nan" not in early.frame() and "plain RNN" in early.alt
