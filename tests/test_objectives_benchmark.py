# SPDX-License-Identifier: MIT
"""A perfect model gets everything, a constant one its piece's share; nothing leaks."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from deepdive import accounting
from deepdive.configs import GptConfig, T5Config
from deepdive.decoding import CachedStep, greedy, temperature
from deepdive.filling import Ranked
from deepdive.models.gpt import Gpt
from deepdive.models.t5 import T5
from deepdive.recipes import (
    RECIPES,
    austen,
    features,
    gaps,
    going_on,
    novels,
    run_recipe,
)
from deepdive.recipes.austen import BothWays

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
V, T = novels.VOCABULARY, austen.LENGTH
SIZES = {"vocab_size": V, "d_model": 8, "n_heads": 2, "n_layers": 1}
FIRST = 300  # ordinary pieces from here on
MARKS = gaps.sentinels()
END = novels.tokenizer().id_of(novels.END)

pytestmark = pytest.mark.usefixtures("one_thread")


def small(kind):
    torch.manual_seed(0)
    model = {
        BothWays: lambda: BothWays(GptConfig(**SIZES, d_ff=16, max_seq_len=T)),
        Gpt: lambda: Gpt(GptConfig(**SIZES, d_ff=16, max_seq_len=T)),
        T5: lambda: T5(T5Config(**SIZES, head_dim=4, d_ff=16)),
    }[kind]().eval()
    for weights in model.parameters():  # far from even guesses
        weights.data.mul_(6 if weights.dim() > 1 else 1)
    if kind is BothWays:  # no piece likelier than another before anything is read
        model.output.bias.data.zero_()
    return model


KINDS = pytest.mark.parametrize("kind", [BothWays, Gpt, T5])


def counting(rows=6):
    """Windows that count up from different numbers: (rows, 128)."""
    return FIRST + torch.arange(T) + 20 * torch.arange(rows)[:, None]


# ── Planted models ───────────────────────────────────────────────────────────────────


def sure(ids):
    return 9.0 * F.one_hot(ids.clamp(0, V - 1), V)


class PerfectBert(BothWays):
    """Knows that a window counts: any ordinary piece of a row tells all the others."""

    def forward(self, tokens):
        at = torch.arange(tokens.shape[1])
        starts = (tokens - at).masked_fill(tokens < FIRST, -1).amax(1, keepdim=True)
        return sure(starts + at)


class PerfectGpt(Gpt):
    """Knows what comes next, of each piece alone."""

    def hidden(self, tokens, caches=None, keep=None, positions=None):
        return sure(tokens + 1)

    def logits(self, hidden):
        return hidden


class PerfectT5(T5):
    """Goes on counting behind a sentinel, until the piece that follows in the text."""

    ends = True

    def encode(self, src, keep=None):
        self.src, self.told = src, None
        return torch.zeros(*src.shape, 1)

    def decode(self, tgt, memory, memory_keep=None, caches=None, keep=None):
        old = tgt[:, :0] if self.told is None else self.told
        self.told = torch.cat([old, tgt], dim=1)
        now = [list(map(self.after, self.src.tolist(), self.told[:, :n].tolist()))
               for n in range(old.shape[1] + 1, self.told.shape[1] + 1)]  # fmt: skip
        return sure(torch.tensor(now).T)

    def after(self, src, told):
        marks = [id for id in told if id in MARKS]
        if not marks:
            return MARKS[0]
        place = src.index(marks[-1]) if marks[-1] in src else len(src)
        behind = src[place + 1 : place + 2]
        guess = (src[place - 1] if told[-1] in MARKS else told[-1]) + 1
        if self.ends and behind == [guess]:
            return MARKS[MARKS.index(marks[-1]) + 1]
        return guess


def perfect(kind):
    model = small({PerfectBert: BothWays, PerfectGpt: Gpt, PerfectT5: T5}[kind])
    model.__class__ = kind
    return model


def windows(draw):
    """Counting windows with gaps, none at the end: there nobody says where to stop."""
    test = draw(counting())
    test.gone[:, -1] = False
    if draw is gaps.usual_gaps:
        assert (test.gone.sum(1) == test.gone[0].sum()).all(), "choose another seed"
    return test


DRAWS = pytest.mark.parametrize("draw", [gaps.one_gap, gaps.usual_gaps])


@DRAWS
@pytest.mark.parametrize("kind", [PerfectBert, PerfectGpt, PerfectT5])
def test_a_perfect_model_fills_everything(kind, draw):
    model, test = perfect(kind), windows(draw)
    assert gaps.ways(model)
    for way in gaps.ways(model):
        got = gaps.judge(test, gaps.fill(model, test, way), range(1, T))
        assert got.exact == got.gaps == got.length == len(gaps.judged(test.gone)) > 5
        assert got.right == got.pieces
    if kind is PerfectGpt:
        found = gaps.rerank_single(model, test, gaps.fill(model, test, "from left"))
        assert gaps.judge(test, found, range(1, T)).exact == got.gaps


def test_a_model_that_does_not_end_in_time_is_wrong_unless_told():
    model, test = perfect(PerfectT5), windows(gaps.usual_gaps)
    model.ends = False
    free = gaps.judge(test, gaps.fill(model, test, "free"), range(1, T))
    assert free.exact == free.length == 0
    told = gaps.judge(test, gaps.fill(model, test, "told"), range(1, T))
    assert told.exact == told.gaps


def test_a_model_that_is_told_the_length_cannot_end_before():
    class Ends(PerfectT5):
        def after(self, src, told):
            return MARKS[1]

    model, test = small(T5), windows(gaps.usual_gaps)
    model.__class__ = Ends
    found = gaps.fill(model, test, "told")
    assert gaps.judge(test, found, range(1, T)).length == len(gaps.judged(test.gone))
    assert min(id for row in found for gap in row for id in gap) > max(MARKS)


@pytest.mark.parametrize("draw", [gaps.one_gap, gaps.usual_gaps])
def test_a_constant_model_gets_the_share_of_its_piece(draw):
    test = draw(gaps.test_windows()[:100])
    truth = [test.ids[g.window, g.first] for g in gaps.judged(test.gone)
             if g.end - g.first == 1]  # fmt: skip
    piece = int(torch.stack(truth).mode().values)

    class Constant(BothWays):
        def forward(self, tokens):
            return sure(torch.full_like(tokens, piece))

    model = small(BothWays)
    model.__class__ = Constant
    got = gaps.judge(test, gaps.fill(model, test, "at once"), (1,))
    assert got.exact == sum(int(x) == piece for x in truth) > 0
    assert got.gaps == len(truth) and got.exact / got.gaps < 0.2


# ── Gaps ─────────────────────────────────────────────────────────────────────────────


def test_the_gaps_are_the_same_for_everyone_and_as_t5_met_them():
    ids = gaps.test_windows()
    assert ids.shape == (len(novels.stream("test")) // T, T)
    test, again = gaps.usual_gaps(ids), gaps.usual_gaps(ids.clone())
    assert torch.equal(test.gone, again.gone) and not test.gone[:, 0].any()
    assert (test.gone.sum(1) == round(0.15 * T)).all()
    assert {len(gaps.spans(row)) for row in test.gone} == {6}
    few = gaps.usual_gaps(ids[:9]).gone
    assert torch.equal(few, test.gone[:9])
    batch = RECIPES["austen-t5"].batches(0)(0)
    inputs, targets = gaps._named(ids[:2], few[:2])
    assert inputs.shape[1] == batch.inputs.shape[1]
    assert targets.shape[1] == batch.targets.shape[1] + 1  # what begins it


def test_judged_gaps_keep_their_distance_from_the_edges():
    one = gaps.one_gap(gaps.test_windows())
    assert (one.gone.sum(1) == 1).all()
    assert len(gaps.judged(one.gone)) == len(one.ids)
    places = one.gone.nonzero()[:, 1]
    assert places.min() == gaps.EDGE and places.max() == T - gaps.EDGE - 1
    gone = torch.zeros(2, T, dtype=torch.bool)
    gone[0, [15, 17, 18, 100, 111, 113]] = True
    gone[1, [16, 110, 111, 112]] = True
    found = [tuple(gap) for gap in gaps.judged(gone)]
    expected = [(0, 1, 17, 19), (0, 2, 100, 101), (0, 3, 111, 112), (1, 0, 16, 17)]
    assert found == expected


def test_fillings_are_compared_place_by_place():
    ids = counting(1)
    gone = torch.zeros(1, T, dtype=torch.bool)
    gone[0, 20:23] = gone[0, 40:42] = gone[0, 60] = True
    test = gaps.Gapped(ids, gone)
    a, b = ids[0, 20:23].tolist(), ids[0, 40:42].tolist()
    for fillings, expected in (
        ([a, b, [ids[0, 60]]], (2, 2, 5, 5, 2)),
        ([a[:2], [0, b[1]], []], (2, 0, 5, 3, 1)),
        ([[0, *a[:2]], [*b, 7], []], (2, 0, 5, 2, 1)),
        ([a[::-1], b[::-1], []], (2, 0, 5, 1, 2)),
        ([[], [], []], (2, 0, 5, 0, 0)),
    ):
        assert gaps.judge(test, [fillings], (2, 3)) == expected
    assert gaps.judge(test, [[[], [], [int(ids[0, 60])]]], (1,)) == (1, 1, 1, 1, 1)


@KINDS
@DRAWS
def test_no_model_sees_what_is_gone(kind, draw):
    model, test = small(kind), draw(gaps.test_windows()[:3])
    other = torch.where(test.gone, (test.ids + 77) % V, test.ids)
    for way in gaps.ways(model):
        found = gaps.fill(model, test, way)
        assert found == gaps.fill(model, gaps.Gapped(other, test.gone), way)
        assert len(found) == 3 and len(found[0]) == len(gaps.spans(test.gone[0]))
    if kind is Gpt:
        again = gaps.rerank_single(model, gaps.Gapped(other, test.gone), found)
        assert again == gaps.rerank_single(model, test, found)


def test_another_way_or_model_is_refused():
    test = gaps.one_gap(gaps.test_windows()[:1])
    with pytest.raises(ValueError, match="'told'"):
        gaps.fill(small(Gpt), test, "told")
    for refused in (
        lambda: gaps.fill(torch.nn.Linear(1, 1), test, "told"),
        lambda: going_on.log_p_next(torch.nn.Linear(1, 1), test.ids),
        lambda: going_on.go_on(torch.nn.Linear(1, 1), test.ids),
        lambda: features.mean_hidden(torch.nn.Linear(1, 1), test.ids),
    ):
        with pytest.raises(TypeError, match="Linear"):
            refused()


def test_reranking_changes_judged_single_gaps_only():
    model, test = small(Gpt), gaps.usual_gaps(gaps.test_windows()[:8])
    before = gaps.fill(model, test, "from left")
    kept = [[list(x) for x in row] for row in before]
    after = gaps.rerank_single(model, test, before)
    assert before == kept
    single = {(g.window, g.number) for g in gaps.judged(test.gone)
              if g.end - g.first == 1}  # fmt: skip
    differ = {(w, n) for w in range(8) for n in range(6) if after[w][n] != before[w][n]}
    assert differ and differ <= single


def test_what_follows_ends_at_the_next_gap(monkeypatch):
    model, test = small(Gpt), gaps.usual_gaps(gaps.test_windows()[:8])
    followed = []

    def rank(step, before, after, candidates):
        followed.append((len(before), after.tolist()))
        return Ranked(torch.tensor([FIRST]), torch.zeros(1))

    monkeypatch.setattr(gaps, "rerank", rank)
    gaps.rerank_single(model, test, gaps.fill(model, test, "from left"))
    single = [gap for gap in gaps.judged(test.gone) if gap.end - gap.first == 1]
    lengths = set()
    for (place, after), (window, _, first, end) in zip(followed, single, strict=True):
        there = ~test.gone[window, end:]
        assert place == first and there[: len(after)].all()
        assert after == test.ids[window, end : end + len(after)].tolist()
        assert len(after) == gaps.FOLLOWING or not there[len(after)]
        lengths.add(len(after))
    assert len(lengths) > 3


def test_pieces_read_are_those_that_pass_through():
    model, test = small(BothWays), gaps.usual_gaps(gaps.test_windows()[:2])
    with gaps.pieces_read(model) as seen:
        gaps.fill(model, test, "at once")
    assert seen == [2 * T]
    with gaps.pieces_read(model) as seen:
        gaps.fill(model, test, "surest first")
    assert seen == [2 * T * 19]
    with gaps.pieces_read(small(Gpt)) as seen:
        pass
    gpt = small(Gpt)
    with gaps.pieces_read(gpt) as seen:
        gaps.fill(gpt, test, "from left")
    assert seen[0] <= 2 * T and seen[0] == 2 * int(test.gone.any(0).nonzero().max())


# ── Going on ─────────────────────────────────────────────────────────────────────────


@KINDS
def test_the_next_piece_is_guessed_from_what_stands_before(kind):
    model, ids = small(kind), gaps.test_windows()[:3]
    places = (64, 90, 127)
    got = going_on.log_p_next(model, ids, places)
    assert got.shape == (3, 3, V)
    assert torch.allclose(got.exp().sum(-1), torch.ones(3, 3), atol=1e-5)
    for n, place in enumerate(places):
        other = ids.clone()
        other[:, place:] = (other[:, place:] + 55) % V
        assert torch.equal(going_on.log_p_next(model, other, places)[:, n], got[:, n])
        alone = going_on.log_p_next(model, ids[:, : place + 1], (place,))[:, 0]
        assert torch.allclose(alone, got[:, n], atol=1e-5)
        other = ids.clone()
        other[:, place - 1] = (other[:, place - 1] + 55) % V  # the last one counts
        there = going_on.log_p_next(model, other, places)[:, n]
        assert (there - got[:, n]).abs().max() > 1e-4


@pytest.mark.parametrize("kind", [PerfectBert, PerfectGpt, PerfectT5])
def test_a_perfect_model_knows_what_comes_next(kind):
    ids = counting(3)
    log_p = going_on.log_p_next(perfect(kind), ids)
    found = going_on.judge_next(log_p, ids)
    assert found.accuracy == 1.0 and found.accuracy_by_place == [1.0] * 8
    assert found.bits_per_byte < 0.1  # e⁹ against the other thousand


def test_even_guesses_cost_the_logarithm_of_the_vocabulary():
    ids = gaps.test_windows()[:50]
    even = torch.full((50, 8, V), -math.log(V))
    found = going_on.judge_next(even, ids)
    n_bytes = novels.byte_lengths()[ids[:, list(going_on.PLACES)]]
    assert found.bits_per_byte == pytest.approx(10 * 400 / n_bytes.sum().item())
    for place, bits in enumerate(found.bits_by_place):
        assert bits == pytest.approx(10 * 50 / n_bytes[:, place].sum().item())


def test_repeats_are_counted():
    assert going_on.distinct([1, 2, 3, 4, 5]) == 1.0
    assert going_on.distinct([1, 1, 1, 1, 1, 1]) == 1 / 3
    assert going_on.distinct([1, 2, 3]) is None
    assert going_on.before_repeat([1, 2, 3, 4, 1, 2, 3, 4, 9]) == 4
    assert going_on.before_repeat([1, 1, 1, 1, 1]) == 1
    assert going_on.before_repeat([1, 2, 3, 4, 1, 2, 3]) == 7
    assert going_on.before_repeat([]) == 0


def test_words_at_the_ends_may_be_cut_and_do_not_count():
    assert going_on.words("ness of Emma's house, 3 cha") == ["of", "emma's", "house"]
    assert going_on.words(" of the\nhouse.") == ["of", "the", "house"]
    assert going_on.words("all") == []
    known = going_on.known_words()
    assert {"the", "emma", "neighbourhood"} <= known and "computer" not in known


def test_the_novel_itself_is_made_of_words_and_hardly_repeats():
    rows = going_on.openings(gaps.test_windows())[:, 64:124].tolist()
    found = going_on.judge_written(rows)
    assert found.pieces == 60 and found.texts == 20 and found.words > 500
    assert found.distinct > 0.99 and 0.97 < found.known <= 1
    nonsense = going_on.judge_written([[FIRST] * 60, [FIRST]])
    assert nonsense.distinct == 1 / 57 and nonsense.texts == 1
    assert nonsense.before_repeat == 1 and nonsense.pieces == 30.5
    assert going_on.judge_written([[], []])[1:4] == (None, 0.0, None)


@KINDS
@pytest.mark.parametrize("choose", [None, [temperature(0.8)]])
def test_writing_is_repeatable(kind, choose):
    model, text = small(kind), gaps.test_windows()[:3, :64]

    def written(seed):
        draw = torch.Generator().manual_seed(seed)
        return going_on.go_on(model, text, choose, draw, most=7)

    rows = written(0)
    assert rows == written(0) and (rows == written(1)) == (choose is None)
    assert all(len(row) == 7 for row in rows) or kind is T5
    if kind is Gpt and choose is None:
        expected = greedy(CachedStep(model, model.new_caches()), text, 7)
        assert rows == expected.rows()


def test_bert_writes_by_filling_the_gap_behind():
    model, text = perfect(PerfectBert), counting(2)[:, :64]
    assert going_on.go_on(model, text, most=3) == counting(2)[:, 64:67].tolist()


def test_t5_ends_where_it_says_so():
    model, text = small(T5), gaps.test_windows()[:2, :64]

    class Ends(PerfectT5):
        def after(self, src, told):
            return [FIRST, MARKS[1]][len(told) > 4]

    model.__class__ = Ends
    assert going_on.go_on(model, text) == [[FIRST] * 3] * 2


# ── Features ─────────────────────────────────────────────────────────────────────────


def test_novels_are_told_by_features_that_tell_them():
    draw = torch.Generator().manual_seed(0)
    labels = [torch.arange(n) % 6 for n in (120, 60, 90)]
    told = [
        F.one_hot(label, 6).float() + 0.01 * torch.randn(len(label), 6, generator=draw)
        for label in labels
    ]
    assert features.probe(*told, labels)[:2] == (1.0, 1.0)
    noise = [torch.randn(len(label), 6, generator=draw) for label in labels]
    assert features.probe(*noise, labels).accuracy < 0.4
    wrong = [told[0], told[1], told[2].roll(1, dims=0)]
    assert features.probe(*wrong, labels).accuracy == 0.0


def test_logistic_regression_is_at_its_least():
    """No weight can be changed for the better: torch's own gradient is 0."""
    draw = torch.Generator().manual_seed(0)
    x, labels = torch.randn(50, 4, generator=draw), torch.arange(50) % 3
    layer = features.fit_linear(x, labels, 3, penalty=0.1)
    loss = F.cross_entropy(layer(x), labels) + 0.05 * layer.weight.square().sum()
    slopes = torch.autograd.grad(loss, list(layer.parameters()))
    assert all(slope.abs().max() < 1e-3 for slope in slopes)


