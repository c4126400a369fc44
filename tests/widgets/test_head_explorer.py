# SPDX-License-Identifier: MIT
"""W14: the numbers of every head, one head removed, the reader's own sentence, and
refusals; in Python, in Node and in Chromium. Last, the same for a language model.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import os

import pytest
import torch
from scenarios import causal_numbers, head_numbers, read_tables
from scenarios import real as loaded

from conftest import WIDGETS, run_node
from deepdive.ablation import ablate
from deepdive.heads import rank_correlation
from deepdive.pretrained import (
    WeightsMissing,
    sentence_embedding,
    similarity,
)
from deepdive.widgets.head_explorer import (
    LONGEST,
    SENTENCES,
    CausalHeads,
    HeadExplorer,
    causal_verdict,
    correlation,
    head_maps,
    own_sentence,
    verdict,
)

MODULE = WIDGETS / "head_explorer.js"


@pytest.fixture(scope="module")
def real():
    """MiniLM and its tokenizer; CI must have them."""
    try:
        return loaded()
    except WeightsMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def maps(real):
    """All numbers of the figure, computed once."""
    return head_numbers()


@pytest.fixture(scope="module")
def widget(real, maps):
    """The figure as chapter 3 shows it."""
    return HeadExplorer(*real, maps=maps)


# ------------------------------------------------------------------------- the numbers


def test_every_row_of_every_map_is_a_distribution(maps):
    for weights, tokens in zip(maps.weights, maps.tokens, strict=True):
        T = len(tokens)
        assert weights.shape == (6, 12, T, T) and T <= 8
        assert weights.min() >= 0
        assert (weights.sum(-1) - 1).abs().max() < 1e-12


def test_the_maps_are_the_models_own_and_need_no_padding(real, maps):
    model, tokenizer = real
    for i, text in enumerate(SENTENCES):
        alone = own_sentence(model, tokenizer, text, SENTENCES[:1])
        raw = base64.b64decode(alone["weights"])
        numbers = [
            int.from_bytes(raw[k : k + 3], "little") / 0xFFFFFF
            for k in range(0, len(raw), 3)
        ]
        assert numbers == pytest.approx(maps.weights[i].flatten().tolist(), abs=1e-5)
    cosines = similarity(sentence_embedding(model, tokenizer, list(SENTENCES)))
    assert (cosines - maps.cosines).abs().max() < 1e-6


@pytest.mark.parametrize(("layer", "head"), [(0, 2), (3, 4), (5, 5)])
def test_a_removal_is_what_ablate_does(real, maps, layer, head):
    model, tokenizer = real
    with ablate(model, layer, head):
        cosines = similarity(sentence_embedding(model, tokenizer, list(SENTENCES)))
    assert (cosines - maps.without[layer, head]).abs().max() < 1e-6
    pairs = [
        float(cosines[i, j] - maps.cosines[i, j])
        for i in range(6)
        for j in range(i + 1, 6)
    ]
    assert maps.changes[layer, head].tolist() == pytest.approx(pairs, abs=1e-6)
    mean = sum(map(abs, pairs)) / 15
    assert float(maps.effect[layer, head]) == pytest.approx(mean, abs=1e-6)


def test_what_the_chapter_says_about_the_heads(maps):
    """Every number that the text of chapter 3 uses."""
    patterns, effect = maps.patterns, maps.effect
    assert float(patterns["previous"][0, 2]) == pytest.approx(1.000, abs=5e-4)
    assert float(patterns["next"][1, 8]) == pytest.approx(0.766, abs=5e-4)
    assert float(patterns["CLS"].mean()) == pytest.approx(0.594, abs=5e-4)
    assert int((patterns["CLS"] > 0.5).sum()) == 51
    assert divmod(int(effect.argmax()), 12) == (5, 5)
    assert divmod(int(effect.argmin()), 12) == (5, 1)
    assert float(effect.max()) == pytest.approx(0.0131, abs=5e-5)
    assert int((effect > effect[0, 2]).sum()) + 1 == 21
    assert correlation(maps.peak, effect) == pytest.approx(-0.31, abs=5e-3)
    assert rank_correlation(maps.peak, effect) == pytest.approx(-0.29, abs=5e-3)
    assert correlation(maps.peak_on_words, effect) == pytest.approx(0.26, abs=5e-3)
    cosines = maps.cosines
    named = [cosines[0, 1], cosines[0, 2], cosines[0, 3], cosines[4, 5]]
    assert [round(float(x), 3) for x in named] == [0.982, 0.920, 0.691, 0.613]


def test_sharpness_is_counted_by_hand_with_and_without_the_sink(maps):
    both = {0: [], 1: []}
    for w in maps.weights:
        for t in range(1, w.shape[-1] - 1):
            for first, rows in both.items():
                rows.append(w[:, :, t, first:].max(-1).values)
    assert torch.allclose(maps.peak, torch.stack(both[0]).mean(0), atol=1e-12)
    assert torch.allclose(maps.peak_on_words, torch.stack(both[1]).mean(0), atol=1e-12)


def test_the_verdict_is_what_the_numbers_say(maps, widget):
    said = verdict(maps)
    assert said == (
        "Sharp maps are mostly sinks on [CLS]; leave that column out and the "
        "correlation turns from −0.31 to +0.26. The picture does not settle it; "
        "removal does."
    )
    frame = widget.frame()
    for number in ("correlation −0.31", "correlation +0.26"):
        assert number in frame
    assert "−0.31" in widget.alt and "+0.26" in widget.alt
    # Other numbers, other words: no sinks, and no change of sign.
    spread = [torch.full_like(w, 1 / w.shape[-1]) for w in maps.weights]
    noise = torch.Generator().manual_seed(0)
    spread = [w + 0.01 * torch.rand(w.shape, generator=noise) for w in spread]
    other = verdict(dataclasses.replace(maps, weights=spread))
    assert other.startswith("Leave the [CLS] column out")


def test_patterns_are_counted_by_hand(maps):
    total = {name: [] for name in maps.patterns}
    for w in maps.weights:
        T = w.shape[-1]
        for t in range(1, T - 1):
            total["CLS"].append(w[:, :, t, 0])
            total["SEP"].append(w[:, :, t, T - 1])
            total["itself"].append(w[:, :, t, t])
            if t > 1:
                total["previous"].append(w[:, :, t, t - 1])
            if t < T - 2:
                total["next"].append(w[:, :, t, t + 1])
    for name, found in total.items():
        mean = torch.stack(found).mean(0)
        assert torch.allclose(maps.patterns[name], mean, atol=1e-12), name


def test_value_lengths_are_those_of_v(real, maps):
    model, tokenizer = real
    batch = tokenizer.encode(list(SENTENCES))
    seen = []
    hook = model.blocks[2].attention.v_proj.register_forward_hook(
        lambda m, a, out: seen.append(out)
    )
    with torch.no_grad():
        model(*batch)
    hook.remove()
    lengths = seen[0].unflatten(-1, (12, 32)).norm(dim=-1)  # (B, T, H)
    words = [
        lengths[b, t]
        for b, tokens in enumerate(maps.tokens)
        for t in range(1, len(tokens) - 1)
    ]
    assert torch.allclose(
        maps.value_lengths[2, :, 1].float(), torch.stack(words).mean(0), atol=1e-4
    )
    assert torch.allclose(
        maps.value_lengths[2, :, 0].float(), lengths[:, 0].mean(0), atol=1e-4
    )


def test_correlations_are_those_of_the_textbook():
    x = torch.tensor([1.0, 2.0, 3.0, 5.0], dtype=torch.float64)
    y = torch.tensor([2.0, 1.0, 9.0, 10.0], dtype=torch.float64)
    assert correlation(x, y) == pytest.approx(20.5 / 568.75**0.5, abs=1e-12)
    assert rank_correlation(x, y) == pytest.approx(0.8, abs=1e-12)
    assert rank_correlation(x, x.exp()) == pytest.approx(1)


# -------------------------------------------------------------------- data, size, Node


def test_the_data_stay_small(widget):
    data = json.dumps(widget.data).encode()
    assert len(gzip.compress(data)) < 100_000
    assert len(gzip.compress(widget.frame().encode())) < 10_000


def test_node_unpacks_and_sorts_what_python_computed(widget, maps):
    script = """
        const maps = input.sentences.map((x) => m.unpack(x, input.layers, input.heads));
        return { maps, pairs: m.pairs(input, 3, 4), ranking: m.ranking(input),
            pearson: m.correlation(input.peak.flat(), input.effect.flat()),
            manner: m.manner(input, 1, 8) };
    """
    got = run_node(script, MODULE, widget.data)
    for theirs, ours in zip(got["maps"], maps.weights, strict=True):
        assert (torch.tensor(theirs, dtype=torch.float64) - ours).abs().max() < 1e-7
    i, j = torch.triu_indices(6, 6, 1)
    after = [pair["after"] for pair in got["pairs"]]
    assert after == pytest.approx(maps.without[3, 4][i, j].tolist(), abs=1e-8)
    assert [p["i"] for p in got["pairs"]] == i.tolist()
    order = maps.effect.flatten().argsort(descending=True).tolist()
    assert [12 * x["layer"] + x["head"] for x in got["ranking"]] == order
    assert got["pearson"] == pytest.approx(
        correlation(maps.peak, maps.effect), abs=1e-6
    )
    assert got["manner"]["name"] == "next"


# -------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("sentences", "error", "named"),
    [
        ("cats chase mice", TypeError, "list of sentences"),
        (["cats chase mice"], ValueError, "got 1"),
        (["a b"] * 9, ValueError, "got 9"),
        (["cats chase mice", "cats"], ValueError, "'cats' has 1 word pieces"),
        (["cats chase mice", "cats " * 15], ValueError, "17 pieces"),
        (["cats chase mice", 3], TypeError, "got 3"),
    ],
)
def test_sentences_that_cannot_be_drawn_are_named(real, sentences, error, named):
    with pytest.raises(error, match=named):
        head_maps(*real, sentences)


def random_weights(*shape):
    """Rows that sum to 1."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(shape, generator=generator).softmax(-1)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 3, 3), (1, 2, 3, 5)])
