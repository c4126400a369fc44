# SPDX-License-Identifier: MIT
"""W16: its numbers are the model's, the page computes as Python, a kernel answers."""

from __future__ import annotations

import html
import json
import re

import pytest
import torch
from scenarios import SCENARIOS, open_more, read_tables

from conftest import WIDGETS, run_node
from deepdive.ablation import ablate
from deepdive.attention import record
from deepdive.configs import GptConfig
from deepdive.decoding import (
    CachedStep,
    UncachedStep,
    probabilities,
    stream,
    temperature,
    top_k,
    top_p,
)
from deepdive.models.gpt import Gpt
from deepdive.recipes.novels import END, tokenizer
from deepdive.tokenizers import visible
from deepdive.widgets import LiveTransformer, live_transformer
from deepdive.widgets.live_transformer import (
    KS,
    LONGEST,
    PS,
    STEPS,
    TEMPERATURES,
    TEXTS,
    cache_counts,
    percent,
    read_on,
    strongest,
    widened,
)

MODULE = WIDGETS / "live_transformer.js"
OPENINGS = ("She was not", "It is a truth")
SMALL = GptConfig(
    vocab_size=1024, d_model=32, n_layers=2, n_heads=2, d_ff=64, max_seq_len=64
)
SOURCE = "const source = m.stored(input.data.texts[input.text ?? 0], input.data);"


def a_model(sharp: float = 1.0) -> Gpt:
    """Random weights; larger ones give sharper maps and probabilities."""
    torch.manual_seed(0)
    model = Gpt(SMALL).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(sharp)
    return model


@pytest.fixture(scope="module", params=[1.0, 6.0], ids=["flat", "sharp"])
def widget(request) -> LiveTransformer:
    return LiveTransformer(a_model(request.param), tokenizer(), OPENINGS)


@pytest.fixture
def sharp() -> LiveTransformer:
    return LiveTransformer(a_model(6.0), tokenizer(), OPENINGS)


# ------------------------------------------------------------------------- the numbers


def test_the_whole_text_holds_every_beginning(widget) -> None:
    """What makes the figure possible: causal maps and logits do not change."""
    for reading in widget.readings:
        ids = torch.tensor([reading.ids])
        for n in range(1, len(reading.ids) + 1):
            with torch.no_grad(), record(widget.model) as seen:
                logits = widget.model(ids[:, :n])[0, -1]
            assert (logits - reading.logits[n - 1]).abs().max() < 1e-12
            for layer in range(2):
                maps = seen[f"blocks.{layer}.attention"][0]
                assert (maps - reading.maps[layer, :, :n, :n]).abs().max() < 1e-12


def test_the_text_goes_on_with_the_most_probable_pieces(widget) -> None:
    cut = tokenizer()
    for text, reading in zip(OPENINGS, widget.readings, strict=True):
        given = cut.encode(END + text).ids[0].tolist()
        assert reading.ids[: reading.opening] == given
        new = reading.ids[reading.opening :]
        assert new == reading.logits[reading.opening - 1 : -1].argmax(-1).tolist()
        assert len(new) == STEPS or new[-1] == cut.id_of(END)


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 0)])
def test_a_removal_is_what_ablate_does(widget, layer, head) -> None:
    reading = widget.readings[1]
    for n in (1, reading.opening, len(reading.ids)):
        with torch.no_grad(), ablate(widget.model, layer, head):
            logits = widget.model(torch.tensor([reading.ids[:n]]))[0, -1]
        assert (logits - reading.without[layer, head, n - 1]).abs().max() < 1e-12


def test_the_strongest_head_is_found_by_removal(widget) -> None:
    reading = widget.readings[0]
    n = reading.opening
    before = probabilities(reading.logits[n - 1])
    moved = {
        (layer, head): float(
            (probabilities(reading.without[layer, head, n - 1]) - before).abs().sum()
        )
        for layer in range(2)
        for head in range(2)
    }
    assert strongest(reading, n) == max(moved, key=moved.get)
    shown = widget.data["start"]
    assert (shown["layer"], shown["head"]) == strongest(reading, n)


