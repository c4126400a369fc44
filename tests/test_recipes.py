# SPDX-License-Identifier: MIT
"""Recipes are repeatable, resume to the same bits, and judge honestly."""

import collections
import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from deepdive.decoding import stream
from deepdive.recipes import RECIPES, Recipe, Symbols, load_run, run_recipe
from deepdive.recipes import grammar as g
from deepdive.recipes import reverse as r
from deepdive.recipes.runs import claim
from deepdive.training import read_log
from tests.compare import close

QUIET = {"progress": False}


pytestmark = pytest.mark.usefixtures("one_thread")


def small(name, **changes):
    """A recipe judged on little, so that a test takes a second."""
    changes = {"every": 4, "evaluate_every": 5, **changes}
    return replace(RECIPES[name], evaluate=lambda model: {"one": 1.0}, **changes)


def weights(folder):
    return load_run(folder, RECIPES)[1].state_dict()


def interrupting(recipe, after):
    """The same recipe, stopped by Ctrl+C while update `after` + 1 is made."""
    calls = []

    def loss(model, batch, **_):
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt
        return recipe.loss(model, batch)

    if isinstance(recipe.loss, partial):  # a run is known by its loss, too
        return replace(recipe, loss=partial(loss, **recipe.loss.keywords))
    loss.__name__ = recipe.loss.__name__
    return replace(recipe, loss=loss)


def test_every_recipe_says_what_to_expect():
    silent = [n for n, r in RECIPES.items() if not (r.what and r.expect and r.steps)]
    assert not silent


@pytest.mark.parametrize("name", RECIPES)
def test_a_batch_is_a_function_of_seed_and_number(name):
    make = RECIPES[name].batches
    first, second, other = make(1), make(1), make(2)
    first(0)
    for a, b, c in zip(*(tuple(x(3)) for x in (first, second, other)), strict=True):
        assert torch.equal(a, b)
        assert a.shape != c.shape or not torch.equal(a, c) or a.dtype == torch.bool


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("average", [None, 0.9])
def test_a_stopped_run_ends_with_the_same_bits(name, average, tmp_path):
    recipe = small(name, average=average)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_recipe(recipe, whole, steps=8, **QUIET)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(interrupting(recipe, 6), parts, steps=8, **QUIET)
    assert not (parts / "model.safetensors").exists()
    run_recipe(recipe, parts, steps=8, **QUIET)
    expected, got = weights(whole), weights(parts)
    assert expected.keys() == got.keys()
    for key, x in expected.items():
        close(got[key], x, 0, key)
    losses = [
        [(line["step"], line["loss"]) for line in read_log(f / "log.jsonl")]
        for f in (whole, parts)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    # the average is what is kept, not the last weights
    last = torch.load(whole / "checkpoint.pt", weights_only=True)["model"]
    same = all(torch.equal(last[key], x) for key, x in expected.items())
    assert same == (average is None)


def test_seeds_differ_and_repeat(tmp_path):
    recipe = small("grammar")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run_recipe(recipe, tmp_path / name, steps=2, seed=seed, **QUIET)
    a, b, c = (weights(tmp_path / name)["token.weight"] for name in "abc")
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_metrics_are_in_the_log_and_disturb_nothing(tmp_path):
    seen = []

    def evaluate(model):
        seen.append(model.training)
        torch.rand(7)
        return {"metric": float(len(seen))}

    recipe = replace(small("grammar", evaluate_every=2), evaluate=evaluate)
    result = run_recipe(recipe, tmp_path / "run", steps=5, **QUIET)
    log = read_log(tmp_path / "run" / "log.jsonl")
    assert [line["step"] for line in log if "metric" in line] == [2, 4, 5]
    assert seen == [False] * 4 and result == {"metric": 4.0}
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "checkpoint.pt", "log.jsonl", "model.safetensors", "recipe.json", "result.json",
    ]  # fmt: skip


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "recipe.json").write_text('{"flour": 500}')
    with pytest.raises(FileExistsError, match=r"recipe\.json, thesis\.txt"):
        run_recipe(small("grammar"), tmp_path, steps=1, **QUIET)
    assert (tmp_path / "recipe.json").read_text() == '{"flour": 500}'
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(FileExistsError, match="is a file"):
        run_recipe(small("grammar"), tmp_path / "thesis.txt", steps=1, **QUIET)


def test_another_run_is_named(tmp_path):
    what = {"format": "deepdive run 1", "recipe": "a", "seed": 0}
    claim(tmp_path, what)
    claim(tmp_path, what)
    with pytest.raises(FileExistsError, match="seed 0 there, 1 asked for"):
        claim(tmp_path, what | {"seed": 1})


def test_runs_that_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no recipe\.json"):
        load_run(tmp_path, RECIPES)
    claim(tmp_path, {"format": "deepdive run 1", "recipe": "grammar"})
    with pytest.raises(FileNotFoundError, match="not finished"):
        load_run(tmp_path, RECIPES)
    with pytest.raises(ValueError, match="'grammar', unknown here"):
        load_run(tmp_path, {"reverse": RECIPES["reverse"]})
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged"):
        load_run(tmp_path, RECIPES)


def test_half_precision_and_accumulation(tmp_path):
    recipe = small("grammar", accumulate=2)
    half = {"precision": torch.bfloat16, **QUIET}
    run_recipe(recipe, tmp_path / "a", steps=1, **half)
    (line,) = read_log(tmp_path / "a" / "log.jsonl")
    assert line["tokens"] == 2 * 32 * (g.LENGTH - 1)
    assert weights(tmp_path / "a")["token.weight"].dtype == torch.float32