def test_one_sentence_is_drawn_whatever_its_shape(shape):
    _, H, T, S = shape
    rows, columns = list("abcdefgh")[:T], list("ABCDEFGH")[:S]
    weights = random_weights(*shape)
    widget = HeadExplorer.from_weights({"blocks.0.attention": weights}, rows, columns)
    script = "return m.unpack(input.sentences[0], input.layers, input.heads);"
    got = torch.tensor(run_node(script, MODULE, widget.data))
    assert got.shape == (1, H, T, S)
    assert (got - weights).abs().max() < 1e-6
    assert "<svg" in widget.frame()


@pytest.mark.parametrize("shape", [(2, 3, 3, 3), (16, 12, 8, 8)])
def test_a_batch_is_refused_by_name(shape):
    words = list("abcdefgh")[: shape[-1]]
    with pytest.raises(ValueError, match=rf"batch axis .* holds {shape[0]} sentences"):
        HeadExplorer.from_weights(random_weights(*shape), words)


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        (random_weights(3, 3), "must be"),
        (random_weights(1, 2, 4, 3), "4 queries and 3 keys, but 3 and 3 words"),
        (random_weights(1, 1, 3, 3) * 9, r"0 … 1"),
        (random_weights(1, 1, 3, 3) * torch.nan, r"0 … 1"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, named):
    with pytest.raises(ValueError, match=named):
        HeadExplorer.from_weights(weights, list("abc"))


