# SPDX-License-Identifier: MIT
"""The novels are cut once and for all, and three models are asked fairly about them."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from deepdive import shelf
from deepdive.decoding import greedy
from deepdive.models.gpt import Gpt
from deepdive.models.t5 import T5
from deepdive.objectives import IGNORED, cross_entropy, fill_spans
from deepdive.positions import RelativeBias
from deepdive.recipes import RECIPES
from deepdive.recipes import austen as a
from deepdive.recipes import novels as n
from deepdive.tokenizers import train_bpe

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = "austen-bert", "austen-gpt", "austen-t5"


# ------------------------------------------------------------------------- the text


def test_six_novels_in_269_chapters():
    """As many as the editions have: Emma 55, … (each novel's last number)."""
    last = {}
    for chapter in n.chapters():
        assert chapter.number == last.get(chapter.novel, 0) + 1
        last[chapter.novel] = chapter.number
    assert last == dict(zip(n.NOVELS, (55, 48, 31, 24, 61, 50), strict=True))


def test_nothing_but_the_novels_is_left():
    text = "\n".join(chapter.text for chapter in n.chapters())
    odd = re.findall(r"Gutenberg|VOLUME|FINIS|THE END|_|\* \*|^ | $| {2}", text, re.M)
    assert not odd
    assert sorted(set(re.findall(r"[^\x20-\x7e\n]", text))) == ["£"]
    assert 3.99e6 < len(text) < 4.01e6


def test_no_chapter_is_in_two_parts():
    parts = [{(c.novel, c.number) for c in part} for part in n.split()]
    assert [len(part) for part in parts] == [241, 14, 14]
    assert len(set.union(*parts)) == 269
    first = ("pride_and_prejudice", 1)  # the sentence that everybody knows
    assert first in parts[2]


def test_the_pieces_were_learned_from_the_training_alone():
    """The stored file is what the library makes of these chapters, merge by merge."""
    again = train_bpe([c.text for c in n.split().train], n.VOCABULARY, n.SPECIAL)
    stored = (shelf.data("austen") / "tokenizer.json").read_text(encoding="utf-8")
    assert again.raw.to_str(pretty=True) == stored
    assert n.tokenizer().vocab_size == n.VOCABULARY


@pytest.mark.parametrize("part", n.Split._fields)
def test_a_stream_is_the_text_and_nothing_else(part):
    ids, chapters = n.stream(part), getattr(n.split(), part)
    text = n.tokenizer().decode(ids, skip_special=False)
    assert text == "".join(n.END + chapter.text for chapter in chapters)
    n_bytes = sum(len(chapter.text.encode()) for chapter in chapters)
    assert int(n.byte_lengths()[ids].sum()) == n_bytes
    with pytest.raises(ValueError, match="'all'"):
        n.stream("all")


# ----------------------------------------------------------------- the three recipes


def test_the_three_have_one_size_and_read_the_same_text(monkeypatch):
    sizes = [
        sum(p.numel() for name, p in m.named_parameters() if "position" not in name)
        for m in (RECIPES[name].model() for name in NAMES)
    ]
    assert max(sizes) / min(sizes) < 1.01
    plain, hidden, dropped = (
        RECIPES[name].batches(3)(5)
        for name in ("austen-gpt", "austen-bert", "austen-t5")
    )
    asked = hidden.labels != IGNORED
    assert torch.equal(torch.where(asked, hidden.labels, hidden.inputs), plain)
    marks = [n.tokenizer().id_of(piece) for piece in n.SENTINELS]
    rows = zip(dropped.inputs, dropped.targets, strict=True)
    filled = [fill_spans(read, written, marks) for read, written in rows]
    assert torch.equal(torch.stack(filled), plain)


def test_no_batch_holds_a_held_out_page(monkeypatch):
    asked = []
    monkeypatch.setattr(a, "stream", lambda part: asked.append(part) or n.stream(part))
    for name in NAMES:
        RECIPES[name].batches(0)(0)
    assert set(asked) == {"train"}
    a.dev_windows.cache_clear()
    a.dev_windows()
    assert asked[-1] == "dev"


@pytest.mark.parametrize(
    ("name", "masked", "swapped"),
    [
        ("austen-bert", 0.8, 0.1),
        ("austen-bert-masks-only", 1.0, 0.0),
        ("austen-bert-no-swap", 0.8, 0.0),
        ("austen-bert-no-same", 0.8, 0.2),
    ],
)
def test_what_is_hidden_how(name, masked, swapped):
    """Shares over 12 batches, about 7,400 chosen pieces: within four deviations."""
    draw, source = RECIPES[name].batches(1), a.windows("train", 1)
    counts = torch.zeros(3)
    for number in range(12):
        batch, ids = draw(number), source(number)
        chosen = batch.labels != IGNORED
        is_mask = batch.inputs == n.tokenizer().id_of(n.MASK)
        other = chosen & ~is_mask & (batch.inputs != ids)
        counts += torch.tensor([(chosen & is_mask).sum(), other.sum(), chosen.sum()])
    chosen = counts[2]
    assert abs(chosen / (12 * ids.numel()) - 0.15) < 0.007
    assert abs(counts[0] / chosen - masked) < 0.02
    assert abs(counts[1] / chosen - swapped) < 0.015


@pytest.mark.parametrize("name", ["austen-bert", "austen-t5"])
def test_every_batch_hides_other_places(name):
    """Of the same pages: the number, and the seed, say where."""
    kind = {"austen-bert": a.Hidden, "austen-t5": a.Dropped}[name]
    pages = a.windows("train", 0)(0)

    def gone(number, seed):
        batch = kind(lambda _: pages, seed)(number)
        return batch.labels != IGNORED if kind is a.Hidden else batch.targets

    first = gone(0, seed=4)
    assert torch.equal(gone(0, seed=4), first)
    assert not torch.equal(gone(1, seed=4), first)
    assert not torch.equal(gone(0, seed=5), first)


def test_both_ways_is_the_gpt_without_its_mask():
    """In one layer, biases and positions 0: the last piece sees what it sees there."""
    torch.manual_seed(0)
    config = replace(a.GPT, n_layers=1)
    one, other = a.BothWays(config).eval(), Gpt(config).eval()
    with torch.no_grad():
        one.bias.table.weight.zero_()
        one.output.bias.zero_()
        other.position.weight.zero_()
    other.token.load_state_dict(one.token.state_dict())
    other.blocks.load_state_dict(one.blocks.state_dict())
    other.norm.load_state_dict(one.norm.state_dict())
    ids = torch.randint(a.VOCABULARY, (2, 9))
    both, back = one(ids), other(ids)
    assert torch.allclose(both[:, -1], back[:, -1], atol=1e-5)
    assert not torch.allclose(both[:, 0], back[:, 0], atol=1e-2)


@pytest.mark.parametrize("both", [True, False])
def test_look_near(both):
    bias = RelativeBias(4, both, 32, 128)
    a.look_near(bias)
    at = torch.arange(9)
    row = bias(at, at)[0, :, 4]  # (H, 9), distances −4 … 4
    slopes = torch.tensor([2.0, 1.0, 0.5, 0.25])[:, None]
    away = -slopes * (at - 4).abs()
    if both:
        left, right = at <= 4, at >= 4  # itself is on the avoided side of either
        away[0::2] -= 3.0 * right
        away[1::2] -= 3.0 * left
        assert torch.equal(row, away)
    else:
        assert torch.equal(row[:, :5], away[:, :5])


def test_the_small_bert_begins_with_its_neighbours_and_the_frequent():
    """What is drawn is what `BothWays` draws; then two of its tables are set."""
    torch.manual_seed(0)
    drawn = a.BothWays(a.GPT)
    torch.manual_seed(0)
    begun = a.both_ways()
    a.look_near(drawn.bias)
    drawn.output.bias.data.copy_(a.log_frequencies())
    for name, weights in drawn.state_dict().items():
        assert torch.equal(begun.state_dict()[name], weights), name


def test_another_size_reads_no_novel(monkeypatch):
    """The class is the mechanism: only `both_ways` needs the corpus."""

    def stream(part):
        raise AssertionError(part)

    monkeypatch.setattr(a, "stream", stream)
    a.log_frequencies.cache_clear()
    assert (
        a.BothWays(replace(a.GPT, vocab_size=7))(torch.tensor([[1, 6]])).shape[2] == 7
    )


def test_the_small_t5_finds_a_mark_by_its_like():
    torch.manual_seed(0)
    across = a.t5().decoder[0].cross_attention
    x = torch.randn(50, a.T5_SIZES.d_model)
    scores = across.q_proj(x) @ across.k_proj(x).T
    assert (scores.argmax(1) == torch.arange(50)).all()


def test_the_small_t5_begins_near_and_its_tables_learn_slowly():
    model, at = a.t5(), torch.arange(9)
    back = model.decoder_bias(at, at)[0, :, 8, :8].flip(-1)  # (H, 8), 1 … 8 back
    far = torch.arange(1, 9.0)
    assert torch.equal(back[0], (-2 * far).clamp(min=-6))
    assert torch.equal(back[3], -0.25 * far)
    here = model.encoder_bias(at, at)[0, :, 4]  # the side a head avoids: 3 less
    assert here[0, 3] == -2 and here[0, 5] == -5 and here.min() >= -9
    others, tables = a.adafactor(model, lr=0.03).param_groups
    assert tables["lr"] == pytest.approx(0.1 * others["lr"])
    assert {id(x) for x in tables["params"]} == {
        id(half.table.weight) for half in (model.encoder_bias, model.decoder_bias)
    }
    assert len(others["params"]) + 2 == len(list(model.parameters()))


def test_log_frequencies_are_the_best_that_one_distribution_can_say():
    logits = a.log_frequencies()
    assert torch.allclose(logits.exp().sum(), torch.tensor(1.0))
    ids = n.stream("train")[:200_000]
    loss = cross_entropy(logits.expand(len(ids), -1), ids).mean
    shifted = logits + 0.3 * torch.randn(len(logits), generator=a.seeded(1))
    assert loss < cross_entropy(shifted.expand(len(ids), -1), ids).mean


class Oracle(nn.Module):
    """Answers right, or always the same piece."""

    def __init__(self, answers, piece=None):
        super().__init__()
        self.answers, self.piece = answers, piece
        self.read = []
        self.here = nn.Parameter(torch.zeros(()))

    def forward(self, *inputs):
        self.read.append(inputs)
        ids = self.answers if self.piece is None else self.answers * 0 + self.piece
        return 50.0 * nn.functional.one_hot(ids.clamp(min=0), a.VOCABULARY).float()


def test_the_judges_know_right_from_wrong():
    ids = a.dev_windows()
    after = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)
    dropped = a.Dropped(lambda number: ids, seed=0)(0)
    for judge, answers in (
        (a.judge_masked, ids),
        (a.judge_causal, after),
        (a.judge_spans, dropped.targets),
    ):
        right, wrong = judge(Oracle(answers)), judge(Oracle(answers, piece=5))
        assert right["accuracy"] == 1.0 and right["dev_loss"] < 1e-3
        assert wrong["accuracy"] < 0.01 and wrong["dev_loss"] > 49
    bits = a.judge_causal(Oracle(after))["bits_per_byte"]
    assert 0 <= bits < 1e-3


