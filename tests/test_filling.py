# SPDX-License-Identifier: MIT
"""Gaps are filled without a look at what stood there, and as each model would."""

import itertools

import pytest
import torch

from deepdive import decoding
from deepdive.configs import GptConfig, T5Config
from deepdive.decoding import CachedStep, UncachedStep
from deepdive.filling import (
    draw_gaps,
    fill_at_once,
    fill_from_left,
    fill_surest_first,
    name_gaps,
    read_spans,
    rerank,
    spans,
)
from deepdive.models.gpt import Gpt
from deepdive.models.t5 import T5
from deepdive.objectives import fill_spans, span_corruption
from tests.compare import close

V, MASK = 12, 11
MARKS = [8, 9, 10, 7]  # sentinels


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32}
    model = Gpt(GptConfig(**sizes, max_seq_len=32)).eval()
    for weights in model.parameters():  # far from even guesses
        weights.data.mul_(8 if weights.dim() > 1 else 1)
    return model


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def gaps(rows=5, length=20, seed=0):
    ids = torch.randint(0, 7, (rows, length), generator=draw(seed))
    gone = torch.stack([draw_gaps(length, draw(seed + i), 0.3) for i in range(rows)])
    gone[:, 0] = False
    return ids, gone


# ── Where pieces are gone ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("rate", "mean"), [(0.15, 3.0), (0.4, 1.0), (0.3, 2.0)])
def test_gaps_are_those_that_span_corruption_draws(seed, rate, mean):
    ids, marks = torch.arange(100, 140), list(range(50, 90))
    expected = span_corruption(ids, marks, draw(seed), rate, mean)
    got = name_gaps(ids, draw_gaps(40, draw(seed), rate, mean), marks)
    assert all(map(torch.equal, got, expected))


def test_spans_are_the_stretches_that_are_gone():
    every = itertools.product([False, True], repeat=7)
    for row in every:
        found = spans(torch.tensor(row))
        again = [False] * 7
        for first, end in found:
            again[first:end] = [True] * (end - first)
            assert not (first and row[first - 1]) and not (end < 7 and row[end])
        assert tuple(again) == row


def test_named_gaps_are_undone_by_filling_them():
    ids, gone = gaps()
    for row, holes in zip(ids, gone, strict=True):
        inputs, targets = name_gaps(row, holes, range(50, 90))
        assert torch.equal(fill_spans(inputs, targets, range(50, 90)), row)


def test_too_few_sentinels_are_refused():
    gone = torch.tensor([False, True, False, True])
    with pytest.raises(ValueError, match="2 gaps need 3 sentinels, got 2"):
        name_gaps(torch.arange(4), gone, [8, 9])


def test_what_a_model_wrote_is_read_by_its_sentinels():
    assert read_spans([8, 1, 2, 9, 3], MARKS[:3]) == [[1, 2], [3], []]
    assert read_spans([5, 9, 3, 8, 1, 9, 4], MARKS[:3]) == [[1], [3], []]
    assert read_spans([], MARKS[:2]) == [[], []]
    ids, gone = gaps()
    for row, holes in zip(ids, gone, strict=True):
        marks = range(50, 90)
        _, targets = name_gaps(row, holes, marks)
        found = read_spans(targets.tolist(), marks)[: len(spans(holes))]
        assert found == [row[first:end].tolist() for first, end in spans(holes)]


# ── Nothing leaks ────────────────────────────────────────────────────────────────────


def masked_model(ids):
    """A model that looks at everything, in no sensible way."""
    table = torch.randn(V, V, generator=draw(3))
    x = table[ids]
    return x + 0.3 * x.mean(1, keepdim=True) + 0.7 * x.roll(1, 1) - 0.4 * x.roll(-1, 1)


def ways(gpt):
    return {
        "at once": lambda ids, gone: fill_at_once(masked_model, ids, gone, MASK),
        "surest first": lambda ids, gone: fill_surest_first(
            masked_model, ids, gone, MASK
        ),
        "from left": lambda ids, gone: fill_from_left(
            CachedStep(gpt, gpt.new_caches()), ids, gone
        ),
    }


