# SPDX-License-Identifier: MIT
"""Heads of language models: looked at, removed, and tested for induction.

The outside reference is a head built by hand that looks for the piece after an earlier
copy and for nothing else (Elhage et al. 2021). What trained models do is asked at the
end.
"""

import copy
import math
import os

import pytest
import torch
import torch.nn.functional as F
from compare import close
from torch import nn

from deepdive import induction
from deepdive.ablation import ablate
from deepdive.attention import MultiHeadAttention
from deepdive.configs import GptConfig, LlamaConfig
from deepdive.masks import Causal
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.objectives import causal_lm
from deepdive.pretrained import WeightsMissing, glassllm, smollm2
from deepdive.recipes import novels
from deepdive.tokenizers import END, byte_tokenizer, train_bpe, visible

TEXTS = ["cats chase mice", "cats sleep where mice cannot chase cats"]
NAMES = "Tom and Jerry"
CAUSAL = Causal()


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe([*TEXTS, f" {NAMES}"] * 4, vocab_size=300)


def small(kind):
    """A causal model of random numbers large enough for heads to differ."""
    torch.manual_seed(0)
    sizes = {"d_model": 12, "n_layers": 2, "d_ff": 16, "max_seq_len": 64}
    if kind == "gpt":
        model = Gpt(GptConfig(300, n_heads=3, **sizes))
    else:
        model = Llama(LlamaConfig(300, n_heads=6, n_kv_heads=3, **sizes))
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    return model.eval()


@pytest.fixture(scope="module", params=["gpt", "llama"])
def model(request):
    return small(request.param)


@pytest.fixture(scope="module")
def maps(model, tokenizer):
    return induction.causal_maps(model, tokenizer, TEXTS, NAMES, begin=END)


class ByHand(nn.Module):
    """Head 0 looks for the piece after earlier copies; head 1 spreads its weight.

    A position knows its piece and the one before it: what a head that looks at the
    previous piece would have written there.
    """

    def __init__(self, V=40, mask=CAUSAL):
        super().__init__()
        self.V, self.mask = V, mask
        attention = MultiHeadAttention(2 * V, n_heads=2, head_dim=V)
        own, previous = torch.eye(V, 2 * V), torch.eye(V, 2 * V).roll(V, 1)
        none = torch.zeros(V, 2 * V)
        with torch.no_grad():
            attention.q_proj.weight.copy_(torch.cat([200 * own, none]))
            attention.k_proj.weight.copy_(torch.cat([previous, none]))
            attention.v_proj.weight.copy_(torch.cat([20 * own, none]))
            attention.o_proj.weight.copy_(torch.eye(2 * V))
        block = nn.Module()
        block.attention = attention
        self.blocks = nn.ModuleList([block])

    def forward(self, ids):
        x = F.one_hot(ids, self.V)
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        x = torch.cat([x, before], -1).to(self.blocks[0].attention.q_proj.weight)
        return self.blocks[0].attention(x, mask=self.mask)[..., : self.V]


# ------------------------------------------------------------ a head that is known


@pytest.mark.parametrize("begin", [None, 0])
def test_the_head_built_by_hand_is_found(begin):
    model, n = ByHand(), 10
    found = induction.induction_test(
        model, range(1, 40), begin=begin, length=n, sequences=3, remove=True
    )
    assert found.scores["induction"][0, 0] == pytest.approx(1, abs=1e-6)
    assert found.scores["same"][0, 0] < 1e-6
    assert found.scores["induction"][0, 1] == pytest.approx(found.chance, abs=1e-12)
    assert found.losses[1].max() < 1e-3 and found.losses[0].mean() > 3
    assert found.right.tolist() == [0, 1]
    assert found.gain > 3
    # Without it the model knows nothing: every piece is as likely as another.
    close(found.without[0, 0], [math.log(40)] * 2)
    assert found.lost[0, 0] == pytest.approx(found.gain, abs=1e-9)
    assert found.lost[0, 1] == pytest.approx(0, abs=1e-12)