@pytest.mark.parametrize("opening", [1, 4])
def test_the_cache_spares_what_is_counted(opening) -> None:
    """Count the pieces that go through a layer's k_proj, with a cache and without."""
    model = a_model()
    counted = [0]
    model.blocks[1].attention.k_proj.register_forward_hook(
        lambda layer, args, out: counted.append(counted[-1] + args[0].shape[1])
    )
    prompt = torch.arange(opening)[None] + 300
    found = []
    for step in (CachedStep(model, model.new_caches()), UncachedStep(model)):
        counted[:] = [0]
        for _ in stream(step, prompt, 4):
            pass
        found.append(counted[1:])
    reads = range(opening, opening + 4)
    ours = [cache_counts(opening, read) for read in reads]
    assert ours == list(zip(*found, strict=True))
    asked = [[opening, read] for read in range(1, 12)]
    theirs = run_node("return input.map((x) => m.cacheCounts(...x));", MODULE, asked)
    assert [tuple(x) for x in theirs] == [cache_counts(*x) for x in asked]


def test_pieces_are_written_for_readers() -> None:
    cut = tokenizer()
    for text, shown in (
        ("ver", "ver"),
        (" that", "·that"),
        ("\n", "↵"),
        (END, "<|end|>"),
        (" ", "·"),
    ):
        (i,) = cut.encode(text).ids[0].tolist()
        assert visible(cut, i) == shown
    halves = [visible(cut, i) for i in cut.encode("€").ids[0].tolist()]
    assert "".join(halves).replace("⟩⟨", " ") == "⟨E2 82 AC⟩"
    everything = {visible(cut, i) for i in range(cut.vocab_size)}
    assert len(everything) == cut.vocab_size, "two pieces look alike"


# -------------------------------------------------------------------- data, size, Node


def test_the_data_stay_small_at_the_size_of_the_chapter() -> None:
    widget = next(s for s in SCENARIOS if s.name == "live-transformer").make()
    assert len(json.dumps(widget.data)) <= 200_000
    assert len(widget.frame()) < 50_000
    assert len(widget.readings) == len(TEXTS)


def test_the_page_chooses_as_decoding_does(widget) -> None:
    """Every position, temperature, top-k and top-p: to 10⁻⁶ of decoding's numbers."""
    ks = widget.data["ks"]
    assert ks == [*KS, 1024]
    settings = [[t, k, p] for t in TEMPERATURES for k in ks for p in PS]
    script = f"""
        {SOURCE}
        const rows = source.ids.map((_, i) => source.logits(i + 1));
        const answers = rows.map((row) => input.settings.map(([temperature, k, p]) =>
            m.probabilities(row, {{ temperature, k, p }})));
        return {{ ids: rows.map((row) => row.ids), shares: answers.map((row) =>
            row.map((a) => [...a.shares, a.others.share, a.others.pieces])) }};
    """
    payload = {"data": widget.data, "settings": settings}
    got = run_node(script, MODULE, payload)
    ids = torch.tensor(got["ids"])
    answers = torch.tensor(got["shares"], dtype=torch.float64).unbind(1)
    for (t, k, p), answer in zip(settings, answers, strict=True):
        exact = probabilities(
            widget.readings[0].logits, (temperature(t), top_k(k), top_p(p))
        )
        unlisted = exact.scatter(1, ids, 0)
        expected = torch.cat([exact.gather(1, ids), unlisted.sum(1, keepdim=True)], 1)
        assert (answer[:, :-1] - expected).abs().max() < 1e-6, (t, k, p)
        assert answer[:, -1].tolist() == (unlisted > 0).sum(1).tolist(), (t, k, p)


