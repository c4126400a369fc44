# SPDX-License-Identifier: MIT
"""The spelling task is split by words, judged by the nearest listed pronunciation."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from deepdive import shelf
from deepdive.decoding import UncachedStep, beam_search, greedy
from deepdive.models.transformer2017 import Transformer
from deepdive.recipes import RECIPES, load_run, publish, run_recipe
from deepdive.recipes import g2p as experiment
from deepdive.recipes import spelling as s
from deepdive.training import read_log

MODELS = ("g2p", "g2p-gru-attention", "g2p-gru")


pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_split_is_by_words_whole_and_fixed():
    train, dev, test = (set(part) for part in s.split())
    assert not (train & dev or train & test or dev & test)
    assert train | dev | test == set(s.pronunciations())
    assert (len(train), len(dev), len(test)) == (117_899, 2_000, 5_000)
    # drawn once and for all: another draw would make old results incomparable
    assert s.split().test[:3] == SOME_OF_THE_TEST


SOME_OF_THE_TEST = ["sifuentes", "ebonic", "rancorous"]


def test_every_sound_is_known_and_stress_is_gone():
    sounds = {p for ways in s.pronunciations().values() for way in ways for p in way}
    assert sorted(sounds) == list(s.PHONEMES.symbols[3:]) and len(sounds) == 39
    assert s.pronunciations()["through"] == (("TH", "R", "UW"),)
    # two that differ in stress alone are one
    assert s.pronunciations()["abstract"] == (
        ("AE", "B", "S", "T", "R", "AE", "K", "T"),
    )


def test_a_pair_for_each_pronunciation():
    ids = s.pairs(["either"])
    assert [s.PHONEMES.decode(tgt[1:-1]) for _, tgt in ids] == ["IY DH ER", "AY DH ER"]
    assert all(s.LETTERS.decode(src) == "either" for src, _ in ids)
    assert all(tgt[0] == s.START and tgt[-1] == s.END for _, tgt in ids)


def test_errors_count_against_the_nearest_pronunciation():
    said = [("AY", "DH", "ER"), ("K", "AE", "T", "S")]
    errors = s.count_errors(["either", "cat"], said)
    assert errors == (1 / 6, 1 / 2, 6, 2)
    assert s.count_errors(["cat"], [()])[:2] == (1.0, 1.0)


@pytest.mark.parametrize(
    ("words", "said", "match"),
    [
        (["cat"], [], "1 words do not fit 0"),
        (["zzzzq"], [()], "'zzzzq'"),
        ([], [], "0"),
    ],
)
def test_what_cannot_be_counted_is_refused(words, said, match):
    with pytest.raises(ValueError, match=match):
        s.count_errors(words, said)


@pytest.mark.parametrize("name", MODELS)
def test_spelling_is_the_same_in_any_company(name):
    """Alone, in batches, in another order, cached or not: the same answer."""
    torch.manual_seed(3)
    model = RECIPES[name].model().double().eval()
    for parameter in model.parameters():  # far from ties
        parameter.data.mul_(2.0)
    words = random.Random(3).sample(s.split().dev, 12)
    together = s.spell(model, words)
    assert together == s.spell(model, words, batch=5)
    assert together[::-1] == s.spell(model, words[::-1])
    alone = [s.spell(model, [word])[0] for word in words]
    assert together == alone
    if name == "g2p":
        src = torch.tensor([s.LETTERS.encode(words[0])])
        with torch.no_grad():
            step = UncachedStep(model.decode, memory=model.encode(src))
            ids = greedy(step, torch.tensor([[s.START]]), s.MOST, stop=(s.END,)).rows()
        assert alone[0] == tuple(s.PHONEMES.symbols[i] for i in ids[0] if i > s.END)


@pytest.fixture
def small():
    """A small model for the task, in training mode."""
    torch.manual_seed(5)
    config = replace(experiment.CONFIG, d_model=32, d_ff=64, n_layers=1, dropout=0.5)
    return Transformer(config).double()


def test_as_many_beams_search_as_are_asked_for(small, monkeypatch):
    asked, words = [], ["either", "at"]

    def spy(step, prompt, beams, **how):
        asked.append(beams)
        return beam_search(step, prompt, beams=beams, **how)

    monkeypatch.setattr(s, "beam_search", spy)
    greedily = s.spell(small, words)
    assert asked == []
    monkeypatch.setattr(s, "greedy", None)  # no search takes one beam only
    assert s.spell(small, words, beams=4) != greedily
    s.spell(small, words, beams=3, batch=1)
    assert asked == [4, 3, 3]


def test_spelling_drops_nothing_out_and_leaves_the_mode_alone(small):
    words = s.split().dev[:3]
    first = s.spell(small, words)
    assert small.training and small.encoder.training
    assert first == s.spell(small, words)
    with pytest.raises(ValueError, match="'é'"):
        s.spell(small, ["é"])
    assert small.training
    assert first == s.spell(small.eval(), words) and not small.training


def test_a_relative_differs_by_its_ending_alone(monkeypatch):
    monkeypatch.setattr(s, "_trained", lambda: {"cat", "dogs", "james's", "bus"})
    related = {"cats", "cat's", "dog", "james", "bus's"}
    others = {"cast", "ca", "dogs", "bus", "dogss", "cat", "catss", ""}
    assert {word for word in related | others if s.has_relative(word)} == related | {
        "dogss"
    }


def test_training_reads_no_held_out_word(monkeypatch):
    monkeypatch.setattr(experiment, "PairBatches", lambda pairs, *_: pairs)
    read = {tuple(source) for source, _ in experiment.batches(0)}
    train, dev, test = (
        {tuple(s.LETTERS.encode(w)) for w in part} for part in s.split()
    )
    assert read == train and not read & (dev | test)


def test_a_training_is_watched_on_the_words_that_watch(monkeypatch):
    asked = []
    monkeypatch.setattr(experiment, "spell", lambda model, words: asked.append(words))
    monkeypatch.setattr(experiment, "count_errors", lambda *_: s.Errors(0, 0, 1, 1))
    experiment.evaluate(None)
    assert asked == [s.split().dev]


@pytest.mark.parametrize("name", [n for n in RECIPES if n.startswith("g2p")])
def test_no_weight_is_idle(name):
    """A model is as large as what learns in it."""
    torch.manual_seed(0)
    recipe = RECIPES[name]
    model = recipe.model()
    recipe.loss(model, recipe.batches(0)(0)).total.backward()
    idle = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()
    ]
    assert not idle


def test_recurrent_models_drop_out_and_t5_knows_letters_from_phonemes():
    torch.manual_seed(0)
    batch = RECIPES["g2p"].batches(0)(0)
    for name in MODELS:
        model, rates = RECIPES[name].model(), set()
        rates = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
        assert rates == {experiment.DROPOUT}, name
    relative = RECIPES["g2p-relative"].model().eval()
    seen = []
    relative.token.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    relative(*batch)
    assert seen[0].min() >= len(s.PHONEMES) > seen[1].max()


def test_every_recipe_has_its_own_rate_and_the_papers_betas():
    for name in MODELS:
        optimiser = RECIPES[name].optimiser(RECIPES[name].model())
        assert {g["lr"] for g in optimiser.param_groups} <= {1e-3, 2e-3, 4e-3, 8e-3}
        assert {g["betas"] for g in optimiser.param_groups} == {(0.9, 0.98)}
        assert {g["weight_decay"] for g in optimiser.param_groups} == {0.0}


def test_the_three_are_of_one_size():
    sizes = [sum(p.numel() for p in RECIPES[n].model().parameters()) for n in MODELS]
    assert max(sizes) / min(sizes) < 1.01 and min(sizes) > 1.38e6


def test_the_three_read_the_same_batches_under_the_same_rules():
    recipes = [RECIPES[name] for name in MODELS]
    first = recipes[0]
    assert first.average == 0.999
    for other in recipes[1:]:
        assert other.batches is first.batches and other.loss is first.loss
        assert other.evaluate is first.evaluate and other.average == first.average
        steps = (1, 50, 300, 301, 5_000)
        ours, theirs = first.schedule(9_000), other.schedule(9_000)
        assert [ours(t) for t in steps] == [theirs(t) for t in steps]
    batch = first.batches(0)(0)
    assert len(batch.src) == experiment.BATCH


def test_warm_up_off_changes_the_rise_alone():
    on, off = (RECIPES[n].schedule(6_000) for n in ("g2p", "g2p-no-warmup"))
    rise = experiment.WARMUP
    assert all(off(t) == 1.0 for t in range(1, rise + 1)) and on(1) == 1 / rise
    assert all(on(t) == off(t) for t in (rise, rise + 1, 5_000))


def test_dropout_off_changes_the_dropout_alone():
    on, off = (RECIPES[n].model() for n in ("g2p", "g2p-no-dropout"))
    off.load_state_dict(on.state_dict())
    batch = RECIPES["g2p"].batches(0)(0)
    for model, rate in ((on, experiment.DROPOUT), (off, 0.0)):
        drops, times = [m for m in model.modules() if isinstance(m, nn.Dropout)], []
        for drop in drops:
            drop.register_forward_hook(lambda *_, times=times: times.append(1))
        RECIPES["g2p"].loss(model, batch)
        assert {drop.p for drop in drops} == {rate}
        assert len(times) == 17  # as chapter 6 says: 2 halves' input, 6 and 9 sublayers
    same = [RECIPES["g2p"].loss(m.eval(), batch).total for m in (on, off)]
    assert same[0] == same[1]


def test_smoothing_off_changes_the_loss_alone():
    torch.manual_seed(0)
    model, batch = RECIPES["g2p"].model().eval(), RECIPES["g2p"].batches(0)(0)
    on, off = (RECIPES[n].loss(model, batch) for n in ("g2p", "g2p-no-smoothing"))
    src, tgt, src_keep, tgt_keep = batch
    logits = model(src, tgt[:, :-1], src_keep, tgt_keep[:, :-1])
    for loss, eps in ((on, 0.1), (off, 0.0)):
        right = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=s.PAD,
            label_smoothing=eps, reduction="sum",
        )  # fmt: skip
        assert torch.allclose(loss.total, right) and loss.count == tgt_keep[:, 1:].sum()


def test_write_refuses_what_it_cannot_read():
    model = RECIPES["g2p"].model().eval()
    with pytest.raises(ValueError, match="1 letters"):
        RECIPES["g2p"].write(model, "a")
    with pytest.raises(ValueError, match="'é'"):
        RECIPES["g2p"].write(model, "café")


def test_publish_copies_what_readers_need(tmp_path):
    recipe = replace(
        RECIPES["reverse"], evaluate=lambda m: {"x": 1.0}, evaluate_every=7
    )
    run_recipe(recipe, tmp_path / "run", steps=10, progress=False)
    place = publish(tmp_path / "run", tmp_path / "shelf", every=4)
    assert place == tmp_path / "shelf" / "reverse"
    names = ["log.jsonl", "model.safetensors", "recipe.json", "result.json"]
    assert sorted(p.name for p in place.iterdir()) == names
    assert [r["step"] for r in read_log(place / "log.jsonl")] == [1, 4, 7, 8, 10]
    _, ours = load_run(place, RECIPES)
    _, theirs = load_run(tmp_path / "run", RECIPES)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
    assert publish(tmp_path / "run", tmp_path / "shelf", every=4) == place  # again
    with pytest.raises(ValueError, match="every"):
        publish(tmp_path / "run", tmp_path / "shelf", every=0)
    with pytest.raises(FileNotFoundError, match="no finished run"):
        publish(tmp_path, tmp_path / "shelf")


def test_publish_overwrites_no_other_run(tmp_path):
    recipe = replace(RECIPES["reverse"], evaluate=lambda m: {"x": 1.0})
    for seed in (0, 1):
        run_recipe(recipe, tmp_path / str(seed), steps=1, seed=seed, progress=False)
    publish(tmp_path / "0", tmp_path / "shelf")
    before = (tmp_path / "shelf" / "reverse" / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="seed 0 there, 1 asked"):
        publish(tmp_path / "1", tmp_path / "shelf")
    after = (tmp_path / "shelf" / "reverse" / "model.safetensors").read_bytes()
    assert before == after


def test_the_shelf_says_what_it_has(tmp_path, monkeypatch):
    assert shelf.data("cmudict.dict").is_file()
    with pytest.raises(FileNotFoundError, match=r"no 'kmudict'.*cmudict\.dict"):
        shelf.data("kmudict")
    with pytest.raises(TypeError, match="string"):
        shelf.weights(3)
    monkeypatch.setenv("DEEPDIVE_BOOK", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no folder"):
        shelf.results("g2p")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.txt").write_text("1")
    assert shelf.data("one.txt").read_text() == "1"