@pytest.mark.parametrize("way", ["at once", "surest first", "from left"])
def test_what_stood_in_a_gap_is_not_looked_at(way, gpt):
    fill = ways(gpt)[way]
    ids, gone = gaps()
    other = torch.where(gone, (ids + 3) % 7, ids)
    filled, again = fill(ids, gone), fill(other, gone)
    assert torch.equal(filled, again) and len(filled[gone].unique()) > 1
    assert torch.equal(filled[~gone], ids[~gone])


@pytest.mark.parametrize("way", ["at once", "surest first", "from left"])
def test_a_text_without_a_gap_stays_and_inputs_are_not_written_to(way, gpt):
    fill = ways(gpt)[way]
    ids, gone = gaps()
    before, holes = ids.clone(), gone.clone()
    assert torch.equal(fill(ids, torch.zeros_like(gone)), ids)
    fill(ids, gone)
    assert torch.equal(ids, before) and torch.equal(gone, holes)


@pytest.mark.parametrize("way", ["at once", "surest first", "from left"])
def test_rows_do_not_disturb_each_other(way, gpt):
    fill = ways(gpt)[way]
    ids, gone = gaps()
    together = fill(ids, gone)
    for i in range(len(ids)):
        assert torch.equal(fill(ids[i : i + 1], gone[i : i + 1])[0], together[i])


# ── Masked ───────────────────────────────────────────────────────────────────────────


class Counting:
    """Knows that numbers count up by one, but only where the one before is there."""

    def __init__(self):
        self.asked = 0

    def __call__(self, ids):
        self.asked += 1
        before = ids.roll(1, dims=1)
        known = before != MASK
        right = torch.nn.functional.one_hot((before + 1) % V, V).float()
        return torch.where(known[..., None], 9 * right, torch.zeros(V))


def test_the_surest_piece_first_helps_the_others():
    ids = torch.arange(9).expand(2, -1)
    gone = torch.zeros(2, 9, dtype=torch.bool)
    gone[0, 2:5] = gone[1, 4:6] = True
    model = Counting()
    assert torch.equal(fill_surest_first(model, ids, gone, MASK), ids)
    assert model.asked == 3  # as often as the most pieces that a row lacks
    at_once = fill_at_once(model, ids, gone, MASK)
    assert model.asked == 4
    assert (at_once == ids)[gone].tolist() == [True, False, False, True, False]


def test_of_one_missing_piece_the_order_makes_no_difference():
    ids, _ = gaps()
    gone = torch.zeros_like(ids, dtype=torch.bool)
    gone[:, 9] = True
    first = fill_at_once(masked_model, ids, gone, MASK)
    assert torch.equal(fill_surest_first(masked_model, ids, gone, MASK), first)


def test_a_filling_may_be_the_mask_itself():
    """The place counts as filled, though it still looks like a mask."""
    gone = torch.tensor([[False, True, True]])
    likes_masks = torch.zeros(1, 3, V)
    likes_masks[..., MASK] = 1
    filled = fill_surest_first(lambda ids: likes_masks, gone.long(), gone, MASK)
    assert filled.tolist() == [[0, MASK, MASK]]


# ── Causal ───────────────────────────────────────────────────────────────────────────


def naive_from_left(model, ids, gone, banned):
    """The whole text again for each missing piece."""
    ids = ids.clone()
    for b, t in gone.nonzero().tolist():
        logits = model(ids[b : b + 1, :t])[0, -1]
        logits[list(banned)] = -torch.inf
        ids[b, t] = logits.argmax()
    return ids


@pytest.mark.parametrize("banned", [(), (0, 3, 5, 11)])
def test_from_left_reads_on_with_its_own_fillings(gpt, banned):
    ids, gone = gaps(seed=4)
    with torch.no_grad():
        expected = naive_from_left(gpt, ids, gone, banned)
    for step in (CachedStep(gpt, gpt.new_caches()), UncachedStep(gpt)):
        got = fill_from_left(step, ids, gone, banned)
        assert torch.equal(got, expected)
    assert not torch.isin(expected[gone], torch.tensor(banned)).any()