def test_some_of_these_nuclei_go_beyond_the_list() -> None:
    """Else the test above would prove little."""
    flat, sharp = (
        LiveTransformer(a_model(by), tokenizer(), OPENINGS).readings for by in (1, 6)
    )
    counts = [
        int((probabilities(r.logits, top_p(0.9)) > 0).sum(-1).min())
        for r in (*flat, *sharp)
    ]
    assert max(counts) > 64 > min(counts)


def test_node_unpacks_the_maps_and_what_removal_leaves(widget) -> None:
    script = f"""
        {SOURCE}
        const pairs = [[0, 0], [0, 1], [1, 0], [1, 1]];
        return pairs.map(([l, k]) => ({{ maps: source.maps(l, k),
            without: source.ids.map((_, i) => source.without(l, k).logits(i + 1))
                .map((row) => [row.ids, m.probabilities(row, m.PLAIN)]) }}));
    """
    got = run_node(script, MODULE, {"data": widget.data})
    reading = widget.readings[0]
    for at, answer in enumerate(got):
        layer, head = divmod(at, 2)
        for i, row in enumerate(answer["maps"]):
            exact = reading.maps[layer, head, i, : i + 1].tolist()
            assert row == pytest.approx(exact, abs=1e-5)
        for i, (ids, answered) in enumerate(answer["without"]):
            gone = probabilities(reading.without[layer, head, i])
            assert answered["shares"] == pytest.approx(gone[ids].tolist(), abs=2e-7)
            assert ids[0] == int(gone.argmax())
            own = reading.logits[i].sort(descending=True, stable=True).indices[:8]
            assert set(own.tolist()) <= set(ids)
            assert answered["others"]["share"] == pytest.approx(
                1 - float(gone[ids].sum()), abs=1e-6
            )


def new_favourite(reading) -> tuple[int, int, int]:
    """A head and a position where its removal brings up a piece that no bar showed."""
    falling = reading.logits.sort(descending=True, stable=True).indices[:, :8]
    news = (reading.without.argmax(-1)[..., None] != falling).all(-1)  # (L, H, T)
    layer, head, row = news.nonzero()[0].tolist()
    return layer, head, row + 1


@pytest.mark.parametrize("removed", [True, False])
def test_the_bars_are_those_of_the_state(sharp, removed) -> None:
    reading = sharp.readings[0]
    layer, head, n = new_favourite(reading)
    state = {"n": n, "layer": layer, "head": head, "removed": removed}
    script = f"{SOURCE} return m.barsOf(source, input.state, input.data);"
    got = run_node(
        script, MODULE,
        {"data": sharp.data, "state": {**sharp.data["start"], **state}},
    )  # fmt: skip
    own = probabilities(reading.logits[n - 1])
    gone = probabilities(reading.without[layer, head, n - 1])
    falling = own.sort(descending=True, stable=True).indices[:8].tolist()
    ids = [bar["id"] for bar in got["bars"]]
    assert ids == (falling + [int(gone.argmax())] * removed)
    shares = gone if removed else own
    for bar in got["bars"]:
        assert bar["share"] == pytest.approx(float(shares[bar["id"]]), abs=1e-6)
    before = [bar["before"] for bar in got["bars"][:8]]
    assert before == pytest.approx(own[falling].tolist(), abs=1e-6)
    assert got["others"] == pytest.approx(1 - float(shares[ids].sum()), abs=1e-6)


def twin(seed: int, count: int) -> list[float]:
    """Park and Miller's generator, written once more."""
    modulus = 2**31 - 1
    x = (seed * 7919 + 2017) % modulus or 1
    found = []
    for _ in range(count + 3):
        x = x * 48271 % modulus
        found.append((x - 1) / (modulus - 1))
    return found[3:]