def test_each_novel_counts_alike_in_the_balanced_share():
    layer = torch.nn.Linear(1, 2)
    layer.weight.data.zero_()
    layer.bias.data = torch.tensor([1.0, 0.0])
    labels = torch.tensor([0] * 9 + [1])
    found = features.judge_linear(layer, torch.zeros(10, 1), labels)
    assert found == (0.9, 0.5)


def test_examples_come_from_chapters_of_their_own():
    learn, tune, test = features.examples()
    assert learn.novels.bincount().tolist() == [features.EACH] * 6
    assert tune.novels.bincount().tolist() == [features.TUNED] * 6
    assert (test.novels.bincount(minlength=6) > 20).all()
    rows = [set(map(tuple, part.ids.tolist())) for part in (learn, tune, test)]
    assert not rows[0] & rows[1] and not (rows[0] | rows[1]) & rows[2]
    texts = {c.novel: c.text for c in novels.split().test}
    for novel, text in texts.items():  # the label is the novel's
        ids = novels.tokenizer().encode(text).ids[0][:T]
        place = (test.ids == ids).all(1).nonzero().item()
        assert novels.NOVELS[test.novels[place]] == novel


def test_the_bag_counts_pieces_whatever_their_order():
    ids = gaps.test_windows()[:4]
    bag = features.bag_of_pieces(ids)
    assert torch.equal(bag, features.bag_of_pieces(ids.flip(1)))
    assert bag.expm1().sum(1).round().tolist() == [T] * 4
    counts = bag[0].expm1().round().int().tolist()
    assert counts == ids[0].bincount(minlength=V).tolist()