def test_nothing_is_found_where_heads_spread_their_weight():
    model = ByHand()
    with torch.no_grad():
        model.blocks[0].attention.q_proj.weight.zero_()
    found = induction.induction_test(model, range(40), length=8, sequences=2)
    for score in ("induction", "same", "previous", "first", "itself"):
        close(found.scores[score], [[found.chance] * 2], what=score)
    assert found.without is None
    with pytest.raises(ValueError, match="remove=True"):
        _ = found.lost


# ------------------------------------------------------------------- by other ways


def test_scores_and_losses_are_counted_by_hand(model):
    begin, n = 3, 6
    found = induction.induction_test(
        model, range(5, 90), begin=begin, length=n, sequences=4, seed=1, remove=True
    )
    ids, exact = found.ids, copy.deepcopy(model).double()
    assert ids.shape == (4, 2 * n + 1) and (ids[:, 0] == begin).all()
    assert torch.equal(ids[:, 1 : n + 1], ids[:, n + 1 :])
    assert all(len(set(row.tolist())) == n for row in ids[:, 1 : n + 1])
    with induction.record(exact) as seen, torch.no_grad():
        logits = exact(ids)
    for name, back in (("induction", n - 1), ("same", n), ("previous", 1)):
        for layer in (0, 1):
            w = seen[f"blocks.{layer}.attention"]
            rows = range(n + 1, 2 * n + 1)
            mean = torch.stack([w[:, :, t, t - back] for t in rows]).mean((0, 1))
            close(found.scores[name][layer], mean, what=name)
    log_p = logits.log_softmax(-1)
    for copy_, first in ((0, 1), (1, n + 1)):
        costs = [
            -log_p[torch.arange(4), t - 1, ids[:, t]].mean()
            for t in range(first + 1, first + n)
        ]
        close(found.losses[copy_], torch.stack(costs))
        guessed = logits[:, first : first + n - 1].argmax(-1)
        right = (guessed == ids[:, first + 1 : first + n]).double().mean()
        assert float(found.right[copy_]) == pytest.approx(float(right))
    with ablate(exact, 1, 2), torch.no_grad():
        log_p = exact(ids).log_softmax(-1)
    costs = [-log_p[torch.arange(4), t - 1, ids[:, t]] for t in range(n + 2, 2 * n + 1)]
    assert float(found.without[1, 2, 1]) == pytest.approx(
        float(torch.cat(costs).mean())
    )


def test_every_map_is_the_models_own_and_needs_no_padding(model, tokenizer, maps):
    exact = copy.deepcopy(model).double()
    for i, text in enumerate(TEXTS):
        ids = torch.tensor([[0, *tokenizer.encode(text).ids[0].tolist()]])
        T = ids.shape[1]
        with induction.record(exact) as seen, torch.no_grad():
            logits = exact(ids)
        for layer in (0, 1):
            close(maps.weights[i][layer], seen[f"blocks.{layer}.attention"][0])
        assert maps.weights[i].triu(1).abs().max() == 0
        assert len(maps.tokens[i]) == T and maps.tokens[i][0] == END
        assert "".join(maps.tokens[i][1:]) == text.replace(" ", "·")
        loss = causal_lm(logits, ids)
        assert float(maps.losses[i].sum()) == pytest.approx(float(loss.total))
        for head in (0, 2):
            with ablate(exact, 1, head), torch.no_grad():
                log_p = exact(ids).log_softmax(-1)[0]
            costs = -log_p[torch.arange(T - 1), ids[0, 1:]]
            close(maps.without[i][1, head], costs)
            close(maps.changes[i][1, head], costs - maps.losses[i])