def test_draws_are_seeded_and_follow_the_shares() -> None:
    got = run_node("return [0, 1, 31].map((x) => m.uniforms(x, 4000));", MODULE)
    for seed, numbers in zip((0, 1, 31), got, strict=True):
        assert numbers == twin(seed, 4000)
        assert min(numbers) >= 0 and max(numbers) < 1
    shares = {"shares": [0.5, 0.2, 0, 0.1], "others": {"share": 0.2}}
    script = "return m.uniforms(5, 4000).map((u) => m.pick(input, u));"
    picked = run_node(script, MODULE, shares)
    for place, share in ((0, 0.5), (1, 0.2), (2, 0), (3, 0.1), (-1, 0.2)):
        spread = 4 * (share * (1 - share) * 4000) ** 0.5
        assert abs(picked.count(place) - share * 4000) <= spread
    edges = run_node(
        "return [0, 0.4999, 0.5, 0.7, 0.8, 0.99].map((u) => m.pick(input, u));",
        MODULE, shares,
    )  # fmt: skip
    assert edges == [0, 0, 1, 3, -1, -1]


def test_numbers_are_written_alike() -> None:
    few = [0, 0.0004, 0.0005, 0.0341, 0.12345, 0.9996, 1]
    assert run_node("return input.map(m.percent);", MODULE, few) == [
        percent(x) for x in few
    ]


@pytest.mark.parametrize(
    "junk",
    [
        {"n": 1e9, "text": 7},
        {"n": -3, "layer": 99, "head": -1},
        {"temperature": 0.77, "k": 37, "p": 0.01, "draws": -4},
        {"temperature": 1e300, "k": 0, "p": 9},
    ],
)
def test_any_address_becomes_a_state_that_can_be_drawn(sharp, junk) -> None:
    payload = {"data": sharp.data, "state": {**sharp.data["start"], **junk}}
    state = run_node("return m.cleanState(input.state, input.data);", MODULE, payload)
    sharp.state = state  # Python agrees
    assert sharp.state == state


# ----------------------------------------------------------------- frame and refusals


def test_the_frame_says_what_is_true(sharp) -> None:
    start, reading = sharp.data["start"], sharp.readings[0]
    n = start["n"]
    assert n == reading.opening
    weights = reading.maps[start["layer"], start["head"], n - 1]
    most = sharp.data["names"][str(reading.ids[int(weights.argmax())])]
    assert f"most on “{most}” ({float(weights.max()):.2f})" in sharp.alt
    first = int(reading.logits[n - 1].argmax())
    share = percent(float(reading.logits[n - 1].softmax(-1).max()))
    assert f"are “{sharp.data['names'][str(first)]}” {share}" in sharp.alt
    frame = sharp.frame()
    assert f">{share}<" in frame and "not sense" in sharp.caption
    assert frame.count("scale(") == 4, "one map for each head"
    end = len(reading.ids)
    later = LiveTransformer(
        a_model(6.0), tokenizer(), OPENINGS, n=end, layer=1, head=0, removed=True
    )
    cached, again = cache_counts(reading.opening, end)
    assert f"{cached} with a cache, {again} without." in later.frame()
    assert f"; at the last piece {cached} and {again}." in frame
    gone = reading.without[start["layer"], start["head"], n - 1].softmax(-1)
    name = sharp.data["names"][str(int(gone.argmax()))]
    assert f": “{html.escape(name)}” {percent(float(gone.max()))}, " in frame
    gone = probabilities(reading.without[1, 0, end - 1])
    assert percent(float(gone.max())) in later.alt
    assert "without head L2·H1" in later.alt
    weights = reading.maps[1, 0, -1]
    most = sharp.data["names"][str(reading.ids[int(weights.argmax())])]
    assert f"most on “{most}” ({float(weights.max()):.2f})" in later.alt


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"texts": "She was"}, TypeError, "list of texts"),
        ({"texts": []}, ValueError, "got 0"),
        ({"texts": ["a"] * 7}, ValueError, "got 7"),
        ({"texts": [" "]}, ValueError, "no text"),
        ({"texts": [3]}, TypeError, "got 3"),
        ({"texts": ["so " * 80]}, ValueError, r"\d+ pieces; up to 31"),
        ({"layer": 1}, ValueError, "or neither"),
        ({"text": 2}, ValueError, "text must be"),
        ({"text": 3}, ValueError, "text must be"),
        ({"n": 0}, ValueError, "n must be"),
        ({"n": 99}, ValueError, "n must be"),
        ({"layer": 2, "head": 0}, ValueError, "layer must be"),
        ({"temperature": 0.77}, ValueError, "temperature must be"),
        ({"k": 7}, ValueError, "k must be"),
        ({"p": 0}, ValueError, "p must be"),
        ({"tokenizer": None}, ValueError, "or neither"),
    ],
)
def test_what_cannot_be_shown_is_named(wrong, error, named) -> None:
    made = {"tokenizer": tokenizer(), "texts": OPENINGS, **wrong}
    with pytest.raises(error, match=named):
        LiveTransformer(a_model(), **made)