@pytest.mark.parametrize(
    "state",
    [{"layer": 6}, {"head": -1}, {"sentence": 7}, {"view": "x"}, {"layer": True}],
)
def test_states_that_cannot_be_drawn_are_refused(widget, state):
    with pytest.raises(ValueError, match="must be"):
        widget.state = state


# ---------------------------------------------------- the reader's own sentence, Python


def test_python_answers_the_readers_sentence(real, maps):
    widget = HeadExplorer(*real, maps=maps)
    widget.state = {"ask": "the <b>cat</b> sat"}
    own = widget.data["own"]
    assert own["rows"][1:4] == ["the", "<", "b"]
    assert len(own["cosines"]) == 6
    before = widget.data
    widget.state = {"ask": "the <b>cat</b> sat", "layer": 3}
    assert widget.data is before or widget.data == before
    widget.state = {"ask": "cats chase mice"}
    assert widget.data["own"]["cosines"][0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "named"),
    [(" ", "no text"), ("cats " * 15, f"up to {LONGEST}"), ("\ud800", "surrogate|str")],
)
def test_python_says_why_a_sentence_cannot_be_read(real, maps, text, named):
    import re

    widget = HeadExplorer(*real, maps=maps)
    widget.state = {"ask": text}
    assert re.search(named, widget.data["own"]["error"])
    assert "weights" not in widget.data["own"]


