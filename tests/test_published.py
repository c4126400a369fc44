# SPDX-License-Identifier: MIT
"""Do the trained models in weights/ do what their files say they do?"""

import json
from pathlib import Path

import pytest
import torch

from deepdive.recipes import RECIPES, load_run
from deepdive.training import read_log

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = sorted(p for p in (ROOT / "weights").iterdir() if p.is_dir())
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