def test_a_model_with_little_room_reads_shorter_texts() -> None:
    torch.manual_seed(0)
    model = widened(Gpt(GptConfig(**{**SMALL.__dict__, "max_seq_len": 16})))
    assert len(read_on(model, tokenizer(), "She was").ids) <= 16
    with pytest.raises(ValueError, match="up to 5 can be read"):
        read_on(model, tokenizer(), "It is a truth universally")


@pytest.mark.parametrize(
    "state",
    [{"layer": 2}, {"head": True}, {"n": 0}, {"text": 2}, {"text": 3}, {"k": 9},
     {"draws": -1}, {"ask": 3}, {"removed": 1}],
)  # fmt: skip
def test_states_that_cannot_be_drawn_are_refused(sharp, state) -> None:
    with pytest.raises(ValueError, match="must be"):
        sharp.state = state


# -------------------------------------------------------- the reader's own text, Python


def test_python_answers_the_readers_text(sharp) -> None:
    text = "He had “never”"
    sharp.state = {"ask": text}
    own = sharp.data["own"]
    exact = read_on(widened(a_model(6.0)), tokenizer(), text)
    assert (own["text"], own["ids"], own["opening"]) == (
        text, exact.ids, exact.opening,
    )  # fmt: skip
    assert {str(i) for i in own["ids"]} <= sharp.data["names"].keys()
    got = run_node(
        "const source = m.stored(input.own, input);"
        "return m.probabilities(source.logits(3), m.PLAIN).shares;",
        MODULE, sharp.data,
    )  # fmt: skip
    best = probabilities(exact.logits[2]).sort(descending=True).values[:64]
    assert got == pytest.approx(best.tolist(), abs=1e-6)
    before = sharp.data
    sharp.state = {"ask": text, "text": 2, "n": len(exact.ids)}
    assert sharp.data == before, "asked twice, read once"
    assert sharp.numbers()["next"][0][0] == pytest.approx(
        float(probabilities(exact.logits[-1]).max())
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [(" ", "no text"), ("so " * 80, "up to 31"), ("\ud800", "surrogate|str|cut")],
)
def test_python_says_why_a_text_cannot_be_read(sharp, text, named) -> None:
    sharp.state = {"ask": text}
    assert re.search(named, sharp.data["own"]["error"])
    assert "ids" not in sharp.data["own"]
    sharp.state = {"ask": "He had"}
    assert sharp.data["own"]["ids"]


# ------------------------------------------------------------ in Chromium, with Python


@pytest.fixture
def live(with_python):
    """The widget and a page on which it answers, if it does, its controls open."""

    def start(answers: bool = True):
        widget = LiveTransformer(a_model(6.0), tokenizer(), OPENINGS)
        page = with_python(widget, answers)
        open_more(page, page.locator(".dd-widget"))
        return page, widget

    return start


def said(page, words: str) -> None:
    page.wait_for_function(
        "(w) => document.querySelector('.lt-note').textContent.includes(w)", arg=words
    )