@pytest.mark.parametrize("name", RECIPES)
@torch.no_grad()
def test_an_untrained_model_can_be_judged_and_can_write(name):
    torch.manual_seed(0)
    recipe: Recipe = RECIPES[name]
    model = recipe.model().eval()
    assert all(math.isfinite(x) for x in recipe.evaluate(model).values())
    step, prompt, stop, decode = recipe.write(model, "")
    ids = [int(i) for i in stream(step, prompt, 5, stop=stop)]
    assert isinstance(decode(ids), str)
    if not name.startswith("austen"):  # their pieces are bytes: any text can be cut
        with pytest.raises(ValueError, match=r"not in the vocabulary|must begin with"):
            recipe.write(model, "café")


def test_symbols():
    with pytest.raises(ValueError, match="twice"):
        Symbols(["a", "a"])
    assert g.SYMBOLS.decode(g.SYMBOLS.encode("the cat runs .")) == "the cat runs ."


# reverse


def test_no_test_word_is_trained_on():
    train, test = r.words()
    assert len(train) == 20_000 and len(test) == 500
    assert not set(train) & set(test) and len(set(train)) == len(train)


@torch.no_grad()
def test_exact_counts_whole_words():
    """A model that writes every word backwards scores 1, one that never ends 0."""

    class Oracle(torch.nn.Module):
        def __init__(self, ends):
            super().__init__()
            self.nothing, self.ends = torch.nn.Parameter(torch.zeros(())), ends

        def new_caches(self):
            return []

        def encode(self, src, keep):
            self.asked = 0
            return src

        def decode(self, tgt, caches=None, memory=None, memory_keep=None):
            logits = torch.zeros(len(tgt), 1, len(r.SYMBOLS))
            for b, (row, n) in enumerate(zip(memory, memory_keep.sum(1), strict=True)):
                place = int(n) - 1 - self.asked
                right = int(row[place]) if place >= 0 else r.END
                wrong = not self.ends and right == r.END
                logits[b, 0, r.END + 1 if wrong else right] = 1
            self.asked += 1
            return logits

    for ends in (True, False):
        model = Oracle(ends)
        model.new_caches = lambda: type("C", (list,), {"seen": 0})()
        assert r.evaluate(model) == {"exact": float(ends)}


# grammar


def test_the_text_agrees_with_itself():
    ids, _ = g.text(2000, seed=1)
    plural = {w for kind in (g.NOUNS, g.SEES, g.SLEEPS) for w in kind[1]}
    single = {w for kind in (g.NOUNS, g.SEES, g.SLEEPS) for w in kind[0]}
    assert not plural & single
    for line in g.SYMBOLS.decode(ids.tolist()).split(" .")[:-1]:
        words = [w for w in line.split() if w in plural | single]
        numbers = [w in plural for w in words]
        if "that" in line:  # noun, its noun, its verb, verb, perhaps another noun
            assert numbers[0] == numbers[3] and numbers[1] == numbers[2], line
        else:
            assert numbers[0] == numbers[1], line


def test_the_dice_are_the_entropy():
    """−log p of the rolls = −log of how often a whole sentence comes, on average."""
    n = 40_000
    dice = g.Dice(5)
    counts = collections.Counter(" ".join(g.sentence(dice)) for _ in range(n))
    assert counts["the cat runs ."] / n == pytest.approx(
        0.7 / 2 / 4 * 0.5 * 0.5 / 2, rel=0.1
    )
    one = g.Dice(0)
    while True:
        one.surprise = 0.0
        if " ".join(g.sentence(one)) == "the cat runs .":
            break
    assert one.surprise == pytest.approx(-math.log(0.7 / 2 / 4 * 0.5 * 0.5 / 2))


def test_bigrams_by_hand():
    a, b = 0, 1
    train, test = torch.tensor([a, b, b, b]), torch.tensor([a, b])
    expected = -math.log((1 + 1) / (1 + len(g.SYMBOLS)))
    assert g.bigram_loss(train, test) == pytest.approx(expected)


@torch.no_grad()
def test_agreement_is_a_half_for_one_who_always_says_the_same():
    class Singular(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nothing = torch.nn.Parameter(torch.zeros(()))

        def forward(self, tokens):
            logits = torch.zeros(*tokens.shape, len(g.SYMBOLS))
            logits[..., g.SYMBOLS.ids["sleeps"]] = 1
            return logits

    assert g.agreement(Singular()) == 0.5


# What the recipes promise


LONG = "g2p", "austen", "three-tasks"  # minutes to an hour each
SHORT = [name for name in RECIPES if not name.startswith(LONG)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_recipe_shows_what_it_says(name, tmp_path):
    result = run_recipe(RECIPES[name], tmp_path / "run", **QUIET)
    last = read_log(tmp_path / "run" / "log.jsonl")[-1]
    if name == "reverse":
        assert result["exact"] >= 0.99 and last["cpu_seconds"] < 60
    else:
        assert result["entropy"] < result["nats"] < result["entropy"] + 0.02
        assert result["nats"] < result["bigram_nats"] - 0.3
        known = [value for key, value in result.items() if "agreement" in key]
        assert min(known) == 1.0
