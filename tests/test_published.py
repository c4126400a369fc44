# SPDX-License-Identifier: MIT
"""Do the trained models in weights/ do what their files say they do?"""

import json
import statistics
from pathlib import Path

import pytest
import torch

from deepdive.recipes import RECIPES, load_run
from deepdive.recipes import g2p as experiment
from deepdive.recipes.spelling import count_errors, spell, split
from deepdive.training import read_log

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = sorted(p for p in (ROOT / "weights").iterdir() if p.is_dir())
RACE = ROOT / "benchmarks" / "results" / "g2p.json"
RACERS = ("g2p", "g2p-gru-attention", "g2p-gru")
FILES = {"log.jsonl", "model.safetensors", "recipe.json", "result.json"}


def test_there_are_trained_models():
    assert FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_a_published_run_is_whole_and_light(folder):
    assert {p.name for p in folder.iterdir()} == FILES
    assert all(p.stat().st_size <= 6e6 for p in folder.iterdir())
    what = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    log = read_log(folder / "log.jsonl")
    assert what["recipe"] == folder.name and what["recipe"] in RECIPES
    assert log[0]["step"] == 1 and log[-1]["step"] == what["steps"]
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert {key: log[-1][key] for key in result} == result


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_judged_again_it_has_the_errors_that_it_states(folder):
    """The numbers belong to these weights: nobody typed them."""
    recipe, model = load_run(folder, RECIPES)
    said = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    again = recipe.evaluate(model)
    assert again.keys() == said.keys()
    for key, value in said.items():
        # another processor may turn a near tie in one word of thousands
        assert again[key] == pytest.approx(value, rel=1e-3, abs=1.5e-3), key


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_its_weights_are_no_random_start(folder):
    recipe, model = load_run(folder, RECIPES)
    torch.manual_seed(0)
    fresh = dict(recipe.model().named_parameters())
    moved = [not torch.equal(p, fresh[name]) for name, p in model.named_parameters()]
    assert all(moved)


@pytest.fixture
def race():
    """What `benchmarks/g2p.py measure` found."""
    return json.loads(RACE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RACERS)
def test_a_racers_rate_is_the_best_of_four_by_either_error(name, race):
    tried = race["models"][name]["tried_rates"]
    assert set(tried) == {"0.001", "0.002", "0.004", "0.008"}
    recipe = RECIPES[name]
    (rate,) = {g["lr"] for g in recipe.optimiser(recipe.model()).param_groups}
    for error in ("per", "wer"):
        assert float(min(tried, key=lambda r: tried[r][error])) == rate, error


@pytest.mark.parametrize("name", RACERS)
def test_what_is_said_of_a_racer_is_said_of_these_weights(name, race):
    said, folder = race["models"][name], ROOT / "weights" / name
    log = read_log(folder / "log.jsonl")
    curve = [
        {"pairs": r["step"] * 128, "per": r["per"], "wer": r["wer"]}
        for r in log
        if "per" in r
    ]
    assert said["runs"][0] == {"seed": 0, "curve": curve}
    what = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    assert what["seed"] == said["long"]["seed"] == 0
    assert said["long"]["pairs"] == what["steps"] * 128
    assert what["steps"] == RECIPES[name].steps
    _, model = load_run(folder, RECIPES)
    assert said["weights"] == sum(p.numel() for p in model.parameters())
    assert sum(row["words"] for row in said["long"]["by_length"]) == 5_000


@pytest.mark.parametrize(
    ("name", "chain"), [("g2p", 45), ("g2p-gru-attention", 37), ("g2p-gru", 17)]
)
def test_a_racers_chain_is_that_of_the_words_it_reads(name, chain, race):
    """45 for any word; else one for a letter, one or four for a sound, and 3."""
    assert race["models"][name]["chain"] == chain
    if name != "g2p":
        read = [experiment.batches(0)(i) for i in range(8)]
        each = 4 if "attention" in name else 1
        sizes = [(b.src.shape[1], b.tgt.shape[1] - 1) for b in read]
        assert round(statistics.mean(S + each * T + 3 for S, T in sizes)) == chain


@pytest.mark.slow
@pytest.mark.parametrize("name", RACERS)
def test_a_racer_judged_again_has_the_errors_of_the_race(name, race):
    """On the 5,000 words on which nothing was chosen."""
    _, model = load_run(ROOT / "weights" / name, RECIPES)
    again = count_errors(split().test, spell(model, split().test))
    said = race["models"][name]["long"]["test"]["greedy"]
    # five words of 5,000, as above
    assert again.per == pytest.approx(said["per"], abs=1e-3)
    assert again.wer == pytest.approx(said["wer"], abs=1e-3)
