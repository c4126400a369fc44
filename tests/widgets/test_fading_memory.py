# SPDX-License-Identifier: MIT
"""W1: its numbers are those of the trained readers, and the page computes as Python."""

import json

import numpy as np
import pytest
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
    states.append({**widget.data["start"], "view": "gain", "rho": 0.9, "n": 20})
    found = run_node(
        "return input.states.map((s) => m.describe(s, input.data));",
        SCRIPT, {"data": widget.data, "states": states},
    )  # fmt: skip
    assert found == [fading_memory._alt(s, fading_memory.measure()) for s in states]
    assert "(start)" in found[0] and "(full stop)" in found[4]


def test_powers_of_ten_are_written_out() -> None:
    found = run_node(
        "return [...input.map(m.written), m.raised(-10)];",
        SCRIPT, [2.66e-5, 0.0999, 1.0, 13780.6],
    )  # fmt: skip
    assert found == ["2.7 · 10⁻⁵", "0.100", "1.00", "1.4 · 10⁴", "⁻¹⁰"]


def test_the_page_mends_states_that_cannot_be_drawn(widget) -> None:
    odd = [
        {"t": 99}, {"sentence": 7, "t": 0}, {"rho": 9}, {"n": -3}, {"view": "x"},
        {"sentence": 1, "t": 15},
    ]  # fmt: skip
    script = """const { data, odd } = input;
        return odd.map((s) => m.clean({ ...data.start, ...s }, data));"""
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
