# SPDX-License-Identifier: MIT
"""8-bit weights: within their rounding, whatever multiplies; and a model stays good."""

import copy
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from deepdive import shelf
from deepdive.decoding import CachedStep, greedy
from deepdive.inference import Int8Linear, for_inference
from deepdive.inference import products as made
from deepdive.inference.products import (
    SAFE,
    PackedProduct,
    PlainProduct,
    fastest_product,
    largest_top,
)
from deepdive.inference.turning import block_of, hadamard, turning
from deepdive.recipes import RECIPES
from deepdive.recipes.austen import dev_windows
from deepdive.recipes.runs import load_run
from tests.compare import close

PACKED = pytest.mark.skipif(not largest_top(), reason="torch has no FBGEMM here")
WAYS = [PlainProduct, pytest.param(PackedProduct, marks=PACKED)]
WAYS += [pytest.param(partial(PackedProduct, top=SAFE), marks=PACKED)]
ways = pytest.mark.parametrize("product", WAYS, ids=["plain", "8 bits", "7 bits"])


# Turning


@pytest.mark.parametrize("n", [1, 2, 4, 64])
def test_turned_axes_stand_at_right_angles(n):
    for H in (hadamard(n), turning(n)):
        close(H @ H.T, n * torch.eye(n), 0)
        assert (H.abs() == 1).all()


def test_no_number_stands_out_once_turned():
    """One large number, or all alike: at most a few times the mean afterwards."""
    one = torch.eye(64)[5]
    for x in (one, torch.ones(64), one * 50 + torch.randn(64)):
        y = x @ turning(64)
        assert y.abs().max() < 4 * y.square().mean().sqrt()
    assert (torch.ones(64) @ hadamard(64)).abs().max() == 64  # hence the signs


def test_blocks():
    assert [block_of(n) for n in (1, 2, 3, 9, 33, 64, 576)] == [2, 2, 4, 16, 64, 64, 64]
    with pytest.raises(ValueError, match="power of two, got 6"):
        hadamard(6)
    with pytest.raises(ValueError, match="width must be ≥ 1"):
        block_of(0)


# Products