# ------------------------------------------------------------ in Chromium, with Python


@pytest.fixture
def live(real, maps, with_python):
    """The widget and a page on which it answers, if it does, its controls open."""

    def start(answers: bool = True):
        widget = HeadExplorer(*real, maps=maps)
        page = with_python(widget, answers)
        page.locator("details.dd-more > summary").press("Enter")
        return page, widget

    return start


def test_a_sentence_goes_to_python_and_its_maps_come_back(live):
    page, widget = live()
    box = page.get_by_label("Your own sentence")
    hostile = "<img src=x> sat"
    box.fill(hostile)
    box.press("Enter")
    page.wait_for_function(
        "document.querySelector('.dd-own-note').textContent.startsWith('Shown')"
    )
    assert widget.data["own"]["text"] == hostile
    assert widget.state["sentence"] == 6
    assert page.locator("img").count() == 0
    assert hostile in page.locator(".dd-heading").first.text_content()
    page.get_by_role("button", name="Show as table").press("Enter")
    shown = read_tables(page.locator(".dd-widget"))["weights"]
    script = "return m.unpack(input.own, input.layers, input.heads)[0][2];"
    assert shown == run_node(script, MODULE, widget.data)


def test_what_cannot_be_read_is_said_and_nothing_breaks(live):
    page, widget = live()
    box, note = page.get_by_label("Your own sentence"), page.locator(".dd-own-note")
    box.press("Enter")
    assert note.text_content() == "Type a sentence first."
    box.fill("cats " * 20)
    box.press("Enter")
    page.wait_for_function(
        "document.querySelector('.dd-own-note').textContent.startsWith('Python')"
    )
    assert "22 pieces" in note.text_content()
    assert widget.state["sentence"] == 0
    box.fill("dogs bark")
    box.press("Enter")
    page.wait_for_function(
        "document.querySelector('.dd-own-note').textContent.startsWith('Shown')"
    )


def test_a_sentence_that_is_gone_is_not_drawn(live):
    """The reader's own sentence is shown, and the next one cannot be read."""
    page, _ = live()
    box, note = page.get_by_label("Your own sentence"), page.locator(".dd-own-note")
    box.fill("dogs bark")
    box.press("Enter")
    page.wait_for_function(
        "document.querySelector('.dd-own-note').textContent.startsWith('Shown')"
    )
    box.fill("cats " * 20)
    box.press("Enter")
    page.wait_for_function(
        "document.querySelector('.dd-own-note').textContent.startsWith('Python')"
    )
    assert "22 pieces" in note.text_content()
    assert "cats chase mice" in page.locator(".dd-heading").first.text_content()


def test_a_silent_kernel_is_named(live):
    page, _ = live(answers=False)
    page.clock.install()
    box = page.get_by_label("Your own sentence")
    box.fill("dogs bark")
    box.press("Enter")
    page.clock.run_for(11_000)
    assert "kernel running" in page.locator(".dd-own-note").text_content()


# ------------------------------------------------------------------- the static page


