# SPDX-License-Identifier: MIT
"""Wrong input is refused before any work, with the offending number in the message."""

import re

import pytest
import torch
from torch import nn

from deepdive import figures, show, trace
from deepdive.attention import MultiHeadAttention, merge_heads, record, split_heads
from deepdive.cache import Memory
from deepdive.configs import BertConfig
from deepdive.device import seed_everything
from deepdive.feedforward import FeedForward
from deepdive.kernels import attention_weights, equation, fused, tiled
from deepdive.masks import Causal, Everyone
from deepdive.models.bert import Bert
from deepdive.norms import RMSNorm
from deepdive.positions import LearnedPositions

KEEP = torch.ones(2, 5).bool()
TINY = BertConfig(40, d_model=12, n_layers=1, n_heads=3, d_ff=16, max_seq_len=8)
BERT = Bert(TINY)
LAYER = MultiHeadAttention(12, 3)
IDS = torch.zeros(2, 5).long()
MEMORY = Memory()


def x(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def remembering():
    """The layer, once the memory holds three positions."""
    if not MEMORY.held:
        LAYER(x(1, 2, 12), x(1, 3, 12), cache=MEMORY)
    return LAYER


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


@pytest.mark.parametrize("kernel", [equation, fused, tiled])
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
    "another context": (
        lambda: remembering().forward(x(1, 2, 12), x(1, 4, 12), cache=MEMORY),
        ValueError,
        "(1, 4, 12)",
    ),
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
    "no records": (lambda: show.table([], "T"), ValueError, "no rows"),
    "other keys": (
        lambda: show.table([{"a": 1}, {"b": 1}], "T"),
        ValueError,
        "['b']",
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
