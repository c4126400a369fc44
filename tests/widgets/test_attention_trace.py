# SPDX-License-Identifier: MIT
"""The attention trace: its numbers in Python and Node, its ties, its calculations."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import WIDGETS, run_node
from deepdive import trace
from deepdive.masks import Causal
from deepdive.widgets.attention_trace import (
    AttentionTrace,
    exact_ties,
    notices,
    weight_in_full,
)

SCRIPT = WIDGETS / "attention_trace.js"
GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden/cats_chase_mice.json").read_text("utf-8")
)
NAMES = ("X", "W_Q", "W_K", "W_V", "W_O")


def made(T: int, d: int, seed: int, places: int = 1) -> trace.Example:
    """An example of decimals, so that ties and zero queries do occur."""
    dice = random.Random(seed)

    def some(rows: int) -> torch.Tensor:
        return trace.matrix(
            [
                [
                    round(dice.choice((0, 0, 1, dice.uniform(-2, 2))), places)
                    for _ in range(d)
                ]
                for _ in range(rows)
            ]
        )

    words = tuple("abcdefgh"[:T])
    return trace.Example(words, some(T), some(d), some(d), some(d), some(d))


def as_input(example: trace.Example) -> dict:
    named = {name: getattr(example, name).tolist() for name in NAMES}
    return {"words": list(example.words), **named}


# ------------------------------------------------------------------- the calculation


@pytest.mark.parametrize("n_heads", [1, 2])
def test_data_holds_the_golden_numbers(n_heads: int) -> None:
    data = AttentionTrace().data["traces"][str(n_heads)]
    heads = [GOLDEN["single_head"]] if n_heads == 1 else GOLDEN["two_heads"]["heads"]
    for h, head in enumerate(heads):
        for name in ("raw_scores", "scaled_scores", "weights"):
            assert torch.allclose(
                trace.matrix(data[name][h]), trace.matrix(head[name]), rtol=0, atol=1e-6
            ), name
    final = GOLDEN["single_head" if n_heads == 1 else "two_heads"]["output"]
    assert torch.allclose(
        trace.matrix(data["output"]), trace.matrix(final), rtol=0, atol=1e-6
    )


def test_page_computes_what_python_computes() -> None:
    cases = []
    for seed, (T, d, H) in enumerate(
        [(1, 2, 1), (3, 4, 2), (4, 6, 3), (5, 4, 4), (8, 8, 2)]
    ):
        for causal in (False, True):
            for reverse in (False, True):
                cases.append((made(T, d, seed), H, causal, reverse))
    payload = [
        {"input": as_input(e), "heads": H, "options": {"causal": c, "reversed": r}}
        for e, H, c, r in cases
    ]
    script = "return input.map((c) => m.attend(c.input, c.heads, c.options));"
    for (example, H, causal, reverse), got in zip(
        cases, run_node(script, SCRIPT, payload), strict=True
    ):
        if reverse:
            example = example.reorder(list(range(len(example.words)))[::-1])
        want = trace.attention(example, H, Causal() if causal else None)
        assert set(got) == set(want)
        for name, value in want.items():
            if isinstance(value, torch.Tensor):
                assert torch.allclose(
                    torch.tensor(got[name], dtype=torch.float64),
                    value,
                    rtol=0,
                    atol=1e-12,
                ), (name, H, causal, reverse)
        assert got["words"] == list(example.words)


def test_page_refuses_heads_that_do_not_divide() -> None:
    script = "try { m.attend(input, 3); } catch (e) { return e.message; }"
    assert (
        run_node(script, SCRIPT, as_input(trace.CATS))
        == "width 4 cannot be cut into 3 heads"
    )


# ------------------------------------------------------------------------------ ties


def test_ties_of_the_example() -> None:
    said = {n: [] for n in (1, 2)}
    for n in said:
        said[n] = notices(
            trace.to_json(trace.attention(n_heads=n)), exact_ties(trace.CATS, n)
        )
    assert said == {
        1: ["exact tie: chase gives cats and mice 0.384 each"],
        2: [
            "head 1, exact tie: cats gives cats and mice 0.371 each",
            "head 2, exact tie: chase gives chase and mice 0.401 each",
            "head 2, zero query: mice gives even thirds",
        ],
    }


def rounded(last: float, a: float = 0.1, b: float = 0.2) -> trace.Example:
    """Scores a + b and `last`: 0.1 + 0.2 and 0.3 are equal, though not in binary."""
    return trace.Example(
        words=("a", "b"),
        X=trace.matrix([[a, b], [last, 0.0]]),
        W_Q=trace.matrix([[1, 0], [0, 1]]),
        W_K=trace.matrix([[1, 0], [1, 0]]),
        W_V=torch.eye(2).double(),
        W_O=torch.eye(2).double(),
    )


def test_a_tie_is_a_tie_of_decimals_not_of_binary_rounding() -> None:
    scores = trace.attention(rounded(0.3))["raw_scores"][0]
    assert scores[0, 0] != scores[0, 1], "binary rounding hides this tie"
    assert exact_ties(rounded(0.3))[0][0] == ([[0, 1]], False)
    assert exact_ties(rounded(0.30000000000000004))[0][0] == ([], False)


def test_page_finds_the_same_ties() -> None:
    cases = [
        (made(T, 4, seed, 0), H, c)
        for seed in range(12)
        for T, H, c in [(4, 2, seed % 2)]
    ]
    cases += [(trace.CATS, 1, 0), (trace.CATS, 2, 0), (trace.CATS, 2, 1)]
    cases += [(rounded(x), 1, 0) for x in (0.3, 0.30000000000000004, 1e-7, 30)]
    cases += [(rounded(0.75, 0.5, 0.25), 1, 0), (rounded(3e-7, 1e-7, 2e-7), 1, 0)]
    payload = [
        {"input": as_input(e), "heads": H, "causal": bool(c)} for e, H, c in cases
    ]
    script = """return input.map((c) => {
        const r = m.attend(c.input, c.heads, c), t = m.exactTies(r, c.causal);
        const ties = t.map((rows) => rows.map(({ groups, zero }) => [groups, zero]));
        return [ties, m.tieNotices(r, t)]; });"""
    found = 0
    for (example, H, causal), (ties, said) in zip(
        cases, run_node(script, SCRIPT, payload), strict=True
    ):
        want = exact_ties(example, H, bool(causal))
        assert [[(groups, zero) for groups, zero in rows] for rows in ties] == want
        result = trace.to_json(
            trace.attention(example, H, Causal() if causal else None)
        )
        assert said == notices(result, want)
        found += len(said)
    assert found > 20, "the examples hold too few ties to prove anything"


# ---------------------------------------------------------------------- calculations


def explained(pick: str, n_heads: int = 1, causal: bool = False) -> str:
    script = (
        "const r = m.attend(input.example, input.n, { causal: input.causal });"
        "return m.plainText(m.explain(r, input.pick, input.causal).parts);"
    )
    payload = {
        "example": as_input(trace.CATS),
        "n": n_heads,
        "pick": pick,
        "causal": causal,
    }
    return run_node(script, SCRIPT, payload)


@pytest.mark.parametrize(
    ("pick", "n_heads", "text"),
    [
        ("raw_scores.0.0.1", 1, "1.3·0.6 + 0·0 + 1·1 + 1·1 = 2.78"),
        ("scaled_scores.0.0.1", 1, "2.78 ÷ √4 = 2.78 ÷ 2 = 1.39"),
        (
            "weights.0.0.1",
            1,
            "e^1.39 / (e^0.65 + e^1.39 + e^1.15) = 4.015 / 9.089 = 0.442",
        ),
        ("head_outputs.0.0.0", 1, "0.211·0.5 + 0.442·1 + 0.347·0.5 = 0.721"),
        ("Q.0.0.0", 1, "1·1 + 0·0 + 1·0.3 + 0·0 = 1.3"),
        ("raw_scores.1.0.1", 2, "1·1 + 1·1 = 2"),
        ("scaled_scores.0.0.1", 2, "0.78 ÷ √2 = 0.78 ÷ 1.414… = 0.552"),
        ("output.0.2.3", 2, "0.555·0 + 0.202·0 + 0.333·0 + 0.833·1 = 0.833"),
    ],
)
def test_calculation_in_full(pick: str, n_heads: int, text: str) -> None:
    assert explained(pick, n_heads) == text


def calculator(text: str) -> list[float]:
    """What a calculator gives for each part between the equals signs."""
    sides = text.replace("−", "-").replace("…", "").split(" = ")
    names = {"e": math.e, "root": math.sqrt}
    found = []
    for side in sides:
        for sign, python in (("·", "*"), ("÷", "/"), ("^", "**"), ("√", "root ")):
            side = side.replace(sign, python)
        side = re.sub(r"root (\d+)", r"root(\1)", side)
        found.append(eval(side, names))
    return found


@pytest.mark.parametrize("n_heads", [1, 2])
def test_every_printed_sum_can_be_redone_on_a_calculator(n_heads: int) -> None:
    script = """const r = m.attend(input.example, input.n), said = [];
        for (const key of ["Q", "K", "V", "output"]) r[key].forEach((row, i) =>
            row.forEach((_, j) => said.push(`${key}.0.${i}.${j}`)));
        for (const key of ["raw_scores", "scaled_scores", "weights", "head_outputs"])
            r[key].forEach((matrix, h) => matrix.forEach((row, i) =>
                row.forEach((_, j) => said.push(`${key}.${h}.${i}.${j}`))));
        return said.map((pick) => [pick, m.plainText(m.explain(r, pick).parts)]);"""
    odd = made(4, 4, 7)
    for example in (trace.CATS, odd):
        payload = {"example": as_input(example), "n": n_heads}
        for pick, text in run_node(script, SCRIPT, payload):
            sides = calculator(text)
            if pick.startswith("weights"):
                *_, printed = sides
                powers, fraction = re.findall(r"[\d.]+ / [\d.]+", text), sides[-2]
                assert f"{fraction:.3f}" == f"{printed:.3f}", (pick, text)
                if len(sides) == 3:
                    top, bottom = text.split(" = ")[0].split(" / ")
                    for part, shown in zip(
                        (top, bottom), powers[-1].split(" / "), strict=True
                    ):
                        places = max(3, len(shown.partition(".")[2]))
                        redone = round(calculator(part)[0], places)
                        assert redone == float(shown), (pick, text)
            else:
                for side in sides[:-1]:
                    assert abs(side - sides[-1]) <= 0.0005 + 1e-9, (pick, text)


@pytest.mark.parametrize("n_heads", [1, 2])
def test_python_writes_a_weight_out_as_the_page_does(n_heads: int) -> None:
    result = trace.to_json(trace.attention(n_heads=n_heads))
    for h in range(n_heads):
        for i in range(3):
            for j in range(3):
                pick = f"weights.{h}.{i}.{j}"
                assert weight_in_full(result, h, i, j) == explained(pick, n_heads)
    assert explained("weights.0.0.0", 2).startswith("e^0.91924 / (e^0.91924 +")


@pytest.mark.parametrize("n_heads", [1, 2])
def test_the_row_of_chase_is_open_at_first(n_heads: int) -> None:
    script = """return m.STEPS.map((_, step) => {
        const s = { ...input.start, step };
        return m.pickOf(s, m.current(input, s)); });"""
    picks = run_node(script, SCRIPT, AttentionTrace(n_heads=n_heads).data)
    opened = [picks[step] for step in (0, 5, 6, 7)]
    assert [p.split(".", 1)[1] for p in opened] == ["0.1.0"] * 4  # chase → cats
    frame = AttentionTrace(n_heads=n_heads).frame()
    assert "chase to cats: e^1" in frame


def test_the_diagrams_w_o_is_the_identity() -> None:
    text = (WIDGETS.parent / "diagrams/multi_head.svg").read_text("utf-8")
    part = text.split("concat</text>")[1].split("</g>")[0]
    paths = re.findall(r'fill-opacity="([\d.]+)" d="([^"]+)"', part)
    cells = {
        place: float(a) for a, d in paths for place in re.findall(r"M(\d+) (\d+)", d)
    }
    xs, ys = (sorted({c[n] for c in cells}, key=int) for n in (0, 1))
    drawn = [[int(cells[x, y] > 0.5) for x in xs] for y in ys]
    assert drawn == trace.CATS.W_O.int().tolist()


def test_calculation_of_a_blocked_weight() -> None:
    assert (
        explained("weights.0.0.1", 1, True)
        == "blocked: chase comes later, so the weight is 0"
    )
    assert explained("weights.0.1.0", 1, True).startswith("e^1 / (e^1 + e^0.5) =")


# ----------------------------------------------------------------------------- state


def test_python_reads_the_readers_edits() -> None:
    widget = AttentionTrace()
    widget.state = {"heads": 2, "edits": {"W_Q.2.0": -1.5, "X.0.3": 2}, "causal": True}
    X, W_Q = trace.CATS.X.clone(), trace.CATS.W_Q.clone()
    X[0, 3], W_Q[2, 0] = 2, -1.5
    want = trace.attention(replace(trace.CATS, X=X, W_Q=W_Q), 2, Causal())
    for name in ("weights", "output"):
        assert torch.equal(widget.result[name], want[name])
    assert torch.equal(trace.CATS.X[0], trace.matrix([[1, 0, 1, 0]])[0]), (
        "CATS was changed"
    )


def test_reversed_words_give_the_same_rows_in_another_order() -> None:
    widget = AttentionTrace()
    before = widget.result["output"]
    widget.state = {"reversed": True}
    assert widget.result["words"] == ("mice", "chase", "cats")
    assert torch.allclose(widget.result["output"], before.flip(0), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"step": 10}, "step must be 0 … 9, got 10"),
        ({"heads": 3}, r"heads must be one of \[1, 2\], got 3"),
        ({"edits": {"W_Q.4.0": 1}}, "'W_Q.4.0' names no entry"),
        ({"edits": {"W_Z.0.0": 1}}, "'W_Z.0.0' names no entry"),
        ({"edits": {"X.0.0": 101}}, "X.0.0 must be a number of −100 … 100, got 101"),
        ({"edits": {"X.0.0": "2"}}, "got '2'"),
    ],
)
def test_states_that_cannot_be_drawn(state: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionTrace().state = state


def test_page_ignores_states_that_cannot_be_drawn() -> None:
    widget = AttentionTrace()
    odd = {
        "step": 99,
        "heads": 3,
        "edits": {"X.9.9": 1, "nope": 2, "X.0.0": 1, "X.0.1": 5, "W_Q.0.0": 1e9},
    }
    script = "return m.cleanState({ ...input.data.start, ...input.odd }, input.data);"
    clean = run_node(script, SCRIPT, {"data": widget.data, "odd": odd})
    assert clean["step"] == 9
    assert clean["heads"] == 1
    assert clean["edits"] == {"X.0.1": 5}, (
        "unknown, unchanged and too large entries stay out"
    )


def test_page_shows_pythons_own_numbers_until_something_is_changed() -> None:
    data = AttentionTrace().data
    script = """const s = input.data.start, d = input.data;
        return [m.current(d, { ...s, heads: 2 }) === d.traces["2"],
                m.current(d, { ...s, edits: { "X.0.0": 2 } }).X[0][0]];"""
    assert run_node(script, SCRIPT, {"data": data}) == [True, 2]


# ----------------------------------------------------------------------- wrong input


def test_wrong_examples() -> None:
    batch = {name: getattr(trace.CATS, name) for name in NAMES}
    with pytest.raises(
        TypeError, match=r"must be a deepdive\.trace\.Example, got dict"
    ):
        AttentionTrace(batch)
    with pytest.raises(ValueError, match="2 words"):
        replace(trace.CATS, words=("cats", "chase"))
    with pytest.raises(ValueError, match="got 3 words of 9 columns"):
        AttentionTrace(made(3, 9, 0))
    broken = trace.CATS.W_K.clone()
    broken[1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"W_K\[1, 2\] must be a number .* got nan"):
        AttentionTrace(replace(trace.CATS, W_K=broken))


@pytest.mark.parametrize("heads", [0, 3, -2])
def test_heads_that_do_not_divide(heads: int) -> None:
    with pytest.raises(ValueError, match=f"width 4 cannot be cut into {heads} heads"):
        AttentionTrace(n_heads=heads)


def test_one_word_and_odd_widths_draw() -> None:
    assert AttentionTrace(made(1, 3, 1)).data["heads"] == [1]
    assert "<svg" in AttentionTrace(made(8, 8, 2), n_heads=4).frame()


# ----------------------------------------------------------------------------- frame


@pytest.mark.parametrize("n_heads", [1, 2])
def test_first_frame_teaches(n_heads: int) -> None:
    widget = AttentionTrace(n_heads=n_heads)
    frame = widget.frame()
    result = trace.attention(n_heads=n_heads)
    for value in (
        result["weights"].flatten().tolist() + result["output"].flatten().tolist()
    ):
        assert f">{value:.3f}<" in frame
    for word in (*trace.CATS.words, "raw scores", "weights", "exact tie"):
        assert word in frame
    assert frame.count(">=</text>") == (3 if n_heads == 1 else 2 + 2 + 3 + 3)
    assert widget.alt.rstrip().count(". ") <= 1, "two sentences at most"
    assert "$" not in frame


# --------------------------------------------------------------------------- browser


def test_two_heads_stand_side_by_side_on_one_screen(site, open_page) -> None:
    page = open_page(
        site.url(site.write("trace-two", [AttentionTrace(n_heads=2)])),
        viewport={"width": 1280, "height": 800},
    )
    page.add_style_tag(content="main { max-width: 50rem; }")  # as wide as the site's
    root = page.locator(".dd-widget")
    root.evaluate("(el) => el.scrollIntoView()")
    boxes = [
        root.locator(f'[data-board="{key}"]').bounding_box()
        for key in ("weights.0", "weights.1", "output.0")
    ]
    assert abs(boxes[0]["y"] - boxes[1]["y"]) < 3, "side by side"
    assert all(box["y"] + box["height"] <= 800 for box in boxes)
    assert root.locator(".at-calc").bounding_box()["y"] < boxes[0]["y"]


def test_names_of_rows_are_level_with_their_rows(site, open_page) -> None:
    page = open_page(site.url(site.write("trace-level", [AttentionTrace()])))
    page.add_style_tag(content="th, td { vertical-align: top; }")  # as the site has it
    off = page.locator('[data-board="weights.0"] tbody tr').evaluate_all(
        """(rows) => rows.map((r) => {
            const middle = (n) => {
                const text = document.createRange();
                text.selectNodeContents(n);
                const box = text.getBoundingClientRect();
                return box.top + box.height / 2;
            };
            const cell = r.querySelector("td .at-cell").getBoundingClientRect();
            return middle(r.querySelector("td.at-sum")) - cell.top - cell.height / 2;
        })"""
    )
    assert max(map(abs, off)) <= 1.5


def test_a_field_that_is_no_number_keeps_its_value_and_says_so(site, open_page) -> None:
    page = open_page(site.url(site.write("trace-fields", [AttentionTrace()])))
    root = page.locator(".dd-widget")
    root.locator("summary", has_text="Edit the numbers").press("Enter")
    field = root.get_by_role("spinbutton", name="X, cats, column 1")
    said = root.locator('.at-said[role="status"]')
    for typed, text in (
        ("-", "That is not a number"),
        ("", "That is not a number"),
        ("101", "Only numbers from"),
    ):
        field.fill("7")
        field.press("Tab")
        field.focus()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type(typed) if typed else page.keyboard.press("Delete")
        page.keyboard.press("Tab")
        assert said.inner_text().startswith(text)
        assert said.inner_text().endswith("X, cats, column 1 stays 7.")
        assert field.input_value() == "7"
    root.get_by_role("button", name="Reset").press("Enter")
    assert field.input_value() == "1"
    assert page.noise == []


def test_used_row_and_column_are_framed(site, open_page) -> None:
    page = open_page(site.url(site.write("trace-frames", [AttentionTrace()])))
    root = page.locator(".dd-widget")
    for _ in range(5):
        root.get_by_role("button", name="Next").press("Enter")
    root.locator('button[data-key="raw_scores.0.0.1"]').focus()
    page.keyboard.press("ArrowDown")
    assert (
        root.locator('button[aria-pressed="true"]').get_attribute("data-key")
        == "raw_scores.0.1.1"
    )
    assert page.evaluate("document.activeElement.dataset.key") == "raw_scores.0.1.1"
    assert root.locator('[data-board="Q.0"] td.at-used-q').count() == 4
    assert root.locator('[data-board="K.0"] td.at-used-k').count() == 4
    text = root.locator(".at-calc").inner_text()
    assert "0·0.6 + 1·0 + 1·1 + 0·1 = 1" in text.replace("\n", " ")
    assert page.noise == []
