# SPDX-License-Identifier: MIT
"""What must hold for any BERT, whatever its weights."""

import dataclasses
import subprocess
import sys
from collections import Counter as Counts

import pytest
import torch
from compare import close
from torch.utils._python_dispatch import TorchDispatchMode

from deepdive.attention import record
from deepdive.configs import BERT_BASE, BERT_LARGE, MINILM_L6, BertConfig
from deepdive.masks import Everyone
from deepdive.models.bert import Bert

TINY = BertConfig(40, d_model=12, n_layers=2, n_heads=3, d_ff=16, max_seq_len=8)
TOKENS = torch.tensor([[1, 7, 9, 2]])
SEGMENTS = torch.tensor([[0, 0, 1, 1]])


@pytest.fixture(params=range(2))
def model(request):
    torch.manual_seed(request.param)
    return Bert(TINY).double().eval()


def test_a_padded_sentence_reads_as_if_alone(model):
    other = torch.tensor([[1, 5, 6, 8, 11, 12, 2]])
    padded = torch.cat([TOKENS, torch.tensor([[39, 38, 37]])], 1)  # padding may be any
    batch, keep = torch.cat([padded, other]), torch.ones(2, 7).bool()
    keep[0, 4:] = False
    out = model(batch, keep=keep)
    assert out.shape == (2, 7, 12)
    close(out[:1, :4], model(TOKENS))
    close(out[1:], model(other))


def test_gradients_do_not_reach_padding(model):
    keep = torch.tensor([[True, True, True, False]])
    model(TOKENS, keep=keep)[keep].square().sum().backward()
    assert (model.embeddings.token.weight.grad[2] == 0).all()
    assert (model.embeddings.token.weight.grad[9] != 0).any()


def test_every_word_sees_both_ways(model):
    changed = TOKENS.clone()
    changed[0, 3] = 30
    difference = (model(changed) - model(TOKENS)).abs().amax(-1)[0]
    assert (difference > 1e-6).all(), "a change at the end reaches the beginning"


def test_order_matters(model):
    swapped = model(TOKENS[:, [0, 2, 1, 3]])[:, [0, 2, 1, 3]]
    assert (swapped - model(TOKENS)).abs().max() > 1e-3


def test_segments_matter_and_default_to_the_first(model):
    plain = model(TOKENS)
    close(model(TOKENS, torch.zeros_like(TOKENS)), plain)
    a, b = model(TOKENS, SEGMENTS), model(TOKENS, 1 - SEGMENTS)
    assert (a - plain).abs().max() > 1e-3 and (a - b).abs().max() > 1e-3


def test_embeddings_are_three_vectors_and_a_norm(model):
    e = model.embeddings
    total = e.token.weight[TOKENS] + e.position.weight[:4] + e.segment.weight[SEGMENTS]
    centred = total - total.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + TINY.norm_eps).sqrt()
    close(e(TOKENS, SEGMENTS), centred / spread)


def test_pooled_reads_the_first_position_only(model):
    hidden = model(TOKENS)
    expected = (hidden[:, 0] @ model.pooler.weight.T + model.pooler.bias).tanh()
    close(model.pooled(hidden), expected)
    hidden[:, 1:] = 0
    close(model.pooled(hidden), expected)


def test_int32_ids_are_ids(model):
    close(model(TOKENS.int(), SEGMENTS.int()), model(TOKENS, SEGMENTS))


class Counter(TorchDispatchMode):
    """Counts what is asked of the device, by the operation's name."""

    def __init__(self):
        super().__init__()
        self.count = Counts()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["tokens", "segments"])
@pytest.mark.parametrize("keep", [None, TOKENS > 0], ids=["all", "padding"])
def test_ids_are_read_back_once_and_nothing_else_is(model, segments, keep):
    """Every number that Python asks for makes a GPU wait."""
    with torch.no_grad(), Counter() as asked:
        model(TOKENS, segments, keep)
    assert asked.count["aminmax"] == (1 if segments is None else 2)
    assert asked.count["_local_scalar_dense"] == 0


def test_a_model_without_numbers_can_be_run():
    with torch.device("meta"):
        model, ids = Bert(TINY), torch.empty(2, 5, dtype=torch.long)
        out = model(ids, ids, torch.empty(2, 5, dtype=torch.bool))
    assert out.is_meta and out.shape == (2, 5, 12)


def test_the_mask_is_made_once_for_all_layers(model, monkeypatch):
    made, tile = [], Everyone.tile
    monkeypatch.setattr(
        Everyone, "tile", lambda *a, **k: made.append(a) or tile(*a, **k)
    )
    model(TOKENS, keep=TOKENS > 0)
    assert len(made) == 1
    model(TOKENS)
    assert len(made) == 1, "no padding, no mask"


def test_nothing_is_masked_where_nothing_is_padded(model):
    with record(model) as seen:
        model(TOKENS)
    for weights in seen.values():
        assert (weights > 0).all()


@pytest.mark.parametrize(
    "config, count",
    [(BERT_BASE, 109_482_240), (BERT_LARGE, 335_141_888), (MINILM_L6, 22_713_216)],
    ids=["base", "large", "MiniLM"],
)
def test_published_sizes(config, count):
    """The numbers of parameters of the published encoders, pooler included."""
    with torch.device("meta"):
        assert sum(p.numel() for p in Bert(config).parameters()) == count


def test_sizes_are_frozen_and_need_no_torch():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TINY.d_model = 13
    code = "import sys, deepdive.configs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
