# SPDX-License-Identifier: MIT
"""The measures of benchmarks/masking.py, on models of which the answers are known."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
import torch

from deepdive.recipes import RECIPES, run_recipe
from deepdive.recipes.novels import MASK, VOCABULARY, tokenizer

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
ROWS = torch.randint(300, 1_000, (40, 128), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def masking(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    path = FOLDER / "masking.py"
    spec = importlib.util.spec_from_file_location("benchmark_masking", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("record", "trainings", "austen"):
        sys.modules.pop(name, None)


def guessing(guess, unlikely):
    """Logits 0 of one piece for each place, and of all others so many less."""
    logits = torch.full((*guess.shape, VOCABULARY), -float(unlikely))
    return logits.scatter(-1, guess[..., None], 0.0)


def knowing(ids):
    """Guesses the pieces of ROWS, whatever it reads: nine tenths of them are theirs."""
    same = (ids[:, None] == ROWS[None]).sum(-1)
    return guessing(ROWS[same.argmax(1)], math.log(9 * 1023))


def test_a_copier_names_what_it_reads_and_notices_nothing(masking):
    found = masking.measure(lambda ids: guessing(ids, 80), ROWS)
    assert found["plain_named"] == 1 and found["hidden_accuracy"] == 0
    assert found["plain_nats"] == 0 and found["hidden_nats"] == 80
    assert found["plain_entropy"] == pytest.approx(0, abs=1e-6)
    assert found["swap_found"] == 0.5
    assert found["swap_mended"] < 0.01  # a piece may be swapped with itself


def test_one_who_knows_the_text_fills_names_and_mends_all(masking):
    found = masking.measure(knowing, ROWS)
    names = "hidden_accuracy", "plain_named", "swap_mended"
    assert [found[name] for name in names] == [1, 1, 1]
    assert found["swap_found"] > 0.99
    entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.1 / 1023)
    assert found["plain_entropy"] == pytest.approx(entropy, abs=1e-3)


def test_each_text_is_spoilt_as_it_says(masking):
    seen = []

    def model(ids):
        seen.append(ids)
        return torch.zeros(*ids.shape, VOCABULARY)

    found = masking.measure(model, ROWS)
    assert found["plain_entropy"] == pytest.approx(math.log(VOCABULARY), abs=1e-4)
    hidden, plain, swapped = (torch.cat(seen[i : i + 2]) for i in (0, 2, 4))
    gone = hidden == tokenizer().id_of(MASK)
    assert torch.equal(hidden[~gone], ROWS[~gone]) and torch.equal(plain, ROWS)
    assert gone.float().mean() == pytest.approx(0.15, abs=0.015)
    other = swapped != ROWS
    assert other.float().mean() == pytest.approx(0.05, abs=0.01)
    assert found["places"]["hidden"] == gone.sum()
    assert 0 <= found["places"]["swapped"] - other.sum() <= 3
    assert found["places"]["plain"] == ROWS.numel()


def test_area_under_the_curve_counts_pairs(masking):
    high, low = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 0.0, 0.5])
    pairs = [(h > g) + 0.5 * (h == g) for h in high for g in low]
    assert masking.area_under_roc(high, low) == pytest.approx(float(sum(pairs)) / 12)


def test_only_what_has_been_trained_is_measured(masking, tmp_path, monkeypatch, capsys):
    out, runs = tmp_path / "masking.json", tmp_path / "runs"
    run_recipe(RECIPES["austen-bert"], runs / "austen-bert-seed-11", 1, 11,
               progress=False)  # fmt: skip
    (runs / "austen-bert-seed-10").mkdir()
    for name in ("recipe.json", "result.json", "model.safetensors"):
        whole = runs / "austen-bert-seed-11" / name
        (runs / "austen-bert-seed-10" / name).write_bytes(whole.read_bytes())
    claim = runs / "austen-bert-seed-10" / "recipe.json"
    text = claim.read_text(encoding="utf-8")
    claim.write_text(text.replace('"steps": 1,', '"steps": 7,'), encoding="utf-8")
    monkeypatch.setattr(masking, "measure", lambda model: {"training": model.training})
    words = f"masking.py --steps 1 --out {out} --runs {runs}"
    monkeypatch.setattr(sys, "argv", words.split())
    masking.main()
    said = capsys.readouterr().out
    assert said.count("has not been trained yet") == 6
    assert "seed-10 was trained for 7 updates, not 1" in said
    (run,) = json.loads(out.read_text(encoding="utf-8"))["runs"]
    names = "recipe", "seed", "shares"
    assert [run[name] for name in names] == ["austen-bert", 11, "80/10/10"]
    assert run["training"] is False


def test_the_shares_are_those_of_the_recipes(masking):
    for name, shares in masking.WAYS.items():
        how = RECIPES[name].batches(0).how
        masked, swapped = how.get("masked", 0.8), how.get("swapped", 0.1)
        said = [round(100 * x) for x in (masked, 1 - masked - swapped, swapped)]
        assert said == [int(x) for x in shares.split("/")]
