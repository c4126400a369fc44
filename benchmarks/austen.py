# SPDX-License-Identifier: MIT
"""The trainings of chapters 7, 8 and 9: one text under three objectives.

    python benchmarks/austen.py tune [RECIPE RATE]    # 20 minutes of one thread
    python benchmarks/austen.py train [RECIPE SEED]   # three hours; stops and goes on

`tune` tries each model's learning rate for 300 updates, judged by its loss on the
chapters that watch; the recipes have the best. `train` runs what RUNS lists, or one of
it, each from where it stopped. Both work in runs/austen/, and skip what is finished
there. `benchmarks/objectives.py` judges what they left.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

from deepdive.recipes import RECIPES, run_recipe
from deepdive.recipes.austen import SHORT
from deepdive.training import adamw

ROOT = Path(__file__).resolve().parent.parent
RUNS_FOLDER = ROOT / "runs" / "austen"
MODELS = ("austen-gpt", "austen-bert", "austen-t5")
OTHERWISE = ("austen-bert-masks-only", "austen-bert-no-swap", "austen-bert-no-same")
RATES, TRIED, TUNE_SEED = (1e-3, 2e-3, 4e-3, 8e-3), 300, 100
SEEDS, SHORT_SEEDS = (0, 1), (10, 11)
RUNS = [(name, seed, None) for seed in SEEDS for name in MODELS]
RUNS += [
    (name, seed, SHORT) for seed in SHORT_SEEDS for name in ("austen-bert", *OTHERWISE)
]


def folder(name: str, seed: int) -> Path:
    return RUNS_FOLDER / f"{name}-seed-{seed}"


def trial(name: str, rate: float) -> Path:
    return RUNS_FOLDER / f"tune-{name}-{rate:g}"


def tune(chosen: Iterable[tuple[str, float]]) -> None:
    """Try a learning rate for a while, from a seed that no run has."""
    torch.set_num_threads(1)
    for name, rate in chosen:
        place = trial(name, rate)
        adam = partial(adamw, lr=rate, weight_decay=0.1, betas=(0.9, 0.98))
        tried = replace(RECIPES[name], optimiser=adam)
        if not (place / "result.json").is_file():
            run_recipe(tried, place, steps=TRIED, seed=TUNE_SEED, progress=False)
        print(name, rate, (place / "result.json").read_text(), flush=True)


def train(chosen: Iterable[tuple[str, int, int | None]]) -> None:
    """Run each to its end, from where it stopped, in one thread."""
    torch.set_num_threads(1)
    for name, seed, steps in chosen:
        place = folder(name, seed)
        if not (place / "result.json").is_file():
            run_recipe(RECIPES[name], place, steps=steps, seed=seed, progress=False)
        print(name, seed, (place / "result.json").read_text(), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] not in (["train"], ["tune"]):
        sys.exit(__doc__)
    work, wanted = sys.argv[1], sys.argv[2:]
    every = RUNS if work == "train" else list(product(MODELS, RATES))
    chosen = [r for r in every if not wanted or wanted == [r[0], f"{r[1]:g}"]]
    if not chosen:
        sys.exit(f"{wanted} is none of {[(r[0], r[1]) for r in every]}")
    {"train": train, "tune": tune}[work](chosen)