def test_a_text_goes_to_python_and_its_numbers_come_back(live) -> None:
    page, widget = live()
    box = page.get_by_label("A text of your own")
    hostile = "<img src=x> said"
    box.fill(hostile)
    box.press("Enter")
    said(page, "Shown above")
    own = widget.data["own"]
    assert own["text"] == hostile
    assert (widget.state["text"], widget.state["n"]) == (2, own["opening"])
    assert page.locator("img").count() == 0
    assert page.locator(".lt-piece").count() == len(own["ids"])
    page.get_by_role("button", name="Show as table").press("Enter")
    shown = read_tables(page.locator(".dd-widget"))
    exact = widget.numbers()
    assert shown["cache"] == exact["cache"]
    assert shown["next"][0] == pytest.approx(exact["next"][0], abs=1e-6)


def test_what_cannot_be_read_is_said_and_nothing_breaks(live) -> None:
    page, widget = live()
    box = page.get_by_label("A text of your own")
    box.press("Enter")
    said(page, "Type how a text begins first.")
    box.fill("so " * 60)
    box.press("Enter")
    said(page, "Python says: this text has")
    assert widget.state["text"] == 0
    box.fill("He had")
    box.press("Enter")
    said(page, "Shown above")
    box.fill("so " * 60)
    box.press("Enter")  # the text shown is gone: another one must be
    said(page, "Python says: this text has")
    assert page.locator(".lt-piece").count() == len(widget.readings[0].ids)


def test_a_silent_kernel_is_named(live) -> None:
    page, _ = live(answers=False)
    page.clock.install()
    box = page.get_by_label("A text of your own")
    box.fill("He had")
    box.press("Enter")
    page.clock.run_for(21_000)
    assert "kernel running" in page.locator(".lt-note").text_content()


# ------------------------------------------------------------------- the static page


def test_the_static_page_offers_no_box_that_cannot_work(site, open_page, sharp) -> None:
    page = open_page(site.url(site.write("live", [sharp]), "file"))
    open_more(page, page.locator(".dd-widget"))
    assert page.get_by_label("A text of your own").count() == 0
    assert "as a notebook" in page.locator(".dd-more").text_content()
    assert page.noise == []


def test_a_text_starts_with_its_whole_opening_and_ends_where_it_ends(
    site, open_page, sharp
) -> None:
    page = open_page(site.url(site.write("live-texts", [sharp])))
    page.get_by_role("slider", name="Pieces read").press("End")
    assert page.locator(".lt-unread").count() == 0
    assert "stored text ends" in page.locator(".lt-goes").text_content()
    page.get_by_role("combobox", name="Text").press("ArrowDown")
    second = sharp.readings[1]
    slider = page.get_by_role("slider", name="Pieces read")
    assert slider.input_value() == str(second.opening)
    assert slider.get_attribute("max") == str(len(second.ids))
    assert page.locator(".lt-unread").count() == len(second.ids) - second.opening
    slider.press("Home")
    assert page.locator(".lt-weight").first.text_content() == "1.00"
    goes = page.locator(".lt-goes").text_content()
    assert f"“{sharp.data['names'][str(second.ids[1])]}”" in goes


def test_a_draw_is_said_and_comes_again_after_a_reload(site, open_page, sharp) -> None:
    page = open_page(site.url(site.write("live-draws", [sharp])))
    draw = page.get_by_role("button", name="Draw a piece")
    for _ in range(12):
        draw.press("Enter")
    drawn = page.locator(".lt-drawn")
    words = drawn.text_content()
    assert words.startswith("Draws 3–12: ")
    reading, n = sharp.readings[0], sharp.readings[0].opening
    falling, ids = probabilities(reading.logits[n - 1]).sort(
        descending=True, stable=True
    )
    places = torch.searchsorted(
        falling.cumsum(-1), torch.tensor(twin(n, 12), dtype=torch.float64), right=True
    )
    names = [
        f"“{sharp.data['names'][str(int(ids[i]))]}”" if i < 64
        else "(one of 960 not listed)" for i in places[2:].tolist()
    ]  # fmt: skip
    assert words.startswith(f"Draws 3–12: {' '.join(names)}.")
    if int(ids[places[-1]]) != reading.ids[n]:
        assert "keeps to its path" in words
    page.wait_for_timeout(400)
    page.reload()
    page.wait_for_selector(".dd-widget")
    assert drawn.text_content() == words