@ways
@settings(max_examples=40, deadline=None)
@given(
    out=st.integers(1, 40), width=st.integers(2, 150), rows=st.integers(1, 9),
    big=st.sampled_from([1e-6, 1.0, 1e30]), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_product_is_within_its_rounding(product, out, width, rows, big, seed):
    """|y − x(s ⊙ Q)ᵀ| ≤ ½·tₘ·sᵢ·Σⱼ|Qᵢⱼ|, each entry."""
    torch.manual_seed(seed)
    rounded = torch.randint(-127, 128, (out, width)).to(torch.int8)
    scales, x = torch.rand(out) + 0.1, big * torch.randn(rows, width)
    multiply = product(rounded, scales)
    exact = x.double() @ (scales[:, None] * rounded).double().t()
    t = x.double().abs().amax(-1, keepdim=True) / multiply.top
    bound = t / 2 * scales * rounded.double().abs().sum(-1)
    assert ((multiply(x).double() - exact).abs() <= 1.001 * bound).all()
    assert torch.equal(multiply.rounded, rounded)
    assert torch.equal(multiply.scales, scales)


@ways
def test_whole_numbers_are_multiplied_exactly(product):
    """The largest ones, too, for which 16 bits are not enough."""
    rounded = torch.full((5, 64), 127, dtype=torch.int8)
    rounded[1] = -127
    multiply = product(rounded, torch.ones(5))
    x = torch.full((3, 64), float(multiply.top))
    x[1] *= -1
    close(multiply(x), x @ rounded.float().t(), 0)
    close(multiply(x[1:2]), x[1:2] @ rounded.float().t(), 1)


@PACKED
def test_all_ways_are_one_function():
    torch.manual_seed(0)
    layer = nn.Linear(200, 30)
    for rows in (0, 1, 2, 8, 65):
        x = torch.randn(rows, 200)
        plain, packed = (Int8Linear(layer, p)(x) for p in (PlainProduct, PackedProduct))
        close(packed, plain, 1e-2)
        assert (packed - plain).square().mean().sqrt() < 1e-3 or not rows


@PACKED
@pytest.mark.parametrize("instructions", ["AVX2", "AVX512"])
def test_without_8_bit_instructions_7_bits_are_used(instructions):
    """Sums in 16 bits would overflow; FBGEMM can be told to have no better."""
    code = (
        "import torch; from deepdive.inference.products import *;"
        "q = torch.full((3, 64), 127, dtype=torch.int8);"
        "y = fastest_product(q, torch.ones(3))(torch.ones(2, 64));"
        "print(largest_top(), float(y.min()), float(y.max()))"
    )
    env = os.environ | {"FBGEMM_ENABLE_INSTRUCTIONS": instructions}
    words = [sys.executable, "-c", code]
    said = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    top, *found = map(float, said.stdout.split())
    assert top == SAFE and found == pytest.approx([127 * 64] * 2)


def test_without_the_library_there_is_the_plain_form(monkeypatch):
    def missing(*_):
        raise RuntimeError("no such engine")

    monkeypatch.setattr(made, "_pack", missing)
    largest_top.cache_clear()
    try:
        assert largest_top() == 0
        layer = Int8Linear(nn.Linear(8, 3))
    finally:
        largest_top.cache_clear()
    assert type(layer.product) is PlainProduct


@PACKED
def test_torchs_engine_is_left_as_it_was():
    engines = torch.backends.quantized
    before = engines.engine
    try:
        for engine in engines.supported_engines:
            engines.engine = engine
            fastest_product(torch.ones(2, 2, dtype=torch.int8), torch.ones(2))
            assert engines.engine == engine
    finally:
        engines.engine = before


# The layer


@ways
@settings(max_examples=40, deadline=None)
@given(
    out=st.integers(1, 40), width=st.integers(2, 150), rows=st.integers(1, 9),
    big=st.sampled_from([1e-6, 1.0, 1e30]), seed=st.integers(0, 99),
)  # fmt: skip
@torch.no_grad()
def test_a_layer_is_within_its_rounding(product, out, width, rows, big, seed):
    """Of its inputs against the clear form, and of its weights against the layer.

    |yᵢ − w̃ᵢ·x| ≤ ½·t·sᵢ·Σⱼ|Qᵢⱼ|   and   |w̃ᵢ·x − wᵢ·x| ≤ ½·sᵢ·Σⱼ|(Hᵀx/n)ⱼ|
    """
    torch.manual_seed(seed)
    linear = nn.Linear(width, out, bias=bool(seed % 2))
    linear.weight[:, 0] *= 50
    linear.weight[0] = 0
    x = big * torch.randn(rows, width)
    x[:, -1] *= 50  # would drown the others
    layer = Int8Linear(linear, product)
    clear, s = layer.as_float().double(), layer.product.scales.double()
    turned = (layer._blocks(x).double() @ layer.turn.double()).view(rows, -1)
    t = turned.abs().amax(-1, keepdim=True) / layer.product.top
    of_inputs = t / 2 * s * layer.product.rounded.double().abs().sum(-1)
    of_weights = turned.abs().sum(-1, keepdim=True) * s / 2
    got, expected, exact = (
        layer(x).double(),
        clear(x.double()),
        linear.double()(x.double()),
    )
    small = 1e-5 * (big + exact.abs())
    assert got.shape == (rows, out)
    assert ((got - expected).abs() <= 1.001 * of_inputs + small).all()
    assert ((expected - exact).abs() <= 1.001 * of_weights + small).all()


@ways
@torch.no_grad()
def test_shapes_dtypes_zeros_and_nothing(product):
    layer = Int8Linear(nn.Linear(8, 3, bias=False), product)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        out = layer(torch.zeros(2, 5, 8, dtype=dtype))
        assert out.shape == (2, 5, 3) and out.dtype == dtype and (out == 0).all()
        assert layer(torch.zeros(8, dtype=dtype)).shape == (3,)
        assert layer(torch.zeros(0, 5, 8, dtype=dtype)).shape == (0, 5, 3)
    assert layer.weight.shape == (0, 8)  # width and dtype, and no number


@ways
@pytest.mark.parametrize("rows", [1, 4])
@torch.no_grad()
def test_extreme_inputs(product, rows):
    """A text is not touched by another's; what is not finite stays visible."""
    torch.manual_seed(0)
    layer = Int8Linear(nn.Linear(64, 7, bias=False), product)
    x = torch.randn(rows, 64)
    expected = layer(x)
    for big in (1e-20, 1e36, 3e37):
        close(layer(big * x) / big, expected, 2e-2)
    top = torch.finfo(torch.float32).max
    assert layer(torch.full((rows, 64), top / 4)).isfinite().all()
    for wrong in (torch.nan, torch.inf):
        spoilt = x.clone()
        spoilt[-1, 3] = wrong
        out = layer(spoilt)
        assert not out[-1].isfinite().any()
        assert torch.equal(out[:-1], expected[:-1])
    mixed = torch.cat((x, 1e6 * x))
    close(layer(mixed)[:rows], expected, 2e-2)


@ways
@torch.no_grad()
def test_copies_and_state(product):
    linear = nn.Linear(256, 256)
    layer, x = Int8Linear(linear, product), torch.randn(4, 256)
    again = Int8Linear(nn.Linear(256, 256), product)
    state = layer.state_dict()
    again.load_state_dict(state)
    for other in (again, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        close(other(x), layer(x), 0)
    held = state.pop("_extra_state").values()
    assert sum(x.nbytes for x in [*held, *state.values()]) < 0.27 * linear.weight.nbytes


def test_there_is_no_gradient():
    x = torch.randn(3, 8, requires_grad=True)
    assert not Int8Linear(nn.Linear(8, 4))(x).requires_grad


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: Int8Linear(nn.Identity()), TypeError, "Identity"),
        (lambda: Int8Linear(nn.Linear(2, 2, device="meta")), ValueError, "meta"),
        (lambda: Int8Linear(nn.Linear(1, 2)), ValueError, "in_features=1"),
        (
            lambda: Int8Linear(nn.Linear(8, 2))(torch.zeros(1, 8, device="meta")),
            ValueError,
            "not on meta",
        ),
        (lambda: Int8Linear(nn.Linear(8, 2))(torch.zeros(7)), ValueError, r"\(7,\)"),
        (lambda: Int8Linear(nn.Linear(8, 2))(torch.arange(8)), TypeError, "int64"),
    ],
)
def test_wrong_input_is_refused(call, error, part):
    with pytest.raises(error, match=part):
        call()