def test_a_gap_is_judged_with_a_mask_in_it():
    """All that is asked is hidden, nothing swapped or left; all else is the text."""
    ids, oracle = a.dev_windows(), Oracle(a.dev_windows())
    a.judge_masked(oracle)
    [[read]] = oracle.read
    hidden = read == n.tokenizer().id_of(n.MASK)
    assert torch.equal(read[~hidden], ids[~hidden])
    asked = a.Hidden(lambda number: ids, seed=0)(0).labels != IGNORED
    assert torch.equal(hidden, asked)
    assert abs(hidden.double().mean() - 0.15) < 0.01


def test_the_bits_of_an_even_guess_are_shared_among_the_texts_bytes():
    """log₂ 1024 = 10 bits a piece; the bytes are those of the text that is read."""

    class Even(nn.Module):
        def __init__(self):
            super().__init__()
            self.here = nn.Parameter(torch.zeros(()))

        def forward(self, ids):
            return torch.full((*ids.shape, a.VOCABULARY), 0.7)

    guessed = a.dev_windows()[:, 1:]
    text = [n.tokenizer().decode(row, skip_special=False) for row in guessed]
    n_bytes = sum(len(row.replace(n.END, "").encode()) for row in text)
    assert not any("\ufffd" in row for row in text)
    bits = a.judge_causal(Even())["bits_per_byte"]
    assert bits == pytest.approx(10 * guessed.numel() / n_bytes, rel=1e-6)