def test_a_head_taken_out_changes_the_bars_and_comes_back(
    site, open_page, sharp
) -> None:
    page = open_page(site.url(site.write("live-out", [sharp])))
    shares = page.locator(".lt-next .lt-share")
    before = shares.all_inner_texts()
    name = live_transformer.short(*strongest(sharp.readings[0], sharp.state["n"]))
    page.get_by_role("button", name=f"Take {name} out").press("Enter")
    assert shares.all_inner_texts() != before
    assert page.get_by_role("button", name="Draw a piece").count() == 0
    page.wait_for_timeout(700)
    aloud = page.locator(".dd-widget > [aria-live=polite]").text_content()
    assert f"next without {name}" in aloud
    back = page.get_by_role("button", name=f"Put {name} back")
    assert back.evaluate("(b) => b === document.activeElement"), "the place was lost"
    open_more(page, page.locator(".dd-widget"))
    assert page.get_by_role("slider", name="Temperature").count() == 0
    back.press("Enter")
    assert shares.all_inner_texts() == before


def test_arrow_keys_walk_the_heads(site, open_page, sharp) -> None:
    page = open_page(site.url(site.write("live-grid", [sharp])))
    grid = page.get_by_role("grid")
    assert grid.locator("button[tabindex='0']").count() == 1
    grid.locator("button[tabindex='0']").focus()
    for keys, label in (
        (("Home", "ArrowUp", "ArrowLeft"), "Layer 1, head 1"),
        (("ArrowDown", "ArrowDown"), "Layer 2, head 1"),
        (("End", "ArrowRight"), "Layer 2, head 2"),
    ):
        for key in keys:
            page.keyboard.press(key)
        chosen = grid.locator("[aria-selected='true'] button")
        assert chosen.get_attribute("aria-label") == label
        assert chosen.evaluate("(b) => b === document.activeElement")
    assert page.locator(".lt-heading").first.text_content().startswith("L2·H2 at")
    assert page.noise == []


def test_longest_is_what_the_slider_allows(sharp) -> None:
    assert sharp.data["longest"] == LONGEST + STEPS


def test_the_slider_reaches_all_steps(site, open_page) -> None:
    """More steps than usual: the last piece can be typed."""
    openings = ["She was not at all so very sure that it was a truth"]
    widget = LiveTransformer(a_model(6.0), tokenizer(), openings, steps=30)
    T = len(widget.readings[0].ids)
    assert widget.data["longest"] == LONGEST + 30 > T > LONGEST + STEPS
    page = open_page(site.url(site.write("live-steps", [widget])))
    slider = page.get_by_role("slider", name="Pieces read")
    assert slider.get_attribute("max") == str(T)
    box = page.get_by_role("spinbutton", name="Pieces read, number")
    box.fill(str(T))
    box.press("Enter")
    assert slider.input_value() == str(T)
    assert page.locator(".lt-unread").count() == 0


def test_the_readers_text_is_shown_only_once_there_is_one(sharp) -> None:
    with pytest.raises(ValueError, match="text must be one of 0 … 1, got 2"):
        sharp.state = {"text": 2}
    assert len(sharp.numbers()["cache"]) == 1
    sharp.state = {"ask": "He had"}
    sharp.state = {"text": 2, "n": 1}
    assert sharp.numbers()["cache"] == [[1.0, 1.0]]