def test_means_are_over_pieces_and_leave_out_what_is_said_twice(maps):
    assert maps.copies[:2] == (0, 0) and maps.plain == [0, 1]
    pieces = torch.cat(maps.losses[:2])
    assert maps.loss == pytest.approx(float(pieces.mean()))
    change = torch.cat([w[0, 1] for w in maps.without[:2]]) - pieces
    assert float(maps.effect[0, 1]) == pytest.approx(float(change.mean()))
    rows = [(w, t) for w in maps.weights[:2] for t in range(2, w.shape[-1])]
    for name, key in (
        ("first", lambda t: 0),
        ("previous", lambda t: t - 1),
        ("itself", lambda t: t),
    ):
        mean = torch.stack([w[:, :, t, key(t)] for w, t in rows]).mean(0)
        close(maps.patterns[name], mean, what=name)
    close(maps.peak, torch.stack([w[:, :, t].amax(-1) for w, t in rows]).mean(0))
    beyond = torch.stack([w[:, :, t, 1:].amax(-1) for w, t in rows]).mean(0)
    close(maps.peak_beyond_first, beyond)


def test_texts_that_are_said_twice(maps, tokenizer):
    assert set(maps.repeats) == {2, 3}
    n = len(tokenizer.tokens(f" {NAMES}"))
    assert maps.copies[2:] == (n, n)
    for i, found in maps.repeats.items():
        tokens = maps.tokens[i]
        assert tokens[1 : n + 1] == tokens[n + 1 :] and len(tokens) == 2 * n + 1
        w = maps.weights[i]
        rows = range(n + 1, 2 * n + 1)
        mean = torch.stack([w[:, :, t, t - n + 1] for t in rows]).mean(0)
        close(found["induction"], mean)
        for copy_, first in ((0, 1), (1, n + 1)):
            costs = maps.losses[i][first : first + n - 1]
            assert float(found["losses"][copy_]) == pytest.approx(float(costs.mean()))
            without = maps.without[i][1, 0, first : first + n - 1].mean()
            assert float(found["without"][1, 0, copy_]) == pytest.approx(float(without))


def test_some_layers_are_shown_as_they_are_among_all(model, tokenizer, maps):
    how = {"begin": END, "exact": False}
    some = induction.causal_maps(
        model, tokenizer, TEXTS, NAMES, layers=range(1, 2), **how
    )
    assert some.first_layer == 1 and maps.first_layer == 0
    for i in range(4):
        close(some.weights[i].double(), maps.weights[i][1:], 1e-5)
        close(some.without[i].double(), maps.without[i][1:], 1e-4)
    for wrong in (range(2, 3), range(0), range(-1, 1), range(0, 2, -1)):
        with pytest.raises(ValueError, match="layers must"):
            induction.causal_maps(model, tokenizer, TEXTS, NAMES, layers=wrong, **how)


def test_the_same_seed_draws_the_same_and_another_otherwise():
    draw = induction.random_sequences
    assert torch.equal(draw(range(50), 9, 3, 0), draw(range(50), 9, 3, 0))
    assert not torch.equal(draw(range(50), 9, 3, 0), draw(range(50), 9, 3, 1))
    assert draw([4, 2, 4, 9], 3, 1, 0).sort().values.tolist() == [[2, 4, 9]]


def test_the_models_own_precision_is_near(model):
    how = {"pieces": range(90), "length": 6, "sequences": 2}
    exact = induction.induction_test(model, **how)
    plain = induction.induction_test(model, **how, exact=False)
    assert exact.losses.dtype == torch.float64 and plain.losses.dtype == torch.float32
    assert (exact.losses - plain.losses).abs().max() < 1e-4
    close(exact.scores["induction"], plain.scores["induction"].double(), 1e-5)


def test_the_model_is_left_as_it_was(model, tokenizer):
    model = copy.deepcopy(model).train()
    kernels = [block.attention.kernel for block in model.blocks]
    induction.causal_maps(model, tokenizer, TEXTS, NAMES, begin=END)
    induction.induction_test(model, range(30), length=4, sequences=1, remove=True)
    assert model.training and next(model.parameters()).dtype == torch.float32
    assert [block.attention.kernel for block in model.blocks] == kernels
    parts = model.modules()
    assert not sum(len(p._forward_pre_hooks) + len(p._forward_hooks) for p in parts)