# ----------------------------------------------------------------------- they write


def test_a_hidden_piece_stands_behind_all_that_was_given():
    seen = []

    def model(ids):
        seen.append(ids.tolist())
        return torch.zeros(*ids.shape, 7).index_fill(2, ids[0, -2:-1], 1.0)

    step = a.LastHidden(model, mask=6, window=4)
    written = greedy(step, torch.tensor([[1, 2]]), max_new=3).rows()
    assert seen == [[[1, 2, 6]], [[1, 2, 2, 6]], [[2, 2, 2, 6]]]
    assert written == [[2, 2, 2]]


@pytest.mark.parametrize("name", NAMES)
def test_a_text_longer_than_a_window_is_refused(name):
    recipe = RECIPES[name]
    model = recipe.model().eval()
    with pytest.raises(ValueError, match="pieces; the model has read at most 128"):
        recipe.write(model, "Emma " * 200)


def test_a_gap_is_filled_where_it_stands():
    model = RECIPES["austen-t5"].model().eval()
    gap = a.write_spans(model, f"Emma {n.SENTINELS[0]} Woodhouse")
    end = a.write_spans(model, "Emma")
    read = gap.step.beside["memory"].shape[1], end.step.beside["memory"].shape[1]
    cut = n.tokenizer().encode
    assert read[0] == cut(f"Emma{n.SENTINELS[0]} Woodhouse").ids.shape[1] + 1
    assert read[1] == cut("Emma" + n.SENTINELS[0]).ids.shape[1]
    assert isinstance(model, T5)
