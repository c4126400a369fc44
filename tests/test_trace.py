# SPDX-License-Identifier: MIT
"""The three words through every mechanism, against what NumPy computed alone."""

import json
import re
from pathlib import Path

import pytest
import torch

from deepdive import trace
from deepdive.kernels import equation
from deepdive.masks import Causal
from deepdive.moe.routing import Routing
from deepdive.trace.before import recurrent_cell
from deepdive.trace.model import block_module, routed_module
from tests.compare import close

GOLDEN = Path(__file__).parent / "golden" / "cats_through_the_book.json"
NUMBERS = json.loads(GOLDEN.read_text(encoding="utf-8"))
CHOSEN = {
    ("recurrence", "W_x"): trace.RECURRENCE.W_x,
    ("recurrence", "W_h"): trace.RECURRENCE.W_h,
    ("block", "W_up"): trace.NETWORK.W_up,
    ("block", "W_down"): trace.NETWORK.W_down,
    ("routed", "W_router"): trace.NETWORK.W_router,
    ("cross", "Y"): trace.TARGET[1],
}
RESULTS = [
    (step, name)
    for step, numbers in NUMBERS.items()
    if isinstance(numbers, dict) and step != "tiles"
    for name in numbers
    if (step, name) not in CHOSEN
]


@pytest.mark.parametrize("where", CHOSEN, ids=str)
def test_the_chosen_numbers_have_one_decimal(where):
    step, name = where
    close(CHOSEN[where], NUMBERS[step][name], 0)
    assert torch.equal((CHOSEN[where] * 10).round() / 10, CHOSEN[where])


@pytest.mark.parametrize(("step", "name"), RESULTS)
def test_the_numbers(step, name):
    close(getattr(trace, step)()[name], NUMBERS[step][name], 1e-6)


def test_the_tiles():
    steps = trace.tiles()["steps"]
    assert len(steps) == len(NUMBERS["tiles"]["steps"]) == 4
    for got, expected in zip(steps, NUMBERS["tiles"]["steps"], strict=True):
        assert list(got["queries"]) == expected["queries"]
        assert list(got["keys"]) == expected["keys"]
        for name in ("m", "shrink", "l", "acc"):
            close(got[name], expected[name], 1e-6)
    whole = trace.attention()["output"]
    close(torch.cat((steps[1]["out"], steps[3]["out"])), whole[[0, 2, 1]])
    assert 0 < steps[1]["shrink"][0] < 0.8, "a maximum that never moves teaches nothing"


def distinct(row) -> bool:
    """No two numbers of a row nearer than 0.05."""
    return bool((torch.as_tensor(row).sort().values.diff() > 0.05).all())


@pytest.mark.parametrize("example", [trace.CATS, trace.CATS_DAILY], ids=["3", "4"])
def test_nothing_ties_by_accident(example):
    routed = trace.routed(example)
    assert all(map(distinct, routed["logits"]))
    assert all(map(distinct, example.X @ trace.NETWORK.W_up))
    assert all(map(distinct, trace.recurrence(example)["states"]))
    assert all(map(distinct, trace.cross(example)["Q"] @ trace.cross(example)["K"].T))
    assert routed["counts"].min() >= 1  # every expert is visited


# ── The rungs of the ladder, on these numbers ────────────────────────────────────────


def test_the_cached_word_is_the_last_row_of_the_causal_whole():
    whole = trace.attention(trace.CATS_DAILY, mask=Causal())
    cached = trace.cached()
    close(cached["output"], whole["output"][3:])
    close(cached["weights"][:, 0], whole["weights"][:, 3])
    expected = torch.tensor([0.1054, 0.4447, 0.2864, 0.1636], dtype=torch.float64)
    close(cached["weights"][0, 0], expected, 5e-5)
    assert cached["nbytes"] == 2 * 4 * 4 * 8