def test_the_static_page_offers_no_box_that_cannot_work(site, open_page, widget):
    page = open_page(site.url(site.write("heads", [widget]), "file"))
    page.locator("details.dd-more > summary").press("Enter")
    assert page.get_by_label("Your own sentence").count() == 0
    assert "open this chapter as a notebook" in page.locator(".dd-more").text_content()
    assert page.noise == []


def test_arrow_keys_walk_the_grid_and_one_head_is_in_the_tab_order(
    site, open_page, widget
):
    page = open_page(site.url(site.write("heads-grid", [widget])))
    grid = page.get_by_role("grid")
    assert grid.locator("button[tabindex='0']").count() == 1
    grid.locator("button[tabindex='0']").focus()

    def after(*keys):
        for key in keys:
            page.keyboard.press(key)
        chosen = grid.locator("[aria-selected='true'] button")
        assert chosen.evaluate(
            "(b) => b === document.activeElement && b.tabIndex === 0"
        )
        return chosen.get_attribute("aria-label")

    assert after("ArrowUp", "ArrowLeft") == "Layer 1, head 2"
    assert after("Home", "ArrowLeft") == "Layer 1, head 1"
    assert after("End") == "Layer 1, head 12"
    assert after("Control+End", "ArrowDown", "ArrowRight") == "Layer 6, head 12"
    assert after("Control+Home", "ArrowDown") == "Layer 2, head 1"
    page.wait_for_timeout(700)
    assert "Layer 2, head 1:" in page.locator("[aria-live]").first.text_content()
    assert page.noise == []


@pytest.mark.parametrize("size", [(683, 512), (1280, 800), (360, 740)])
def test_arrows_change_what_is_on_screen(site, open_page, widget, size):
    page = open_page(
        site.url(site.write("heads-screen", [widget])),
        viewport={"width": size[0], "height": size[1]},
    )
    page.locator(".dd-widget").evaluate("(el) => el.scrollIntoView()")
    page.get_by_role("grid").locator("button[tabindex='0']").focus()
    brief = page.locator(".he-brief")
    before = brief.inner_text()
    page.keyboard.press("ArrowDown")
    assert brief.inner_text() != before and brief.inner_text().startswith("L2·H3")
    chosen = page.locator("[aria-selected='true']").bounding_box()
    for box in (chosen, brief.bounding_box()):
        assert box["y"] >= 0 and box["y"] + box["height"] <= size[1]


@pytest.mark.parametrize("size", [(320, 256), (320, 480), (640, 512)])
def test_nothing_covers_the_head_that_has_the_focus(site, open_page, widget, size):
    page = open_page(
        site.url(site.write("heads-cover", [widget])),
        viewport={"width": size[0], "height": size[1]},
    )
    page.get_by_role("grid").locator("button[tabindex='0']").focus()
    for key in ["ArrowDown"] * 5 + ["ArrowRight"] * 3 + ["ArrowUp"] * 5:
        page.keyboard.press(key)
        assert page.evaluate(
            """() => {
                const b = document.activeElement, r = b.getBoundingClientRect();
                const top = document.elementFromPoint(
                    r.left + r.width / 2, r.top + r.height / 2);
                return b.contains(top);
            }"""
        ), key


def test_a_change_stays_on_one_line_and_the_button_near_it(site, open_page, widget):
    page = open_page(
        site.url(site.write("heads-lines", [widget])),
        viewport={"width": 683, "height": 512}, device_scale_factor=1.5,
    )  # fmt: skip
    button = page.get_by_role("button", name="Remove this head")
    button.press("Enter")
    lines = page.locator(".dd-change").evaluate_all(
        """(all) => all.map((e) => {
            const text = document.createRange();
            text.selectNodeContents(e);
            return text.getClientRects().length; })"""
    )
    assert len(lines) == 15 and set(lines) == {1}
    page.wait_for_timeout(700)
    assert page.locator("[aria-live]").first.text_content().startswith("L1·H3 removed.")
    assert page.get_by_role("button", name="Put it back", pressed=True).count() == 0
    put = page.get_by_role("button", name="Put it back").bounding_box()
    table = page.locator(".dd-pairs").bounding_box()
    assert put["y"] < table["y"]
    assert table["y"] + table["height"] - put["y"] < 512