@KINDS
def test_features_are_the_mean_of_the_last_layer(kind):
    model, ids = small(kind), gaps.test_windows()[:3]
    found = features.mean_hidden(model, ids)
    assert found.shape == (3, 8)
    if kind is T5:  # decoding what the encoder gave is what the model does
        hidden = model.encode(ids)
        assert torch.equal(model.decode(ids, hidden), model(ids, ids))
    else:  # one layer away from the model's own answer
        hidden = model.hidden(ids)
        assert torch.equal(model.output(hidden), model(ids))
    assert torch.allclose(found, hidden.mean(1), atol=1e-5)


# ── The script ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The script, in a folder of its own."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("bench", FOLDER / "objectives.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RUNS_FOLDER", tmp_path / "runs")
    monkeypatch.setattr(module, "RESULT", tmp_path / "results" / "objectives.json")
    return module


def ended(bench, name, seed, steps=None):
    place = bench.folder(name, seed)
    place.mkdir(parents=True)
    what = {"steps": RECIPES[name].steps if steps is None else steps}
    (place / "recipe.json").write_text(json.dumps(what), encoding="utf-8")
    (place / "result.json").write_text("{}", encoding="utf-8")


def test_the_table_waits_for_two_seeds_of_each(bench, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(bench, "table", lambda *given: asked.append(given) or {"a": 1})
    draft = tmp_path / "draft.json"
    with pytest.raises(SystemExit, match="nothing has ended"):
        bench.main(["--draft", str(draft)])
    for seed in (0, 1):
        ended(bench, "austen-bert", seed)
        ended(bench, "austen-gpt", seed)
    ended(bench, "austen-t5", 0)
    ended(bench, "austen-t5", 1, steps=7)  # a shorter run is no seed
    with pytest.raises(SystemExit, match="2 seeds are needed of t5"):
        bench.main([])
    assert not asked and not bench.RESULT.exists()
    bench.main(["--draft", str(draft), "--windows", "9"])
    assert not bench.RESULT.exists() and asked[0][0]["t5"] == [0]
    assert json.loads(draft.read_text("utf-8"))["windows"] == 9
    ended(bench, "austen-t5", 2)
    with pytest.raises(SystemExit, match="all windows"):
        bench.main(["--windows", "9"])
    bench.main([])
    found = json.loads(bench.RESULT.read_text(encoding="utf-8"))
    assert found["seeds"] == {"bert": [0, 1], "gpt": [0, 1], "t5": [0, 2]}
    assert found["windows"] == 501 and found["machine"]["torch"] and found["a"] == 1


@pytest.mark.parametrize("name", ["bert", "gpt", "t5"])
def test_what_an_update_costs(bench, name, monkeypatch):
    """Three times a forward pass: backward makes two products for each of its one."""
    monkeypatch.setattr(bench, "read_log", lambda path: [])
    recipe = RECIPES[bench.MODELS[name]]
    model = recipe.model()
    found = bench.cost(bench.MODELS[name], [])
    how = {"batch": 32, "skip_blocked": False}
    length = {"tokens": 26, "source": 115} if name == "t5" else {"tokens": 128}
    once = accounting.flops(model.config, **length, **how)["total"]
    assert found["flops_per_update"] == 3 * once
    more = 0
    if name == "bert":  # distances in the place of positions, and frequencies
        more = model.bias.table.weight.numel() - 128 * 128 + V
    assert found["weights"] == accounting.parameters(model.config)["total"] + more
    assert found["idle_weights"] == 0
    assert found["windows_read"] == recipe.steps * 32
    guesses = {"bert": (500, 720), "gpt": (32 * 127,) * 2, "t5": (32 * 26,) * 2}
    low, high = guesses[name]
    assert low <= found["guesses_per_update"] <= high


def test_counting_alone_is_asked_the_same(bench, monkeypatch):
    """On a text that counts, both neighbours and the last piece tell everything."""
    text = FIRST + torch.arange(2 * T).repeat(6)
    monkeypatch.setattr(bench, "stream", lambda part: text)
    found = bench.counted(counting(6))
    assert found["one"]["both_sides_bigram"] == found["one"]["both_sides_fourgram"] == 1
    assert found["usual"]["both_sides_bigram"] == 1
    for kind in ("bigram", "trigram", "fourgram"):
        assert found["next"][kind]["accuracy"] == 1
        assert found["next"][kind]["bits_per_byte"] < 1.5
    assert found["one"]["most_frequent"] < 0.2
    assert found["next"]["most_frequent"]["accuracy"] < 0.2


@pytest.mark.slow
def test_the_whole_table_of_tiny_models(bench, monkeypatch, tmp_path):
    sizes = {"bert": BothWays, "gpt": Gpt, "t5": T5}
    tiny = {
        name: replace(
            RECIPES[name],
            steps=2,
            model=lambda kind=kind: small(kind),
            evaluate=lambda model: {"dev_loss": 1.0},
        )
        for name, kind in zip(bench.MODELS.values(), sizes.values(), strict=True)
    }
    monkeypatch.setattr(bench, "RECIPES", tiny)
    text = novels.stream("train")[:50_000]
    monkeypatch.setattr(bench, "stream", lambda part: text)
    monkeypatch.setattr(features, "EACH", 6)
    monkeypatch.setattr(features, "TUNED", 3)
    few = gaps.test_windows()[:20]
    monkeypatch.setattr(gaps, "test_windows", lambda: few)
    for name, recipe in tiny.items():
        for seed in (0, 1):
            run_recipe(recipe, bench.folder(name, seed), seed=seed, progress=False)
    bench.main([])
    found = json.loads(bench.RESULT.read_text(encoding="utf-8"))
    assert found["windows"] == 20
    one = found["one_gap"]["accuracy"]
    learned = {"bert", "gpt", "gpt_rerank", "t5", "t5_told"}
    counted = {"most_frequent", "both_sides_bigram"}
    assert one.keys() == learned | counted | {"both_sides_fourgram"}
    ways = learned | {"bert_surest_first"}
    assert found["single"]["accuracy"].keys() == ways | counted
    table = found["gaps"]
    assert table["exact"].keys() == table["pieces"].keys() == ways - {"gpt_rerank"}
    assert table["pieces_read"].keys() == table["exact"].keys()
    assert table["length"].keys() == {"t5"}
    assert sum(table["by_length"][n]["of"] for n in "2345") == table["of"]
    for way, shares in table["exact"].items():
        by_length = [(x["of"], x["exact"][way]) for n, x in table["by_length"].items()
                     if n != "1"]  # fmt: skip
        for seed, share in enumerate(shares):
            right = sum(of * exact[seed] for of, exact in by_length)
            assert right == pytest.approx(share * table["of"])
    models = {"bert", "gpt", "t5"}
    assert found["next_piece"]["of"] == 160
    grams = {"most_frequent", "bigram", "trigram", "fourgram"}
    assert found["next_piece"]["accuracy"].keys() == models | grams
    assert found["writing"]["greedy"].keys() == models
    assert found["writing"]["examples"].keys() == models | {"opening", "text"}
    assert found["novels"]["accuracy"].keys() == models | {"bag_of_pieces"}
    assert found["cost"]["t5"]["cpu_seconds_as_run"][1] > 0
    shares = [one[way] for way in learned]
    assert all(len(share) == 2 for share in shares)
