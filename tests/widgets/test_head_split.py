# SPDX-License-Identifier: MIT
"""The cost of heads: laws, the package's own layers, Python against Node on a grid."""

from __future__ import annotations

import itertools

import pytest

from conftest import WIDGETS, run_node
from deepdive.attention import MultiHeadAttention
from deepdive.widgets.head_split import PRESETS, HeadSplit, count, head_cost

SCRIPT = WIDGETS / "head_split.js"
GRID = [
    (d, n, dim, N, o)
    for d, n, dim, N, o in itertools.product(
        (4, 12, 512, 5120),
        (1, 2, 4, 128),
        (None, 1, 64, 256),
        (1, 3, 131072),
        (True, False),
    )
    if dim or d % n == 0
]


@pytest.mark.parametrize(
    ("d", "n", "dim"), [(4, 2, None), (12, 3, None), (6, 2, 5), (8, 1, 3)]
)
def test_parameters_are_those_of_the_layer(d: int, n: int, dim: int | None) -> None:
    layer = MultiHeadAttention(d, n, head_dim=dim)
    cost = head_cost(d, n, dim)
    assert cost["parameters"] == sum(p.numel() for p in layer.parameters())
    for key in "qkvo":
        assert cost[key] == getattr(layer, f"{key}_proj").weight.numel()


def test_cut_heads_cost_no_parameters_but_score_entries() -> None:
    costs = [head_cost(512, h, seq_len=10) for h in (1, 2, 8, 64, 512)]
    assert {c["parameters"] for c in costs} == {4 * 512**2}
    assert [c["score_entries"] for c in costs] == [100 * h for h in (1, 2, 8, 64, 512)]


def test_heads_of_fixed_width_cost_parameters_each() -> None:
    one = head_cost(512, 1, 64)["parameters"]
    assert [head_cost(512, h, 64)["parameters"] for h in (1, 2, 8, 9)] == [
        one, 2 * one, 8 * one, 9 * one,
    ]  # fmt: skip
    with_o, without = (
        head_cost(512, 8, None, 512, o)["parameters"] for o in (True, False)
    )
    assert 3 * with_o == 4 * without


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("T5-11B", 16), ("Gemma-7B", 4 / 3), ("DeepSeek-V2", 3.2), ("The 2017 paper", 1)],
)
def test_published_shapes(name: str, ratio: float) -> None:
    preset = next(p for p in PRESETS if p["name"] == name)
    shape = (preset[key] for key in ("d_model", "n_heads", "head_dim"))
    assert head_cost(*shape)["ratio"] == pytest.approx(ratio)


def test_deepseek_says_what_is_counted() -> None:
    note = PRESETS[-1]["note"]
    assert "192 wide (128 + 64 for rotary positions)" in note
    assert "counts the 128-wide value side only" in note


def test_words_are_not_mistaken_for_columns() -> None:
    assert HeadSplit().state["seq_len"] == 100 != HeadSplit().result["d_model"]
    assert head_cost(512, 8)["score_entries"] == 8 * 100**2


def test_page_counts_what_python_counts() -> None:
    got = run_node("return input.map((c) => m.headCost(...c));", SCRIPT, GRID)
    assert len(GRID) > 300
    for case, cost in zip(GRID, got, strict=True):
        assert cost == head_cost(*case), case


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((512, 3), "3 heads do not divide d_model = 512"),
        ((0, 1), "d_model must be an integer ≥ 1, got 0"),
        ((4, -2), "n_heads must be an integer ≥ 1, got -2"),
        ((4, 2, 0), "head_dim must be an integer ≥ 1, got 0"),
        ((4, 2, 2, 0), "seq_len must be an integer ≥ 1, got 0"),
    ],
)
def test_wrong_numbers(args: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        head_cost(*args)
    script = "try { m.headCost(...input); } catch (e) { return e.message; }"
    whole = [*args, *[None, 100][len(args) - 2 :]][:4]
    assert run_node(script, SCRIPT, whole) == message


def test_wrong_types() -> None:
    for value in (2.0, "2", True):
        with pytest.raises(TypeError, match="n_heads must be an int"):
            head_cost(4, value)


def test_python_reads_the_readers_choice() -> None:
    widget = HeadSplit(4, 2)
    assert widget.state["preset"] == 0
    assert widget.result == head_cost(4, 2, None, 3)
    widget.state = {
        "preset": 2,
        "n_heads": 128,
        "head_dim": 128,
        "rule": "fixed",
        "seq_len": 10,
    }
    assert widget.result == head_cost(1024, 128, 128, 10)
    with pytest.raises(ValueError, match="3 heads do not divide d_model = 4"):
        widget.state = {"preset": 0, "n_heads": 3}
    with pytest.raises(ValueError, match="rule must be"):
        widget.state = {"rule": "half"}


def test_other_numbers_become_an_example() -> None:
    widget = HeadSplit(768, 12)
    assert widget.data["presets"][0]["name"] == "Your numbers"
    assert len(widget.data["presets"]) == len(PRESETS) + 1
    with pytest.raises(ValueError, match="5 heads do not divide d_model = 768"):
        HeadSplit(768, 5)


def test_page_mends_states_that_cannot_be_counted() -> None:
    script = """const { data, odd } = input;
        return odd.map((s) => m.cleanState({ ...data.start, ...s }, data));"""
    odd = [
        {"n_heads": 3},
        {"preset": 99},
        {"rule": "fixed", "head_dim": -4},
        {"seq_len": 0.5},
    ]
    got = run_node(script, SCRIPT, {"data": HeadSplit().data, "odd": odd})
    assert (got[0]["n_heads"], got[0]["head_dim"]) == (2, 256), (
        "3 heads do not divide 512"
    )
    assert (got[1]["preset"], got[1]["n_heads"]) == (0, 4)
    assert got[2]["head_dim"] == 64
    assert got[3]["seq_len"] == 100


def test_curves_flat_or_linear() -> None:
    script = "return m.curvesOf(input, m.cleanState(input.start, input));"
    curves = run_node(script, SCRIPT, HeadSplit().data)
    assert curves["counts"] == [1, 2, 4, 8, 16, 32]
    assert {c["parameters"] for c in curves["split"]} == {1048576}
    assert [c["parameters"] // 131072 for c in curves["fixed"]] == [1, 2, 4, 8, 16, 32]
    assert [c["score_entries"] // 100**2 for c in curves["split"]] == [
        1,
        2,
        4,
        8,
        16,
        32,
    ]


@pytest.mark.parametrize(
    "args", [(), (4, 2), (1024, 128, 128), (7, 1), (1, 1), (5, 3, 2)]
)
def test_first_frame_teaches(args: tuple) -> None:
    widget = HeadSplit(*args)
    cost = widget.result
    frame = widget.frame()
    for number in (cost["parameters"], cost["score_entries"], cost["q"]):
        assert count(number) in frame
    assert "width d / h" in frame
    assert "nan" not in frame
    assert widget.alt.count(". ") <= 1, "two sentences at most"