def test_the_ranking_leads_to_a_head_and_keeps_the_focus(site, open_page, widget):
    page = open_page(site.url(site.write("heads-rank", [widget])))
    page.locator(".dd-predict > summary").press("Enter")
    last = page.get_by_role("button", name="L6·H2, number 72: show")
    last.focus()
    page.keyboard.press("Enter")
    assert "L6·H2 reads" in page.locator(".dd-heading").first.text_content()
    assert page.evaluate("document.activeElement.textContent") == "L6·H2"


def test_it_fits_a_phone(site, open_page, widget):
    name = site.write("heads-phone", [widget])
    for width in (320, 360):
        page = open_page(site.url(name), viewport={"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        small = page.evaluate(
            """[...document.querySelectorAll(".dd-widget button, .dd-widget select")]
                .filter((b) => b.offsetParent)
                .map((b) => b.getBoundingClientRect())
                .filter((r) => r.width < 24 || r.height < 24).length"""
        )
        assert small == 0


# ------------------------------------------------------------------ a language model


@pytest.fixture(scope="module")
def causal():
    """All numbers of the figure for a packaged language model; CI must have it."""
    try:
        return causal_numbers()
    except WeightsMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def heads(causal):
    return CausalHeads(causal)


def test_the_language_models_data_stay_small(heads):
    data = json.dumps(heads.data).encode()
    assert len(data) < 200_000
    assert len(gzip.compress(heads.frame().encode())) < 10_000


def test_node_unpacks_what_python_saw_below_the_diagonal(heads, causal):
    script = """
        return input.sentences.map((x) => m.unpack(x, input.layers, input.heads));
    """
    for theirs, ours in zip(
        run_node(script, MODULE, heads.data), causal.weights, strict=True
    ):
        T = ours.shape[-1]
        ahead = {theirs[0][3][i][j] for i in range(T) for j in range(i + 1, T)}
        assert ahead == {None}
        flat = [
            [w or 0 for w in row] for maps in theirs for map_ in maps for row in map_
        ]
        found = torch.tensor(flat, dtype=torch.float64).reshape(ours.shape)
        assert (found - ours).abs().max() < 1e-7


def test_node_counts_costs_and_copies_as_python_does(heads, causal):
    script = """
        const at = (i, l, k) => m.unpack(input.sentences[i], input.layers, input.heads)[l][k];
        return {
            costs: m.costs(input.sentences[1], 3, 1),
            twice: [8, 9].map((i) => m.twice(input.sentences[i], at(i, 2, 3), 2, 3)),
            ranking: m.ranking(input), manner: m.manner(input, 3, 2),
        };
    """  # noqa: E501
    got = run_node(script, MODULE, heads.data)
    rows = [[c["before"], c["after"], c["change"]] for c in got["costs"]]
    before, after = causal.losses[1], causal.without[1][3, 1]
    expected = torch.stack([before, after, after - before], 1)
    assert (torch.tensor(rows).double() - expected).abs().max() < 2e-6
    assert [c["piece"] for c in got["costs"]] == causal.tokens[1][1:]
    for i, found in zip((8, 9), got["twice"], strict=True):
        ours = causal.repeats[i]
        assert found["score"] == pytest.approx(float(ours["induction"][2, 3]), abs=1e-6)
        assert found["before"] == pytest.approx(ours["losses"].tolist(), abs=2e-6)
        assert found["after"] == pytest.approx(ours["without"][2, 3].tolist(), abs=2e-6)
    order = causal.effect.flatten().argsort(descending=True).tolist()
    assert [4 * x["layer"] + x["head"] for x in got["ranking"]] == order
    assert got["ranking"][-1]["effect"] < 0, "no head that is better away"
    assert got["manner"]["name"] == "first"
    assert got["manner"]["words"].endswith("to the first piece")


def test_the_first_head_is_the_one_whose_removal_costs_most(heads, causal):
    most = divmod(int(causal.effect.argmax()), 4)
    assert (heads.state["layer"], heads.state["head"]) == most == (3, 1)
    other = CausalHeads(causal, layer=0, text=-1, name="other")
    assert [other.state[k] for k in ("layer", "head", "sentence")] == [0, 1, 9]
    assert "random pieces, twice" in other.alt and "L1·H2" in other.frame()


def test_what_is_said_of_the_language_model_are_its_numbers(heads, causal):
    said = causal_verdict(causal)
    pair = [
        correlation(p, causal.effect) for p in (causal.peak, causal.peak_beyond_first)
    ]
    for number in pair:
        assert f"{'+' if number > 0 else '−'}{abs(number):.2f}" in said
    assert f"without {int((causal.effect < 0).sum())} of the 16 heads" in said
    assert f"+{causal.effect.max():.3f} nats a piece" in heads.alt


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"layer": 4}, "layer must be one of 0 … 3, got 4"),
        ({"head": -1}, "head must be"),
        ({"head": True}, "head must be"),
        ({"text": 10}, "text must be one of -10 … 9"),
    ],
)
def test_heads_and_texts_that_are_not_there_are_refused(causal, asked, named):
    with pytest.raises(ValueError, match=named):
        CausalHeads(causal, **asked)