# -------------------------------------------------------------------------- pieces


def test_word_pieces_begin_words(tokenizer):
    found = induction.word_pieces(tokenizer)
    words = [visible(tokenizer, i) for i in found]
    assert "·cats" in words or "·chase" in words
    assert all(word[0] == "·" and word[1:].isalpha() for word in words)
    with pytest.raises(ValueError, match="no piece"):
        induction.word_pieces(byte_tokenizer())


def test_the_books_texts_are_of_the_tests_chapters():
    parts = novels.split()
    test = " ".join(c.text.replace("\n", " ") for c in parts.test)
    rest = " ".join(c.text.replace("\n", " ") for c in (*parts.train, *parts.dev))
    for text in induction.TEXTS:
        assert text in test and text not in rest, text
        assert len(novels.tokenizer().tokens(text)) < induction.LONGEST
    for name in induction.NAMES.split(" and "):
        assert name not in test + rest, name
    once = novels.tokenizer().tokens(f" {induction.NAMES}")
    assert len(set(once)) == len(once), "a piece with two earlier copies"


# ------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("texts", "error", "part"),
    [
        ("cats chase mice", TypeError, "list of texts"),
        ([], ValueError, "got 0"),
        (TEXTS * 6, ValueError, "got 12"),
        ([None], TypeError, "None"),
        (["cats " * 40], ValueError, r"3 … 23"),
        (["a"], ValueError, "has 1 pieces"),
    ],
)
def test_texts_that_cannot_be_mapped_are_refused(tokenizer, texts, error, part):
    with pytest.raises(error, match=part):
        induction.causal_maps(small("gpt"), tokenizer, texts, NAMES, begin=END)


def test_other_wrong_input_is_named(tokenizer):
    model = small("gpt")
    with pytest.raises(ValueError, match="'<x>' is not in the vocabulary"):
        induction.causal_maps(model, tokenizer, TEXTS, begin="<x>")
    with pytest.raises(ValueError, match="3 … 11"):
        induction.causal_maps(model, tokenizer, TEXTS, "many names " * 5, begin=END)
    with pytest.raises(ValueError, match="look ahead"):
        induction.induction_test(ByHand(mask=None), range(9), length=3, sequences=1)
    with pytest.raises(ValueError, match="4 different pieces give no 5"):
        induction.induction_test(model, [1, 2, 3, 4, 4], length=5)
    with pytest.raises(ValueError, match="length must be ≥ 2"):
        induction.induction_test(model, range(9), length=1)
    with pytest.raises(TypeError, match="model must be a Module"):
        induction.induction_test("gpt", range(9))
    with pytest.raises(TypeError, match="tokenizer must be a Tokenizer"):
        induction.word_pieces("words")


# ------------------------------------------------------------------ trained models


def trained(load):
    try:
        return load()
    except WeightsMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def test_a_small_model_has_no_induction_heads():
    model, tokenizer = trained(lambda: glassllm("en"))
    found = induction.induction_test(
        model, induction.word_pieces(tokenizer), begin=tokenizer.id_of("<bos>")
    )
    assert float(found.scores["induction"].max()) == pytest.approx(0.045, abs=5e-4)
    assert found.gain == pytest.approx(-0.322, abs=5e-4)


@pytest.mark.slow
def test_smollm2_has_them():
    model, tokenizer = trained(smollm2)
    found = induction.induction_test(
        model, induction.word_pieces(tokenizer), sequences=2, exact=False,
        begin=tokenizer.id_of("<|endoftext|>"),
    )  # fmt: skip
    score = found.scores["induction"]
    assert divmod(int(score.argmax()), 9) == (18, 6) and score.max() > 0.9
    assert score[:17].max() < 0.1 and int((score > 0.5).sum()) == 6
    assert found.gain > 11 and found.right[0] == 0 and found.right[1] > 0.75