def test_a_gap_up_to_the_end_is_greedy_writing(gpt):
    ids, gone = gaps()
    gone = torch.arange(20).expand(5, -1) >= 12
    written = decoding.greedy(CachedStep(gpt, gpt.new_caches()), ids[:, :12], 8)
    filled = fill_from_left(CachedStep(gpt, gpt.new_caches()), ids, gone)
    assert torch.equal(filled[:, 12:], written.ids)


def test_a_first_piece_cannot_be_written_from_nothing(gpt):
    ids, gone = gaps()
    gone[2, 0] = True
    with pytest.raises(ValueError, match="nothing stands before"):
        fill_from_left(CachedStep(gpt, gpt.new_caches()), ids, gone)


def text_log_p(model, ids, first):
    """log p of a text from place `first` on."""
    p = model(ids[None])[0].log_softmax(-1)
    return sum(p[t - 1, ids[t]] for t in range(first, len(ids)))


def test_reranking_scores_the_whole_text(gpt):
    text = torch.randint(0, V, (14,), generator=draw(2))
    step = CachedStep(gpt, gpt.new_caches())
    ranked = rerank(step, text[:6], text[7:], candidates=V)
    assert sorted(ranked.ids.tolist()) == list(range(V))
    with torch.no_grad():
        for id, score in zip(*ranked, strict=True):
            whole = torch.cat([text[:6], id[None], text[7:]])
            close(score, text_log_p(gpt, whole, 6), 1e-4)
    assert (ranked.scores.diff() <= 0).all()


def test_candidates_are_the_likeliest_from_the_left(gpt):
    text = torch.randint(0, V, (14,), generator=draw(5))
    with torch.no_grad():
        likely = gpt(text[None, :6])[0, -1].topk(4).indices
    step = CachedStep(gpt, gpt.new_caches())
    found = rerank(step, text[:6], text[7:], candidates=4).ids
    assert sorted(found.tolist()) == sorted(likely.tolist())


def test_what_follows_can_change_the_choice():
    """After 0 comes 1 or, less often, 2; after 1 comes 3, after 2 comes 4."""
    table = torch.full((V, V), -20.0)
    table[0, 1], table[0, 2], table[1, 3], table[2, 4] = 0.0, -1.0, 0.0, 0.0
    table[3:] = 0

    class Table:
        def __call__(self, ids):
            return table[ids]

        def reorder(self, rows):
            pass

    before = torch.tensor([5, 0])
    for follows, best in (([3], 1), ([4], 2), ([4, 3], 2)):
        found = rerank(Table(), before, torch.tensor(follows))
        assert found.ids[0] == best


# ── Spans ────────────────────────────────────────────────────────────────────────────


def test_a_span_model_can_be_told_the_lengths():
    """Over T5's decoder the sentinels are given, and pieces are written."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 60, "d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32}
    model = T5(T5Config(**sizes, head_dim=8)).eval()
    ids, marks = torch.arange(20), range(50, 60)
    gone = draw_gaps(20, draw(1), 0.3)
    inputs, targets = name_gaps(ids, gone, marks)
    text = torch.cat([torch.tensor([49]), targets])[None]
    asked = text < 49
    memory = model.encode(inputs[None])
    step = CachedStep(model.decode, model.new_caches(), memory=memory)
    filled = fill_from_left(step, text, asked, banned=marks)
    assert torch.equal(filled[~asked], text[~asked])
    found = read_spans(filled[0].tolist(), marks)[: len(spans(gone))]
    assert [len(x) for x in found] == [end - first for first, end in spans(gone)]
    with torch.no_grad():
        expected = naive_from_left(
            lambda x: model.decode(x, memory), text, asked, list(marks)
        )
    assert torch.equal(filled, expected)
