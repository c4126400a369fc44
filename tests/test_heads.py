# SPDX-License-Identifier: MIT
"""Looking at every head and removing each in turn, on a small model of random numbers.

What the trained model's heads do is tested beside the figure that shows it.
"""

import copy

import pytest
import torch
from compare import close

from deepdive import heads
from deepdive.ablation import ablate
from deepdive.configs import BertConfig
from deepdive.models.bert import Bert
from deepdive.pretrained import pool, similarity
from deepdive.tokenizers import Encoded

TEXTS = ["cats chase mice", "mice chase", "cats do chase mice"]
WORDS = ["[CLS]", "[SEP]", "cats", "chase", "mice", "do"]


class Tokens:
    """Whole words; as much of a tokenizer as `head_maps` asks for."""

    def tokens(self, text):
        return ["[CLS]", *text.split(), "[SEP]"]

    def encode(self, texts):
        rows = [[WORDS.index(word) for word in self.tokens(text)] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        sizes = torch.tensor([len(row) for row in rows])
        keep = torch.arange(longest) < sizes[:, None]
        return Encoded(ids, torch.zeros_like(ids), keep)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = Bert(BertConfig(6, d_model=12, n_layers=2, n_heads=3, d_ff=16)).double()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model.eval()


@pytest.fixture(scope="module")
def maps(model):
    return heads.head_maps(model, Tokens(), TEXTS)


@torch.no_grad()
def cosines(model):
    batch = Tokens().encode(TEXTS)
    return similarity(pool(model(*batch), batch.keep))


def hooks(model):
    parts = model.modules()
    return sum(len(p._forward_hooks) + len(p._forward_pre_hooks) for p in parts)


def test_every_removal_is_ablates(model, maps):
    close(maps.cosines, cosines(model))
    for layer in (0, 1):
        for head in (0, 1, 2):
            with ablate(model, layer, head):
                expected = cosines(model)
            what = f"without head {head} of layer {layer}"
            close(maps.without[layer, head], expected, what=what)
            assert (expected - maps.cosines).abs().max() > 1e-9


def test_maps_are_cut_to_their_sentence(maps):
    for weights, text in zip(maps.weights, TEXTS, strict=True):
        T = len(text.split()) + 2
        assert weights.shape == (2, 3, T, T)
        close(weights.sum(-1), torch.ones(2, 3, T).double())


def test_lengths_of_v_at_cls_and_at_the_words(model, maps):
    batch, layer = Tokens().encode(TEXTS), model.blocks[0].attention
    v = layer.v_proj(model.embeddings(batch.ids)).unflatten(-1, (3, 4)).norm(dim=-1)
    words = [v[b, 1 : n - 1] for b, n in enumerate(batch.keep.sum(1).tolist())]
    close(maps.value_lengths[0, :, 0], v[:, 0].mean(0).detach())
    close(maps.value_lengths[0, :, 1], torch.cat(words).mean(0).detach())


def test_the_model_is_left_as_it_was(model):
    model = copy.deepcopy(model).float().train()
    before, kernels = cosines(model), [b.attention.kernel for b in model.blocks]
    heads.head_maps(model, Tokens(), TEXTS)
    assert hooks(model) == 0 and torch.equal(cosines(model), before)
    assert [b.attention.kernel for b in model.blocks] == kernels
    assert model.training and before.dtype == torch.float32


def test_no_hook_stays_after_an_error(model):
    keep = Tokens().encode(TEXTS).keep
    with pytest.raises(RuntimeError), heads._value_lengths(model, keep):
        assert hooks(model) == 2
        raise RuntimeError
    with pytest.raises(ValueError, match="13"):
        heads._without_each_head(model, 0, torch.zeros(3, 6, 13).double(), keep)
    assert hooks(model) == 0


@pytest.mark.parametrize(
    ("texts", "error", "part"),
    [
        ("cats chase mice", TypeError, "list of sentences"),
        (TEXTS[:1], ValueError, "got 1"),
        (TEXTS * 3, ValueError, "got 9"),
        (["cats", *TEXTS], ValueError, "1 word pieces"),
        (["cats " * 15, *TEXTS], ValueError, "17 pieces"),
        ([None, *TEXTS], TypeError, "None"),
    ],
)
def test_what_cannot_be_mapped_is_refused(model, texts, error, part):
    with pytest.raises(error, match=part):
        heads.head_maps(model, Tokens(), texts)