def test_turned_scores_depend_on_the_distance_alone():
    """Give every position the same q and k: equal distances give equal scores."""
    same = trace.CATS_DAILY
    same = trace.Example(
        same.words,
        same.X[:1].expand(4, 4).contiguous(),
        same.W_Q,
        same.W_K,
        same.W_V,
        same.W_O,
    )
    scores = trace.rotary(same)["raw_scores"]
    for distance in (-2, -1, 0, 1, 2):
        diagonal = scores.diagonal(distance, 1, 2)
        close(diagonal, diagonal[:, :1].expand_as(diagonal), 1e-6)


def test_all_experts_with_gate_1_are_the_network():
    module, X = routed_module(), trace.CATS.X
    everyone = torch.arange(4).expand(3, 4)
    ones = torch.ones(3, 4, dtype=torch.float64)
    logits = X @ trace.NETWORK.W_router
    routing = Routing(everyone, ones, logits, logits.softmax(-1))
    with torch.no_grad():
        close(module.experts(X, routing), block_module().feedforward(X))


def test_a_latent_of_full_rank_is_attention():
    close(trace.latent(rank=4)["output"], trace.attention()["output"])


def test_the_best_latent_loses_what_the_small_singular_values_hold():
    two, joined = (
        trace.latent(),
        torch.cat((trace.CATS.W_K, trace.CATS.W_V), 1),
    )
    back = two["W_down"] @ torch.cat((two["W_UK"], two["W_UV"]), 1)
    lost = (joined - back).square().sum()
    close(lost, two["singular"][2:].square().sum())


def test_an_absorbed_query_meets_latents_as_the_query_meets_keys():
    two = trace.latent()
    scores = trace.attention()["Q"] @ two["K"].T
    close(two["absorbed_q"] @ two["latents"].T, scores)


def test_shared_heads_are_the_mean_of_two():
    split = trace.attention(n_heads=2)
    close(trace.shared()["K"], (split["K"][:, :2] + split["K"][:, 2:]) / 2)


def test_cross_attention_is_the_formula_on_two_texts():
    r = trace.cross()
    out = equation(*(r[name][None, None] for name in "QKV"))[0, 0]
    close(r["output"], out)


def test_the_cell_reads_the_words_in_order():
    cell, state = recurrent_cell(), torch.zeros(1, 2, dtype=torch.float64)
    for x in trace.CATS.X:
        state = torch.tanh(x @ trace.RECURRENCE.W_x + state @ trace.RECURRENCE.W_h)
    close(trace.recurrence()["states"][-1:], state)
    assert not cell.x_proj.bias.any()


STEPS = NUMBERS.keys() - {"about"}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_number_that_is_promised_is_there(name):
    """Each name under “Shapes” is a key, and each tensor's name stands there."""
    result = getattr(trace, name)()
    doc = getattr(trace, name).__doc__
    shapes = doc[doc.index("Shapes:") : doc.index("Taught in")]
    tensors = {key for key, value in result.items() if isinstance(value, torch.Tensor)}
    words = set(re.findall(r"[A-Za-z_]+", shapes))
    inherited = {"W_Q", "W_K", "W_V", "W_O", "head_outputs", "concat"}
    if name != "positions":  # which adds to what `attention` gives
        assert tensors - words - inherited - {"W_x", "W_h", "X"} == set()


def test_json_holds_every_step():
    for name in (
        "recurrence",
        "block",
        "cross",
        "routed",
        "cached",
        "rotary",
        "latent",
    ):
        text = json.dumps(trace.to_json(getattr(trace, name)()))
        assert "tensor" not in text
    text = json.dumps(trace.to_json(trace.tiles()))
    assert json.loads(text)["steps"][0]["keys"] == [0, 2]


def test_a_rank_that_is_none_is_refused():
    for rank in (0, 5):
        with pytest.raises(ValueError, match=f"1 … 4, got {rank}"):
            trace.latent(rank=rank)