def test_weights_that_are_not_finite_are_refused():
    linear = nn.Linear(2, 2)
    linear.weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        Int8Linear(linear)


# Trained models


@ways
@torch.no_grad()
def test_a_small_trained_model_loses_less_than_a_hundredth(product):
    _, model = load_run(shelf.weights("austen-gpt"), RECIPES)
    ids = dev_windows()[:4]
    losses = []
    for fast in (
        model.eval(),
        for_inference(model, partial(Int8Linear, product=product)),
    ):
        logits = fast(ids[:, :-1])
        losses.append(cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item())
    assert abs(losses[1] / losses[0] - 1) < 0.01


@pytest.fixture(scope="module")
def chat():
    from deepdive.pretrained import smollm2

    return smollm2()


ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.",
    "Who wrote Pride and Prejudice?": "The novel Pride and Prejudice by Elizabeth",
}


@pytest.mark.weights
@torch.no_grad()
def test_smollm2_is_as_good(chat):
    """Perplexity within 2 %; the chapter's answers begin as they do in float32."""
    from deepdive.tokenizers import chat_prompt

    model, tokenizer = chat
    fast = for_inference(model, Int8Linear)
    root = Path(__file__).resolve().parent.parent
    # Long texts: one of forty words moves by several per cent either way.
    for name in ("LICENSE-TEXT", "data/austen/emma.txt"):
        text = (root / name).read_text("utf-8")[:8000]
        ids = tokenizer.encode(text).ids[:, :1200]
        assert ids.shape[1] > 1000
        nats = [cross_entropy(m(ids)[0, :-1], ids[0, 1:]).item() for m in (model, fast)]
        assert abs(nats[1] - nats[0]) < 0.02
    for question, answer in ANSWERS.items():
        asked = chat_prompt([{"role": "user", "content": question}])
        ids = tokenizer.encode(asked).ids
        step = CachedStep(fast, fast.new_caches(80))
        found = greedy(step, ids, 24, stop=tokenizer.end_ids)
        assert tokenizer.decode(found.rows()[0]).startswith(answer)