def test_only_a_language_models_numbers_are_taken(maps):
    with pytest.raises(TypeError, match="maps must be a CausalMaps"):
        CausalHeads(maps)


def test_the_frame_hatches_what_lies_ahead(heads):
    assert heads.frame().count('"M1 0v1h1') == 17  # sixteen small maps and a large one
    assert "hollow: falls" in heads.frame()


def test_removal_shows_what_each_piece_costs_then(site, open_page, heads, causal):
    page = open_page(site.url(site.write("causal", [heads]), "file"))
    assert page.locator("details.dd-more").count() == 0, "no box for another text"
    bars = page.get_by_role("group", name="What each piece costs").locator("rect")
    T = len(causal.tokens[0])
    assert bars.count() == T - 1
    tall = [float(bars.nth(i).get_attribute("height")) for i in range(T - 1)]
    order = torch.tensor(tall).argsort()
    assert order.tolist() == causal.losses[0].argsort().tolist()
    page.get_by_role("button", name="Remove this head").press("Enter")
    words = page.locator(".he-lower").inner_text()
    before, after = causal.losses[0].mean(), causal.without[0][3, 1].mean()
    assert f"{before:.3f} before (marks), {after:.3f} without" in words
    assert "ablate(model, 3, 1)" in words
    less = page.locator(".dd-bar.dd-less")
    assert less.count() == int((causal.effect < 0).sum())
    page.locator("select").select_option(index=9)
    page.wait_for_timeout(700)
    said = page.locator("[aria-live]").first.text_content()
    score = float(causal.repeats[9]["induction"][3, 1])
    assert f"gives {score:.3f} of its weight to the piece after" in said
    assert page.locator(".he-brief").inner_text().startswith(f"L4·H2: {score:.3f}")
    assert page.noise == []


def test_later_layers_keep_their_numbers(site, open_page, causal):
    later = dataclasses.replace(causal, first_layer=16)
    widget = CausalHeads(later, layer=18, head=3)
    assert widget.state["layer"] == 2
    assert "L19·H4" in widget.alt and "L19·H4, closely" in widget.frame()
    with pytest.raises(ValueError, match="layer must be one of 16 … 19, got 2"):
        CausalHeads(later, layer=2)
    page = open_page(site.url(site.write("causal-later", [widget])))
    assert page.locator(".he-brief").inner_text().startswith("L19·H4: ")
    assert page.get_by_role("button", name="Layer 17, head 1", exact=True).count() == 1
    assert "ablate(model, 18, 3)" in page.locator(".he-lower").inner_text()


def test_the_language_models_heads_fit_a_phone(site, open_page, heads):
    name = site.write("causal-phone", [heads])
    for width in (320, 360):
        page = open_page(site.url(name), viewport={"width": width, "height": 740})
        page.locator("select").select_option(index=9)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
