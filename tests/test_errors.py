# SPDX-License-Identifier: MIT
"""Wrong input is refused before any work, with the offending number in the message."""

import random
import re

import pytest
import torch
from torch import nn

from deepdive import figures, show, trace
from deepdive.attention import MultiHeadAttention, merge_heads, record, split_heads
from deepdive.configs import BertConfig
from deepdive.device import seed_everything
from deepdive.feedforward import FeedForward
from deepdive.kernels import attention_weights, equation, fused
from deepdive.masks import Causal, Everyone, Rule
from deepdive.models.bert import Bert
from deepdive.norms import RMSNorm
from deepdive.positions import LearnedPositions

KEEP = torch.ones(2, 5).bool()
TINY = BertConfig(40, d_model=12, n_layers=1, n_heads=3, d_ff=16, max_seq_len=8)
BERT = Bert(TINY)
LAYER = MultiHeadAttention(12, 3)
IDS = torch.zeros(2, 5).long()


def x(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def q(**changes):
    """A good call of a kernel, with some arguments replaced."""
    good = {"q": x(2, 4, 3, 6), "k": x(2, 2, 5, 6), "v": x(2, 2, 5, 7)}
    return good | changes


# ── Kernels: every row is refused by each of them ────────────────────────────────────

KERNEL_CASES = {
    "q of 3 axes": (q(q=x(4, 3, 6)), ValueError, "(4, 3, 6)"),
    "k of 5 axes": (q(k=x(1, 2, 2, 5, 6)), ValueError, "(1, 2, 2, 5, 6)"),
    "batches": (q(k=x(3, 2, 5, 6)), ValueError, "(3, 2, 5, 6)"),
    "widths": (q(k=x(2, 2, 5, 8)), ValueError, "(2, 2, 5, 8)"),
    "no width": (q(q=x(2, 4, 3, 0), k=x(2, 2, 5, 0)), ValueError, "(2, 4, 3, 0)"),
    "heads": (q(q=x(2, 5, 3, 6)), ValueError, "5 query heads cannot share 2"),
    "no heads": (q(q=x(2, 0, 3, 6)), ValueError, "0 query heads"),
    "dtypes": (q(k=x(2, 2, 5, 6, dtype=torch.half)), TypeError, "float16"),
    "integers": (q(q=x(2, 4, 3, 6, dtype=torch.long)), TypeError, "int64"),
    "complex": (q(q=x(2, 4, 3, 6, dtype=torch.cfloat)), TypeError, "complex64"),
    "a list": (q(q=[[1.0]]), TypeError, "list"),
    "k is None": (q(k=None), TypeError, "NoneType"),
    "mask shape": (q(mask=x(3, 4).bool()), ValueError, "(3, 4)"),
    "mask too wide": (q(mask=x(3, 1, 1, 5).bool()), ValueError, "(3, 1, 1, 5)"),
    "mask of floats": (q(mask=x(3, 5)), TypeError, "float32"),
    "mask of ints": (q(mask=x(3, 5).int()), TypeError, "int32"),
    "mask a list": (q(mask=[[True]]), TypeError, "list"),
    "mask a word": (q(mask="causal"), TypeError, "str"),
    "padding length": (q(mask=Everyone(KEEP[:, :4])), ValueError, "(2, 4)"),
    "padding batch": (q(mask=Causal(keep=KEEP[:1])), ValueError, "(1, 5)"),
    "bias shape": (q(bias=x(4, 4, 5)), ValueError, "(4, 4, 5)"),
    "bias of ints": (q(bias=x(3, 5).long()), TypeError, "int64"),
    "bias a number": (q(bias=1.0), TypeError, "float"),
    "scale NaN": (q(scale=float("nan")), ValueError, "nan"),
    "scale ∞": (q(scale=float("inf")), ValueError, "inf"),
    "scale a word": (q(scale="1"), TypeError, "str"),
}
VALUE_CASES = {
    "v of 2 axes": (q(v=x(5, 7)), ValueError, "(5, 7)"),
    "v length": (q(v=x(2, 2, 6, 7)), ValueError, "(2, 2, 6, 7)"),
    "v heads": (q(v=x(2, 4, 5, 7)), ValueError, "(2, 4, 5, 7)"),
    "v dtype": (q(v=x(2, 2, 5, 7).double()), TypeError, "float64"),
    "v is None": (q(v=None), TypeError, "NoneType"),
}


@pytest.mark.parametrize("kernel", [equation, fused])
@pytest.mark.parametrize("case", KERNEL_CASES | VALUE_CASES)
def test_kernels_refuse(kernel, case):
    arguments, error, part = (KERNEL_CASES | VALUE_CASES)[case]
    with pytest.raises(error, match=re.escape(part)):
        kernel(**arguments)


@pytest.mark.parametrize("case", KERNEL_CASES)
def test_weights_refuse(case):
    arguments, error, part = KERNEL_CASES[case]
    arguments = {name: a for name, a in arguments.items() if name != "v"}
    with pytest.raises(error, match=re.escape(part)):
        attention_weights(**arguments)


# ── Everything else: (call, error, what the message must name) ───────────────────────

CASES = {
    # masks
    "keep of ints": (lambda: Everyone(KEEP.int()), TypeError, "int32"),
    "keep of 1 axis": (lambda: Causal(keep=KEEP[0]), ValueError, "(5,)"),
    "keep a list": (lambda: Everyone([[True]]), TypeError, "list"),
    "window 0": (lambda: Causal(window=0), ValueError, "0"),
    "window −2": (lambda: Causal(-2), ValueError, "-2"),
    "window 2.5": (lambda: Causal(window=2.5), TypeError, "2.5"),
    "prefix −1": (lambda: Causal(prefix=-1), ValueError, "-1"),
    "prefix None": (lambda: Causal(prefix=None), TypeError, "None"),
    "T −1": (lambda: Causal().tensor(-1, 3), ValueError, "T = -1"),
    "S of keep": (lambda: Everyone(KEEP).tensor(2, 4), ValueError, "S = 4"),
    "tile backwards": (lambda: Causal().tile(3, 2, 0, 1), ValueError, "3 … 2"),
    "tile before 0": (lambda: Everyone(KEEP).tile(0, 1, -2, 1), ValueError, "-2"),
    "tile past keep": (lambda: Everyone(KEEP).tile(0, 1, 4, 6), ValueError, "4 … 6"),
    # attention
    "d_model 10": (lambda: MultiHeadAttention(10, 3), ValueError, "10"),
    "n_heads 0": (lambda: MultiHeadAttention(8, 0), ValueError, "n_heads must be ≥ 1"),
    "KV heads": (lambda: MultiHeadAttention(24, 6, 4), ValueError, "n_kv_heads 4"),
    "head_dim": (lambda: MultiHeadAttention(8, 2, head_dim=0), ValueError, "0"),
    "x width": (lambda: LAYER(x(1, 2, 13)), ValueError, "(1, 2, 13)"),
    "x axes": (lambda: LAYER(x(2, 12)), ValueError, "(2, 12)"),
    "x dtype": (lambda: LAYER(x(1, 2, 12).double()), TypeError, "float64"),
    "x ints": (lambda: LAYER(x(1, 2, 12).long()), TypeError, "int64"),
    "x None": (lambda: LAYER(None), TypeError, "NoneType"),
    "context": (lambda: LAYER(x(1, 2, 12), x(1, 3, 11)), ValueError, "(1, 3, 11)"),
    "context batch": (lambda: LAYER(x(1, 2, 12), x(2, 3, 12)), ValueError, "(2, 3, 3"),
    "layer mask": (
        lambda: LAYER(x(1, 2, 12), mask=x(3, 3).bool()),
        ValueError,
        "(3, 3)",
    ),
    "split 3": (lambda: split_heads(x(1, 2, 8), 3), ValueError, "3 heads"),
    "split 0": (lambda: split_heads(x(1, 2, 8), 0), ValueError, "0 heads"),
    "split −2": (lambda: split_heads(x(1, 2, 8), -2), ValueError, "-2 heads"),
    "split axes": (lambda: split_heads(x(2, 8), 2), ValueError, "(2, 8)"),
    "merge axes": (lambda: merge_heads(x(2, 3, 4)), ValueError, "(2, 3, 4)"),
    # norms, feed-forward, positions
    "RMSNorm width": (lambda: RMSNorm(4)(x(2, 1)), ValueError, "(2, 1)"),
    "RMSNorm ints": (lambda: RMSNorm(4)(x(2, 4).int()), TypeError, "int32"),
    "RMSNorm 0": (lambda: RMSNorm(0), ValueError, "0"),
    "RMSNorm eps": (lambda: RMSNorm(4, eps=-1.0), ValueError, "-1.0"),
    "FFN width": (
        lambda: FeedForward(4, 8, nn.ReLU())(x(2, 5)),
        ValueError,
        "(2, 5)",
    ),
    "FFN size": (lambda: FeedForward(4, 0, nn.ReLU()), ValueError, "0"),
    "table of 0": (lambda: LearnedPositions(0, 4), ValueError, "0"),
    "position 9": (lambda: LearnedPositions(9, 4)(torch.tensor([9])), ValueError, "9"),
    "position 0.5": (lambda: LearnedPositions(9, 4)(x(2)), TypeError, "float32"),
    "10 positions": (lambda: LearnedPositions(9, 4).first(10), ValueError, "10 pos"),
    "−1 positions": (lambda: LearnedPositions(9, 4).first(-1), ValueError, "-1"),
    # sizes and BERT
    "no layers": (lambda: BertConfig(n_layers=0), ValueError, "n_layers"),
    "no segments": (lambda: BertConfig(n_segments=0), ValueError, "n_segments"),
    "width 2.5": (lambda: BertConfig(d_model=2.5), TypeError, "2.5"),
    "heads of 768": (lambda: BertConfig(n_heads=7), ValueError, "n_heads 7"),
    "eps 0": (lambda: BertConfig(norm_eps=0.0), ValueError, "0.0"),
    "token 40": (lambda: BERT(IDS + 40), ValueError, "40 … 40"),
    "token −1": (lambda: BERT(IDS - 1), ValueError, "-1"),
    "one of many": (
        lambda: BERT(torch.arange(4000).view(500, 8)),
        ValueError,
        "0 … 3999",
    ),
    "token floats": (lambda: BERT(IDS.float()), TypeError, "float32"),
    "token bools": (lambda: BERT(IDS.bool()), TypeError, "bool"),
    "token list": (lambda: BERT([[1, 2]]), TypeError, "list"),
    "too long": (lambda: BERT(x(1, 9).long()), ValueError, "9 positions"),
    "nothing": (lambda: BERT(x(1, 0).long()), ValueError, "(1, 0)"),
    "one axis": (lambda: BERT(IDS[0]), ValueError, "(5,)"),
    "segment 2": (lambda: BERT(IDS, IDS + 2), ValueError, "2 … 2"),
    "segment floats": (lambda: BERT(IDS, x(2, 5)), TypeError, "float32"),
    "segment list": (lambda: BERT(IDS, [[0]]), TypeError, "list"),
    "segment shape": (lambda: BERT(IDS, IDS[:1]), ValueError, "(1, 5)"),
    "BERT keep": (lambda: BERT(IDS, keep=KEEP[:, :4]), ValueError, "(2, 4)"),
    "BERT keep batch": (lambda: BERT(IDS, keep=KEEP[:1]), ValueError, "(1, 5)"),
    "BERT keep ints": (lambda: BERT(IDS, keep=IDS), TypeError, "int64"),
    "pooled": (lambda: BERT.pooled(x(2, 12)), ValueError, "(2, 12)"),
    # trace, seeds, tables
    "trace heads": (lambda: trace.attention(n_heads=3), ValueError, "3 heads"),
    "trace 0 heads": (lambda: trace.attention(n_heads=0), ValueError, "0 heads"),
    "trace layer": (lambda: trace.layer(n_heads=3), ValueError, "n_heads 3"),
    "trace mask": (lambda: trace.attention(mask=x(3, 3)), TypeError, "float32"),
    "word of 3": (lambda: trace.CATS.append("so", [1, 2, 3]), ValueError, "got 3"),
    "order": (lambda: trace.CATS.reorder([0, 1, 1]), ValueError, "[0, 1, 1]"),
    "words": (
        lambda: trace.Example(("a",), *[torch.eye(2)] * 5),
        ValueError,
        "1 words",
    ),
    "W_O": (
        lambda: trace.Example(("a", "b"), *[torch.eye(2)] * 4, torch.eye(3)),
        ValueError,
        "(3, 3)",
    ),
    "seed −1": (lambda: seed_everything(-1), ValueError, "-1"),
    "seed 2³²": (lambda: seed_everything(2**32), ValueError, str(2**32)),
    "3 axes": (lambda: show.matrix(x(1, 2, 3), "M"), ValueError, "(1, 2, 3)"),
    "row words": (lambda: show.matrix([[1]], "M", rows="ab"), ValueError, "got 2"),
    "column words": (
        lambda: show.matrix([[1]], "M", columns="abc"),
        ValueError,
        "got 3",
    ),
    "role": (lambda: show.matrix([1], "M", role="z"), ValueError, "'z'"),
    "diagram": (lambda: figures.diagram("z", "a", "c"), ValueError, "'z'"),
    "record": (lambda: record(3).__enter__(), TypeError, "int"),
}


@pytest.mark.parametrize("case", CASES)
def test_refuses(case):
    call, error, part = CASES[case]
    with pytest.raises(error, match=re.escape(part)) as caught:
        call()
    assert type(caught.value) is error


# ── Fuzz: a result is right, or the input is refused ─────────────────────────────────


def formula(q, k, v, mask, bias, scale):
    """Equation 1 in float64, with no check at all."""
    q, k, v = q.double(), k.double(), v.double()
    _, H, T, D = q.shape
    k, v = (t.repeat_interleave(H // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * (D**-0.5 if scale is None else scale)
    scores = scores + (0 if bias is None else bias)
    if isinstance(mask, Rule):
        mask = mask.tensor(T, k.shape[2])
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v


def spoil(dice, shape):
    """Another shape: an axis longer, empty, missing, too many, or exchanged."""
    shape, i = list(shape), dice.randrange(len(shape))
    how = dice.randrange(5)
    if how == 0:
        shape[i] += dice.choice([1, 2])
    elif how == 1:
        shape[i] = dice.choice([0, 1])
    elif how == 2:
        del shape[i]
    elif how == 3:
        shape.insert(i, dice.choice([1, 2]))
    else:
        dice.shuffle(shape)
    return tuple(shape)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.int64, torch.bool]
DTYPES += [torch.complex64, torch.bfloat16, torch.uint8]
JUNK = [None, 1.5, "causal", [[1.0]], object(), (2, 3), True]


def tensor(dice, shape, dtype=torch.float64, p=0.12):
    """A tensor that is now and then of another shape, another dtype, or junk."""
    if dice.random() < p / 4:
        return dice.choice(JUNK)
    if dice.random() < p:
        shape = spoil(dice, shape)
    if dice.random() < p / 2:
        dtype = dice.choice(DTYPES)
    numbers = torch.Generator().manual_seed(dice.randrange(2**31))
    return (torch.randn(shape, generator=numbers, dtype=torch.float64) * 2).to(dtype)


def any_mask(dice, B, H, T, S):
    full = dice.choice([(T, S), (B, H, T, S), (S,), (B, 1, 1, S), (), (H, T, 1)])
    keep = tensor(dice, (B, S), torch.bool)
    kind = dice.randrange(6)
    if kind < 2:
        return None
    if kind == 2:
        return tensor(dice, full, torch.bool) if full else torch.tensor(True)
    if kind == 3:
        return Everyone(keep)
    window, prefix = dice.choice([None, 1, 2, 0]), dice.choice([0, 2, -1, 1.5])
    return Causal(window, prefix if dice.random() < 0.2 else 0)


def any_extras(dice, B, H, T, S):
    bias = tensor(dice, (H, T, S)) if dice.random() < 0.3 else None
    scale = dice.choice([None, None, 1.0, 0.25, 2, float("nan"), "1"])
    return bias, scale


def outcome(call, *arguments):
    """The result, or the refusal; any other exception fails the test."""
    try:
        return call(*arguments)
    except (ValueError, TypeError) as refusal:
        assert str(refusal)
        return refusal


def matches(out, arguments):
    expected = formula(*arguments)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}.get(out.dtype, 0.1)
    assert out.shape == expected.shape
    assert torch.allclose(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(8))
def test_fuzz_kernels(seed):
    dice, right, wrong = random.Random(seed), 0, 0
    for _ in range(500):
        B, G, T, S, D, Dv = (dice.randint(1, 3) for _ in range(6))
        H = G * dice.randint(1, 2)
        shapes = (B, H, T, D), (B, G, S, D), (B, G, S, Dv)
        arguments = [tensor(dice, shape) for shape in shapes]
        mask = outcome(any_mask, dice, B, H, T, S)
        if isinstance(mask, Exception):
            wrong += 1
            continue  # the rule itself was refused
        arguments += [mask, *any_extras(dice, B, H, T, S)]
        results = [outcome(kernel, *arguments) for kernel in (equation, fused)]
        refused = {isinstance(r, Exception) for r in results}
        assert len(refused) == 1, (results, [getattr(a, "shape", a) for a in arguments])
        wrong += refused == {True}
        if refused == {False}:
            right += 1
            for out in results:
                matches(out, arguments)
    assert right > 100 and wrong > 250, (
        "the fuzz must reach the kernels, not only their checks"
    )


@pytest.mark.parametrize("seed", range(4))
def test_fuzz_layer(seed):
    dice, right = random.Random(100 + seed), 0
    for _ in range(400):
        B, T, S, G = (dice.randint(1, 3) for _ in range(4))
        sizes = dice.choice([4, 6, 12, 0, -1]), dice.choice([G, 2 * G, 0, -2])
        head_dim = dice.choice([None, None, None, 2, 0])
        layer = outcome(MultiHeadAttention, *sizes, G, head_dim)
        if isinstance(layer, Exception):
            continue
        layer.double()
        d_model, H = sizes
        x = tensor(dice, (B, T, d_model))
        context = tensor(dice, (B, S, d_model)) if dice.random() < 0.5 else None
        keys = T if context is None else S
        mask = outcome(any_mask, dice, B, H, T, keys)
        bias = tensor(dice, (H, T, keys)) if dice.random() < 0.3 else None
        if isinstance(mask, Exception):
            continue
        out = outcome(layer, x, context, mask, bias)
        if isinstance(out, Exception):
            continue
        right += 1
        source = x if context is None else context
        q = layer.q_proj(x).unflatten(-1, (H, -1)).transpose(1, 2)
        k, v = (
            p(source).unflatten(-1, (G, -1)).transpose(1, 2)
            for p in (layer.k_proj, layer.v_proj)
        )
        heads = formula(q, k, v, mask, bias, None)
        expected = layer.o_proj(heads.transpose(1, 2).flatten(2))
        assert torch.allclose(out, expected, rtol=0, atol=1e-10)
    assert 30 < right < 150
